"""A real training with two workers, ``fb.memo`` and ``fb.frames`` beside a real sidecar: all who are asked say the same numbers as
``fb.counters()``."""

from __future__ import annotations

import json
import os
import subprocess
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.clips import rendered
from support.sidecar import environment, running, wait_until
from support.tars import tar_shard
from support.warm_python import python_program

from forebay_proxy.cli.sidecars.status import status
from forebay_proxy.wire.protocol.meter import DERIVED

pytest.importorskip("torch.utils.data")
pytest.importorskip("lmdb")
pytest.importorskip("av")
pytestmark = [pytest.mark.webdataset, pytest.mark.timeout(120)]

TRAIN = """
import json, os, signal, sys, time
import forebay_loader as fb

folder = sys.argv[2]
clip = {"__key__": "0", "__url__": "s3://b/0.tar", "mp4": open(sys.argv[3], "rb").read()}
seen = fb.video("clip('random', 2)", size=96, frames=fb.frames(folder=sys.argv[4], size="64MB"))
while not fb.counters()["frames_kept"]:
    list(seen([clip]))
    time.sleep(0.1)

def watched(sample):
    return {**sample, "mask": next(seen([clip]))["mask"]}

def twice(sample):
    return {"__key__": sample["__key__"], "twice": 2 * sample["bin"]}

data = fb.WebDataset(sys.argv[1], shardshuffle=False).map(fb.memo(folder=folder, key="bin", size="10MB")(twice)).map(watched)
for kill in (False, True):
    loader = fb.WebLoader(data, batch_size=4, num_workers=2, timeout=20)
    batches = iter(loader)
    for number, batch in enumerate(batches):
        if kill and number == 1:
            break
    if kill:
        from multiprocessing import active_children
        os.kill(active_children()[0].pid, signal.SIGKILL)
    del batches
print(json.dumps(fb.counters()), flush=True)
"""


def trained(place: Path, url: str, *arguments: str) -> dict[str, dict[str, int]]:
    """What it counted, by kind."""
    environ = environment(place, FOREBAY_URL=url, FOREBAY_JOB="train-7", RANK="0", WORLD_SIZE="1")
    program = python_program(["-c", TRAIN, *arguments], environ, place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    with program:
        counted = json.loads(program.communicate(timeout=90)[0])
    return {kind: {name: counted[f"{kind}_{name}"] for name in names} for kind, names in DERIVED.items()}


@pytest.mark.once
def test_all_say_what_the_loader_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, status as JSON and in words, after a worker was killed and the job has ended; no path is told."""
    folders = {"memo": place / "secret" / "results", "frames": place / "secret" / "pictures"}
    urls = []
    for number in range(2):
        path = place / f"{number}.tar"
        path.write_bytes(tar_shard(number, 20, 500))
        urls.append(str(path))
    (place / "0.mp4").write_bytes(rendered(frames=8, gop=4))
    with running(place, "--cache-size", "100MB") as sidecar:
        wanted = trained(place, sidecar.url, "::".join(urls), str(folders["memo"]), str(place / "0.mp4"), str(folders["frames"]))
        assert wanted["memo"]["made"] == wanted["memo"]["kept"] == 40
        assert wanted["memo"]["hits"] > 0
        assert wanted["frames"]["kept"] == 1
        assert wanted["frames"]["hits"] >= 40
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)

        def scraped() -> dict[str, dict[str, float]]:
            read = partial(sidecar.metric, job="train-7")
            return {kind: {name: read(f"forebay_{kind}_{name}_total") for name in names} for kind, names in DERIVED.items()}

        wait_until(lambda: scraped() == wanted)
        for kind, counts in wanted.items():
            (row,) = [row for row in sidecar.status()["derived"] if row["kind"] == kind]
            assert {name: row[name] for name in ("job", *counts)} == {"job": "train-7", **counts}
            held = sum(512 * os.stat(path).st_blocks for path in folders[kind].rglob("*") if path.is_file())
            (shown,) = row["folders"]
            assert shown == {"folder": folders[kind].name, "bytes": row["bytes"], "limit_bytes": {"memo": 10, "frames": 64}[kind] * 10**6}
            assert row["bytes"] == pytest.approx(held, abs=1 << 20)
            assert row["bytes"] > 0
            assert sidecar.metric(f"forebay_{kind}_bytes", job="train-7") == row["bytes"]
            said = CliRunner().invoke(status, catch_exceptions=False).stdout
            (line,) = [line for line in said.splitlines() if line.startswith(f"train-7 {kind} ")]
            assert line.split()[-5:] == [str(counts.get(name, "-")) for name in ("hits", "made", "kept", "dropped", "damaged")]
            assert folders[kind].name in line
            page = sidecar.ask("/").decode()
            assert f"<td>{kind}</td>" in page
            assert "secret" not in page + said + json.dumps(sidecar.status()["derived"]) + sidecar.ask("/metrics").decode()
