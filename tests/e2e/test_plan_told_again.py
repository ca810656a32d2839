"""A plan lives in one sidecar's memory: a reader tells it to the next one, real data set, real sidecars."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, wait_until

import forebay_loader as fb

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

COUNT, AHEAD = 40, 16


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as made:
        for number in range(COUNT):
            made.put(f"/{number:03d}.tar", tar_of(number))
        yield made


def tar_of(number: int) -> bytes:
    """One sample."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        member = tarfile.TarInfo(f"{number}.txt")
        member.size = len(str(number))
        tar.addfile(member, io.BytesIO(str(number).encode()))
    return held.getvalue()


def the_plan(sidecar: Sidecar) -> dict[str, Any]:
    """The one there is; {} while there is none."""
    plans = json.loads(sidecar.ask("/v1/plans"))["plans"]
    assert len(plans) <= 1
    return plans[0] if plans else {}


def taken(samples: Any, count: int) -> list[int]:
    return [int(next(samples)["txt"]) for _ in range(count)]


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.once), "terminate"])
async def test_the_next_sidecar_hears_the_plan(place: Path, origin: ScriptedOrigin, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Ended in the middle of an epoch: the first shard that its successor answers brings it the plan, and no sample is lost or doubled."""
    for name in ("FOREBAY_URL", "FOREBAY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONNECT_S", "SEND_S", "ANSWER_S"):  # a message that is given up leaves the plan for a minute
        monkeypatch.setattr(f"forebay_loader.plan.plan_client.{name}", 5.0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "run"))  # both sidecars are found by their run files
    monkeypatch.setenv("FOREBAY_JOB", "job")
    pattern = origin.url(f"/{{000..{COUNT - 1:03d}}}.tar")
    samples = iter(fb.WebDataset(pattern, shardshuffle=False, ahead=AHEAD))

    def first() -> list[int]:
        with running(place, "--cache-size", "64MB", allow=[origin.base]) as sidecar:
            found = taken(samples, 6)
            wait_until(lambda: the_plan(sidecar).get("position", 0) >= 4)
            assert the_plan(sidecar)["set"] == pattern
            getattr(sidecar, how)()
        return found

    def second() -> list[int]:
        with running(place, "--cache-size", "64MB", allow=[origin.base]) as sidecar:
            found = taken(samples, 2)
            plan = wait_until(lambda: the_plan(sidecar))
            assert plan["set"] == pattern
            # All that is ahead of the reader, not only what the next message says: at least what a window holds before it is filled up.
            assert plan["length"] - plan["position"] >= AHEAD - AHEAD // 4 - 2
            found += taken(samples, COUNT - 8)
            assert next(samples, None) is None
            wait_until(lambda: not the_plan(sidecar))
        return found

    assert await asyncio.to_thread(first) + await asyncio.to_thread(second) == list(range(COUNT))
