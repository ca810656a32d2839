"""A short day of a real training, sidecar and Prometheus, five times as fast as the rules are written: for ``scripts/test --long``."""

from __future__ import annotations

import errno
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.disks import bad_disk
from support.lengths import LEFT, LONG
from support.ports import free_ports
from support.prometheus import Prometheus, needs_prometheus, running_prometheus
from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import environment, running, wait_until
from support.tars import tar_shard
from support.warm_python import python_program

import forebay_proxy

pytest.importorskip("torch.utils.data")
pytestmark = [
    needs_prometheus, pytest.mark.once, pytest.mark.timeout(900), pytest.mark.needs("gcc"),
    pytest.mark.skipif(not LONG, reason="takes six minutes"),
]  # fmt: skip
if not LONG:
    LEFT.append("the dashboard and its alerts beside a real training with an outage and a bad disk")

FASTER, SCRAPE_S = 5, 3
FILES = Path(forebay_proxy.__file__).parent / "dashboard"
BOARD = json.loads((FILES / "forebay.json").read_text("utf-8"))
SHARDS, SAMPLES = 60, 16
TRAIN = """
import sys, time
import forebay_loader as fb
data = fb.WebDataset(sys.argv[1:], shardshuffle=False).repeat()
for batch in fb.WebLoader(data, batch_size=8, num_workers=1, collate_fn=list):
    time.sleep(0.25)
"""


class Weather(Fault):
    """What the origin does now."""

    status: int | None = None
    share = 1.0  # of its answers are that
    _asked = 0

    def answer(self, call: Call) -> Answer:
        self._asked += 1
        bad = self.status is not None and self._asked * self.share % 1 + self.share >= 1
        return call.honest(status=self.status, body=b"") if bad else call.honest()


def _faster(found: re.Match[str]) -> str:
    seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
    return f"{seconds // FASTER}s"


def rules(directory: Path) -> Path:
    """Each time in an expression, and each ``for``, a fifth of what it is."""
    text = (FILES / "alerts.yml").read_text("utf-8")
    found = re.sub(r"(?<=[\[ ])(\d+)([smh])(?=\]|\)| *$| +#)", _faster, text, flags=re.MULTILINE)
    (directory / "rules.yml").write_text(found, encoding="utf-8")
    return directory / "rules.yml"


def panel(title: str) -> str:
    """The first query of it."""
    panels = [panel for each in BOARD["panels"] for panel in (each, *each.get("panels", ()))]
    query = next(str(each["targets"][0]["expr"]) for each in panels if each["title"] == title)
    return re.sub(r"\$(job|instance|train)\b", ".*", query).replace("$__rate_interval", "12s").replace("$__range", "60s")


@contextmanager
def training(place: Path, url: str, job: str, urls: list[str]) -> Iterator[subprocess.Popen[Any]]:
    environ = environment(place, FOREBAY_URL=url, FOREBAY_JOB=job)
    with (place / f"{job}.log").open("wb") as log, python_program(["-c", TRAIN, *urls], environ, place, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_alert(prometheus: Prometheus, name: str, severity: str, *, fires: bool, within_s: float) -> None:
    query = f'ALERTS{{alertname="{name}",severity="{severity}",alertstate="firing"}}'
    wait_until(lambda: bool(prometheus.query(query)) == fires, within_s, every_s=1)


def test_a_day_beside_a_real_training(place: Path) -> None:
    """In an outage readers are shown to wait, OriginDown and TrainingStalls fire and resolve, and so does CacheDiskDown with a disk that
    takes nothing; throttling, a restart, a second job show."""
    weather, origin, port = Weather(), ScriptedOrigin(), free_ports(1)[0]
    for number in range(SHARDS):
        origin.put(f"/{number}.tar", tar_shard(number * SAMPLES, SAMPLES, 60_000), always=weather)
    flags = ("--cache-size", "30MB", "--port", str(port))
    target = f"127.0.0.1:{port}"
    with bad_disk(place) as disk, in_a_thread(origin), running_prometheus(place, target, rules(place), SCRAPE_S) as prometheus:
        urls = [f"{origin.base}/{number}.tar" for number in range(SHARDS)]
        sidecar = running(place, *flags, allow=[origin.base], environ=dict(disk.environ))
        with sidecar as first, training(place, first.url, "one", urls):
            prometheus.wait_for(f"{panel('Samples a second')} > 20")
            prometheus.wait_for(f"{panel('From the origins')} > 1e5")
            prometheus.wait_for(f"{panel('Stall, worst rank')} < 0.05")
            assert prometheus.query("count(forebay_singleflight_waiters)")
            weather.status = 500
            wait_for_alert(prometheus, "OriginDown", "page", fires=True, within_s=240 / FASTER)  # the runbook's four minutes
            prometheus.wait_for("forebay_singleflight_waiters > 0")
            prometheus.wait_for(f"{panel('Stall, worst rank')} > 0.8")
            wait_for_alert(prometheus, "TrainingStalls", "page", fires=True, within_s=480 / FASTER)
            weather.status = None
            wait_for_alert(prometheus, "OriginDown", "page", fires=False, within_s=300 / FASTER)
            wait_for_alert(prometheus, "TrainingStalls", "page", fires=False, within_s=600 / FASTER)
            weather.status, weather.share = 503, 0.2
            prometheus.wait_for(f"{panel('Throttled')} > 0")
            weather.status = None
            disk.set(write=errno.EIO)
            wait_for_alert(prometheus, "CacheDiskDown", "page", fires=True, within_s=600 / FASTER)
            prometheus.wait_for(f"{panel('Samples a second')} > 20")
            disk.mend()
            wait_for_alert(prometheus, "CacheDiskDown", "page", fires=False, within_s=600 / FASTER)
            with training(place, first.url, "two", urls):
                prometheus.wait_for(f"count({panel('Samples a second by job')} > 0) == 2")
            first.kill()
            wait_for_alert(prometheus, "SidecarDown", "ticket", fires=True, within_s=360 / FASTER)
            with running(place, *flags, allow=[origin.base]):
                prometheus.wait_for(re.sub(r"\$\w+", ".*", BOARD["annotations"]["list"][0]["expr"]))
                wait_for_alert(prometheus, "SidecarDown", "ticket", fires=False, within_s=60)
                prometheus.wait_for(f"{panel('Samples a second')} > 20")


def test_the_rules_are_faster(tmp_path: Path) -> None:
    """No time is left as it was."""
    assert not re.findall(r"\[\d+[mh]\]|(?:for|offset):? \d+[mh]", rules(tmp_path).read_text("utf-8"))
