"""Each cause made in turn, by a real sidecar, a real training with two workers and an origin that behaves as told: it is named.

By the sidecar, by ``fb.stalls()`` as far as a training process can know it, and by the log line.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.lengths import LEFT, LONG
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import environment, running, small_segments, wait_until
from support.tars import tar_shard
from support.troubles import SEGMENT_BYTES, TROUBLES, Scene, troubled

pytestmark = [pytest.mark.webdataset, pytest.mark.once, pytest.mark.needs("gcc"), pytest.mark.timeout(180)]

ORDINARY = ("latency", "locked decode")
if not LONG:
    LEFT.append(f"{len(ORDINARY)} of {len(TROUBLES)} causes of a stall, each made in turn")
FUNCTIONS = {"decode": "slow_decoder (", "locked": "locked_decoder (", "map": "slow_picture (", "collate": "slow_collate ("}


@pytest.mark.parametrize("name", TROUBLES if LONG else ORDINARY)
def test_the_cause_is_named(place: Path, name: str) -> None:
    trouble = TROUBLES[name]
    with troubled(trouble, place) as scene:
        said = trained(scene)
        own = scene.trainer_says()
        lines = scene.lines()[-2:]
        assert (said["cause"], own["verdict"]["cause"]) == (trouble.cause, trouble.own), (said, own, lines)
        assert (said["severity"] == "fine") == (own["verdict"]["severity"] == "fine") == (trouble.cause == "trainer"), (said, own)
        if trouble.cause == "cache too small":
            # For 110 shards of 154 kB, 4.2 MB of index, and a tenth more.
            assert re.search(r"^forebay stop .*&& forebay serve .*--cache-size 24MB", said["line"]), said
        if trouble.case in FUNCTIONS:
            assert FUNCTIONS[trouble.case] in own["verdict"]["sentence"], own
            assert FUNCTIONS[trouble.case] in said["sentence"], said
        if trouble.cause == "trainer":
            assert lines[-1].split(" | ")[-1].startswith("batch "), lines  # nothing is advised
        else:
            assert any(f" | {trouble.cause}: " in line for line in lines), (lines, said)


@pytest.mark.skipif(not LONG, reason="takes a minute; scripts/test --long does it")
def test_the_line_to_type_mends_a_small_cache(place: Path) -> None:
    """Typed as it stands, while training goes on: from then on the epoch fits."""
    with troubled(TROUBLES["small cache"], place, forked=False) as scene:
        line = wait_until(lambda: said if "--cache-size" in (said := trained(scene)["line"]) else "", every_s=0.5)
        program = shlex.join([*small_segments(SEGMENT_BYTES), "serve"])  # the sidecar of the scene has small segments
        command = ["bash", "-c", f"{line.replace('forebay serve', f'exec {program}')}"]
        with subprocess.Popen(command, env=environment(place)) as typed:
            try:
                wait_until(lambda: answers(scene) and scene.status()["cache"]["stored_bytes"] > 16_900_000, every_s=0.5)
                wait_until(lambda: asked_nothing_for(scene, 5.0), every_s=0.5)
            finally:
                typed.terminate()


def asked_nothing_for(scene: Scene, seconds: float) -> bool:
    """Of the origin, while training read on; with a cache that is too small it is asked all the time."""
    before, began_s = scene.sidecar.metric("forebay_origin_bytes_total"), scene.trainer_says()["wall_s"]
    wait_until(lambda: scene.trainer_says()["wall_s"] > began_s + seconds, every_s=0.5)
    return scene.sidecar.metric("forebay_origin_bytes_total") == before


def answers(scene: Scene) -> bool:
    with suppress(OSError):
        return bool(scene.status())
    return False


def trained(scene: Scene) -> dict[str, str]:
    """The verdict, once training has gone on for long enough."""
    wait_until(lambda: scene.trainer_says()["wall_s"] >= scene.trouble.seconds, every_s=0.2)
    found: dict[str, str] = scene.status()["verdict"]
    return found


def test_who_only_reads_tells_nothing_of_training(place: Path) -> None:
    """A loop of curl: its waits are known, and what they cost is not."""
    with in_a_thread(ScriptedOrigin()) as origin, running(place, "--cache-size", "100MB", allow=[origin.base]) as sidecar:
        for number in range(40):
            origin.put(f"/{number}.tar", tar_shard(0, 8, 16_000), bytes_per_s=300_000)
        ended = threading.Event()

        def read() -> None:
            for number in range(40):
                if not ended.is_set():
                    sidecar.ask(sidecar.proxied(origin.url(f"/{number}.tar")).removeprefix(sidecar.url))

        reading = threading.Thread(target=read)
        reading.start()
        try:
            time.sleep(2.5)
            said = sidecar.status()["verdict"]
        finally:
            ended.set()
            reading.join()
    assert (said["severity"], said["cause"], said["share"]) == ("look", "nothing announced", None)
    assert said["sentence"].endswith("whether training waits is not known: only readers are visible")
