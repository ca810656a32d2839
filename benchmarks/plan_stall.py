"""How busy an emulated accelerator is kept by a far origin: through a sidecar and, beside it, by ``curl`` alone as ``pipe:curl`` runs it.

The origin gives 1.1 times what the accelerator needs, 50 MB/s a connection after 30 to 100 ms, and the cache is cold.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from accelerator import Accelerator, Shift, shift
from far_origin import far_origin
from far_readers import Hearing, Reader
from far_set import FarSet
from figures import Figure, at_least
from plan_record import orders
from support.sidecar import running

__all__ = ["Trial", "figures"]

LATENCY_MS, CONNECTION_MB = "30-100", 50.0
LEAST_BUSY = 99.0


@dataclass(frozen=True)
class Trial:
    """One set-up. ``need_mb`` is the accelerator's rate r, in 10^6 bytes a second."""

    shards: FarSet
    seed: int
    need_mb: float
    workers: int
    epochs: int = 1


def figures(trial: Trial) -> list[Figure]:
    through, direct = asyncio.run(_enough(trial)), asyncio.run(_direct(trial))
    name = f"origin gives 1.1 of {trial.need_mb:g} MB/s, {trial.workers} workers"
    return [
        at_least(f"{name}: accelerator busy", round(100 * through.utilisation, 2), LEAST_BUSY, "%"),
        Figure(f"{name}: accelerator busy with curl alone", round(100 * direct.utilisation, 2), "%"),
    ]


async def _enough(trial: Trial) -> Shift:
    shards = trial.shards
    with (
        tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory,
        far_origin(shards, latency_ms=LATENCY_MS, connection_mb=CONNECTION_MB, together_mb=1.1 * trial.need_mb) as origin,
        running(Path(directory), "--cache-size", str(2 * shards.bytes), allow=[origin]) as sidecar,
    ):
        accelerator, readers = _crew(trial, sidecar.url, origin)
        share = orders(shards, 1, trial.workers, trial.seed)[0]
        done = await shift(accelerator, [partial(reader.epoch, 0, order) for reader, order in zip(readers, share, strict=True)])
        await _dismiss(readers)
        return done


async def _direct(trial: Trial) -> Shift:
    """What ``pipe:curl -s -L`` gives: one process a shard, its output read as it comes."""
    shards = trial.shards
    with far_origin(shards, latency_ms=LATENCY_MS, connection_mb=CONNECTION_MB, together_mb=1.1 * trial.need_mb) as origin:
        accelerator = Accelerator(trial.need_mb * 1e6, trial.workers)

        async def read(place: int, order: Sequence[int]) -> None:
            take = accelerator.taker(place)
            for number in order:
                command = ("curl", "-s", "-L", "-f", f"{origin}/set/{shards.names[number]}")
                child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, limit=2**20)
                assert child.stdout is not None
                while data := await child.stdout.read(2**20):
                    await take(len(data))
                assert await child.wait() == 0, f"curl failed on shard {number}"

        share = orders(shards, 1, trial.workers, trial.seed)[0]
        return await shift(accelerator, [partial(read, place, order) for place, order in enumerate(share)])


def _crew(trial: Trial, proxy: str, origin: str) -> tuple[Accelerator, list[Reader]]:
    accelerator, hearing = Accelerator(trial.need_mb * 1e6, trial.workers), Hearing()
    return accelerator, [
        Reader(f"train/0/{place}/1.1", trial.shards, proxy, origin, hearing, window=None, take=accelerator.taker(place))
        for place in range(trial.workers)
    ]


async def _dismiss(readers: Sequence[Reader]) -> None:
    for reader in readers:
        await reader.withdraw()
        reader.close()
