"""A real sidecar, a real training with two workers: the meter names what was made slow, and how long it was waited for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import environment, running
from support.tars import tar_shard
from support.warm_python import python_program

pytestmark = [pytest.mark.webdataset, pytest.mark.timeout(120)]

TRAINER = Path(__file__).parents[1] / "support" / "stall_trainer.py"
SHARDS, SAMPLES, SAMPLE_BYTES = 8, 32, 64_000
TRIES = 5


@pytest.fixture
def origin() -> Iterator[ScriptedOrigin]:
    with in_a_thread(ScriptedOrigin()) as made:
        yield made


def trained(place: Path, origin: ScriptedOrigin, case: str, batches: int, step_s: float, *flags: str, **how: Any) -> dict[str, Any]:
    """What the meter said of ``batches`` steps over a set of ``SHARDS``."""
    for number in range(SHARDS):
        origin.put(f"/{number}.tar", tar_shard(number, SAMPLES, SAMPLE_BYTES), **how)
    with running(place, "--cache-size", "100MB", "--socket", str(place / "s"), *flags, allow=[origin.base]) as sidecar:
        arguments = [str(TRAINER), case, f"{origin.base}/{{0..{SHARDS - 1}}}.tar", str(batches), str(step_s)]
        environ = environment(place, FOREBAY_URL=sidecar.url, FOREBAY_FD="1")
        with python_program(arguments, environ, place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as program:
            found: dict[str, Any] = json.loads(program.communicate(timeout=90)[0])
    return found


def share_of(found: dict[str, Any], cause: str) -> float:
    """More than half is more than all others together; benchmarks/stalls.py asks for nine tenths, of longer runs."""
    stalls = found["stalls"]
    total_s = sum(stalls["stall_s"].values()) + stalls["pending_s"]
    assert total_s == pytest.approx(found["wall_s"] - found["step_s"], rel=0.05, abs=0.05), found["said"]
    return float(stalls["stall_s"].get(cause, 0.0) / total_s)


@pytest.mark.parametrize("case", ["decode", "collate"])
def test_a_slow_stage_is_named(place: Path, origin: ScriptedOrigin, case: str) -> None:
    """Its share of the stall is nearly all, and the stall is all that no step took."""
    assert share_of(trained(place, origin, case, 8, 0.005), case) > 0.5


@pytest.mark.once
def test_a_slow_origin_is_named(place: Path, origin: ScriptedOrigin) -> None:
    """Though every byte comes through the sidecar."""
    found = trained(place, origin, "none", 10, 0.005, "--no-prefetch", bytes_per_s=3e6)
    assert share_of(found, "origin") > 0.5
    assert "origin" in found["said"]


@pytest.mark.once
def test_a_slow_trainer_is_not_kept_waiting(place: Path, origin: ScriptedOrigin) -> None:
    """And whatever its workers wait for is no stall: neither as it is told, nor as the trainer itself has seen."""
    for _ in range(TRIES):
        found = trained(place, origin, "none", 10, 0.1)
        told_s, seen_s = sum(found["stalls"]["stall_s"].values()), found["wall_s"] - found["step_s"]
        if seen_s < 0.1 * found["wall_s"]:
            break  # else others had the machine, and it was kept waiting: so much may be told, and no more
    assert told_s < max(seen_s, 0.1 * found["wall_s"]) + 0.01 * found["wall_s"]
