"""A lone job after another one that has ended: origin bytes of its epochs against D - C, whatever the cache was full of.

Two sets of equal names in one folder, each twice the cache. The first job reads its own twice and leaves; then the second reads its own. Of
the cache C, what its index and log take is no room, nor is the segment in the air and the one being read; from the second epoch on the
second job may fetch 5 % more than D less the rest.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

from far_origin import far_origin
from far_readers import Hearing, Reader, get_json
from far_set import SEGMENT_BYTES, FarSet
from figures import Figure, at_most
from support.sidecar import Sidecar, running

from forebay_proxy.wire.protocol.keepalive import hold

__all__ = ["figures"]

MOST_OVER = 5.0  # percent
QUIET_S = 62.0  # without a name a job is told from the next by a minute of silence
EPOCHS = 4
WAYS = ("plans", "plans without a set", "a reader's name", "nothing")


def figures(shards: FarSet, seed: int) -> list[Figure]:
    """``shards`` are both jobs' together."""
    found = []
    for way in WAYS:
        over, epochs = asyncio.run(_run(shards, seed, way))
        print(
            f"told by {way}: of its set fetched in each epoch: {', '.join(f'{part:.2f}' for part in epochs)}", file=sys.stderr, flush=True
        )
        found.append(at_most(f"a job after another, told by {way}: most origin bytes over D - C from epoch 2 on", over, MOST_OVER, "%"))
    return found


async def _run(shards: FarSet, seed: int, way: str) -> tuple[float, list[float]]:
    halves = [list(range(shards.count // 2)), list(range(shards.count // 2, shards.count))]
    size = sum(shards.lengths[number] for number in halves[1])
    capacity = size // 2
    with (
        tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory,
        far_origin(shards, latency_ms="0") as origin,
        running(Path(directory), "--cache-size", str(capacity), allow=[origin]) as sidecar,
    ):
        named = way != "nothing"
        with hold(sidecar.url, job="first" if named else ""):
            await _job("first", halves[0], shards, seed, way, sidecar, origin, 2)
        if not named:
            await asyncio.sleep(QUIET_S)
        fetched = await _job("second", halves[1], shards, seed + 1, way, sidecar, origin, EPOCHS)
        room = capacity - sidecar.status()["cache"]["overhead_bytes"] - 2 * SEGMENT_BYTES
    return round(100 * (max(fetched[1:]) / (size - room) - 1), 2), [count / size for count in fetched]


async def _job(job: str, numbers: list[int], shards: FarSet, seed: int, way: str, sidecar: Sidecar, origin: str, epochs: int) -> list[int]:
    """Bytes the origin sent for each epoch."""
    pattern = f"shard-{{{numbers[0]:05d}..{numbers[-1]:05d}}}.tar" if way == "plans" else ""
    reader = Reader(
        "" if way == "nothing" else f"{job}/0/0/1.1", shards, sidecar.url, origin, Hearing(),
        window=16 if way.startswith("plans") else 0, pattern=pattern,
    )  # fmt: skip
    rng, fetched = random.Random(seed), list[int]()
    await _sent(origin)
    for epoch in range(epochs):
        await reader.epoch(epoch, rng.sample(numbers, len(numbers)))
        fetched.append(await _sent(origin))
    if way.startswith("plans"):
        await reader.withdraw()
    reader.close()
    return fetched


async def _sent(origin: str) -> int:
    """Since it was asked last."""
    return sum(entry[4] for entry in await get_json(origin, "/-/log"))
