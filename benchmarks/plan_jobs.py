"""Two jobs over one set and one cache that holds it, the second half an epoch later: what the first fetches, the second finds."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from accelerator import Accelerator, Shift, shift
from far_origin import far_origin
from far_readers import Hearing, Reader, get_json
from far_set import FarSet
from figures import Figure, at_most
from plan_record import orders
from plan_stall import CONNECTION_MB, LATENCY_MS
from support.sidecar import running

__all__ = ["figures"]

MOST_BYTES_OVER, MOST_SLOWER = 5.0, 10.0  # percent
ORIGIN_OF_NEED = 1.5  # what the origin gives, of what one job needs: two jobs that fetched for themselves would be a quarter too slow


def figures(shards: FarSet, seed: int, need_mb: float, workers: int) -> list[Figure]:
    (alone,), alone_bytes = asyncio.run(_run(shards, seed, need_mb, workers, ("one",)))
    both, both_bytes = asyncio.run(_run(shards, seed, need_mb, workers, ("one", "two")))
    found = [
        at_most(
            "two jobs, half an epoch apart, C = D: origin bytes over those of one", _over(both_bytes, alone_bytes), MOST_BYTES_OVER, "%"
        )
    ]
    for name, done in zip(("first", "second"), both, strict=True):
        what = f"two jobs: the {name}'s epoch longer than alone ({alone.seconds:.1f} s)"
        found.append(at_most(what, _over(done.seconds, alone.seconds), MOST_SLOWER, "%"))
    return found


def _over(value: float, than: float) -> float:
    return round(100 * (value / than - 1), 2)


async def _run(shards: FarSet, seed: int, need_mb: float, workers: int, jobs: Sequence[str]) -> tuple[list[Shift], int]:
    """(one epoch of each job, bytes the origin sent)."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory,
        far_origin(shards, latency_ms=LATENCY_MS, connection_mb=CONNECTION_MB, together_mb=ORIGIN_OF_NEED * need_mb) as origin,
        running(Path(directory), "--cache-size", str(shards.bytes), allow=[origin]) as sidecar,
    ):
        first = Hearing()
        begun = [asyncio.create_task(_job(jobs[0], shards, seed, need_mb, workers, sidecar.url, origin, first))]
        for place, job in enumerate(jobs[1:], 1):
            while first.bytes < shards.bytes * place / 2:
                await asyncio.sleep(0.02)
            begun.append(asyncio.create_task(_job(job, shards, seed + place, need_mb, workers, sidecar.url, origin, Hearing())))
        shifts = [await task for task in begun]
        return shifts, sum(entry[4] for entry in await get_json(origin, "/-/log"))


async def _job(job: str, shards: FarSet, seed: int, need_mb: float, workers: int, proxy: str, origin: str, hearing: Hearing) -> Shift:
    """One epoch of one job, in an order of its own."""
    accelerator = Accelerator(need_mb * 1e6, workers)
    readers = [
        Reader(f"{job}/0/{place}/1.1", shards, proxy, origin, hearing, window=None, take=accelerator.taker(place))
        for place in range(workers)
    ]
    share = orders(shards, 1, workers, seed)[0]
    try:
        return await shift(accelerator, [partial(reader.epoch, 0, order) for reader, order in zip(readers, share, strict=True)])
    finally:
        for reader in readers:
            await reader.withdraw()
            reader.close()
