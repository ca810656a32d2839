"""How long an epoch takes where the origin gives half of what the accelerator needs, and the cache holds half of the set.

An epoch cannot be shorter than max(D / r, (D - C) / b). Here both are equal, so accelerator and line must never pause: a shuffle that wants
more missing bytes first makes the one wait, and the other later on. What that alone costs is reckoned beside the measured time: every
missing segment fetched in the order of need over a line that is always full, from what was stored when the epoch began.
"""

from __future__ import annotations

import asyncio
import heapq
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accelerator import Accelerator, Shift, shift
from far_origin import far_origin
from far_readers import Hearing, Reader, get_json
from far_set import FarSet
from figures import Figure, at_most
from plan_record import orders
from plan_stall import CONNECTION_MB, LATENCY_MS, Trial
from support.sidecar import running

__all__ = ["figures"]

MOST_OVER = 5.0


@dataclass(frozen=True)
class _Epoch:
    """One epoch: how it went, how long it had to take (seconds) in this order, and what the origin sent."""

    done: Shift
    best_s: float
    origin_bytes: int
    origin_s: float  # from the first request to the last byte


def figures(trial: Trial) -> list[Figure]:
    """Of each epoch after the one that fills the cache."""
    shards, line_rate = trial.shards, trial.need_mb / 2 * 1e6
    missing = shards.bytes - shards.bytes // 2
    bound_s = max(shards.bytes / (trial.need_mb * 1e6), missing / line_rate)
    found = []
    for number, epoch in enumerate(asyncio.run(_run(trial, line_rate)), 2):
        name = f"origin gives 0.5 of {trial.need_mb:g} MB/s, C = D/2, {shards.count} shards: epoch {number}"
        found += [
            at_most(f"{name} over its bound of {bound_s:.1f} s", _over(epoch.done.seconds, bound_s), MOST_OVER, "%"),
            Figure(f"{name}: what its order alone costs", _over(epoch.best_s, bound_s), "%"),
            Figure(f"{name}: origin bytes over D - C", _over(epoch.origin_bytes, missing), "%"),
            Figure(f"{name}: line not full before the last byte", _part(epoch.origin_s - epoch.origin_bytes / line_rate, bound_s), "%"),
            Figure(f"{name}: nothing left to fetch", _part(epoch.done.seconds - epoch.origin_s, bound_s), "%"),
        ]
    return found


def _over(value: float, than: float) -> float:
    return round(100 * (value / than - 1), 2)


def _part(seconds: float, of: float) -> float:
    return round(100 * seconds / of, 2)


async def _run(trial: Trial, line_rate: float) -> list[_Epoch]:
    shards = trial.shards
    with (
        tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory,
        far_origin(shards, latency_ms=LATENCY_MS, connection_mb=CONNECTION_MB) as origin,
        running(Path(directory), "--cache-size", str(shards.bytes // 2), allow=[origin]) as sidecar,
    ):
        first, *later = orders(shards, trial.epochs + 1, trial.workers, trial.seed)
        filling = _crew(trial, sidecar.url, origin, None)  # as fast as it comes: nothing of this epoch is measured
        async with asyncio.TaskGroup() as group:
            for reader, order in zip(filling, first, strict=True):
                group.create_task(reader.epoch(0, order))
        for reader in filling:
            reader.close()
        await get_json(origin, f"/-/together/{line_rate / 1e6}")
        accelerator = Accelerator(trial.need_mb * 1e6, trial.workers)
        readers = _crew(trial, sidecar.url, origin, accelerator)
        epochs = []
        for epoch, share in enumerate(later, 1):
            await get_json(origin, "/-/log")
            best_s = _best(trial, share, await _stored(shards, sidecar.url), line_rate)
            done = await shift(accelerator, [partial(reader.epoch, epoch, order) for reader, order in zip(readers, share, strict=True)])
            sent = await get_json(origin, "/-/log")
            origin_s = max(entry[1] for entry in sent) - min(entry[0] for entry in sent)
            epochs.append(_Epoch(done, best_s, sum(entry[4] for entry in sent), origin_s))
        for reader in readers:
            await reader.withdraw()
            reader.close()
        return epochs


def _crew(trial: Trial, proxy: str, origin: str, accelerator: Accelerator | None) -> list[Reader]:
    hearing = Hearing()
    return [
        Reader(f"train/0/{place}/1.1", trial.shards, proxy, origin, hearing, window=None, take=accelerator and accelerator.taker(place))
        for place in range(trial.workers)
    ]


async def _stored(shards: FarSet, proxy: str) -> dict[int, int]:
    """Shard number -> how many of its segments are here: its first ones, as tails leave before heads."""
    places = {name: number for number, name in enumerate(shards.names)}
    listed = (await get_json(proxy, "/v1/shards"))["shards"]
    return {places[entry["shard"].rpartition("/")[2]]: entry["segments"] for entry in listed}


def _best(trial: Trial, share: Sequence[Sequence[int]], stored: Mapping[int, int], line_rate: float) -> float:
    """Seconds that the epoch takes if the line carries what is missing in the order of need, and never pauses. Readers take turns."""
    shards, rate = trial.shards, trial.need_mb * 1e6
    worked = came = 0.0
    for _, number, index in heapq.merge(*(_walk(shards, order) for order in share)):
        size = shards.size(number, index)
        worked += size / rate
        if index >= stored.get(number, 0):
            came += size / line_rate
            worked = max(worked, came)  # it is read while it comes
    return worked


def _walk(shards: FarSet, order: Sequence[int]) -> list[tuple[int, int, int]]:
    """(bytes the reader has taken before, shard, segment) of all it reads."""
    walked, before = [], 0
    for number in order:
        for index in range(shards.segments(number)):
            walked.append((before, number, index))
            before += shards.size(number, index)
    return walked
