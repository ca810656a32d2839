"""The same as ``plan_after`` at the size of a real set: the sidecar's own decisions on a simulated clock (``forebay plan --replay``).

Two jobs of four readers, each over 10 GB of its own, one 70 s after the end of the other, over a cache that holds 55 % of either set. At
this size what its index takes and what is in the air is within the limit, so nothing of that is taken off C.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from figures import Figure, at_most

from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.origin import SimulatedLine
from forebay_proxy.simulate.outcome import EpochEnded, SimulatedRun
from forebay_proxy.simulate.workload import Workload, shuffled
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["FOLDERS", "WAYS", "Case", "fetched", "figures"]

MOST_OVER = 5.0  # percent
PAUSE_S = 70.0  # more than the minute after which a job without a connection is over
PERCENT = 55
SHARD_BYTES = 10_000_000
READERS, WINDOW = 4, 16
FIRST_EPOCHS, EPOCHS = 2, 4
OVERHEAD_BYTES = 4 * 2**20
LINE = SimulatedLine(bytes_s=1e9, latency_s=0.02)
NEED_BYTES_S = 800e6

WAYS = ("plans", "plans without a set", "a reader's name", "nothing")
FOLDERS = ("one folder", "two folders")


@dataclass(frozen=True)
class Case:
    """``shards`` of each job. ``way``: what readers tell of themselves. ``folders``: where both sets lie."""

    way: str
    folders: str
    shards: int
    seed: int

    @property
    def set_bytes(self) -> int:
        return self.shards * SHARD_BYTES

    @property
    def capacity_bytes(self) -> int:
        return self.set_bytes * PERCENT // 100

    def pattern(self, job: str) -> str:
        """The URLs of the set of ``job``."""
        folder = "sets" if self.folders == FOLDERS[0] else job
        return f"https://o/{folder}/{job}-{{00000..{self.shards - 1:05d}}}.tar"

    def workload(self) -> Workload:
        first, second = self._job("first", FIRST_EPOCHS, self.seed), self._job("second", EPOCHS, self.seed + 1)
        later = tuple(replace(script, after="first", begins_at=PAUSE_S) for script in second.scripts)
        return replace(first, scripts=first.scripts + later, lengths={**first.lengths, **second.lengths})

    def _job(self, job: str, epochs: int, seed: int) -> Workload:
        head, _, tail = self.pattern(job).partition("{")
        names = [f"{head}{number:05d}{tail.partition('}')[2]}" for number in range(self.shards)]
        listed = [Shard.of(parse_origin_url(name)) for name in names]
        made = shuffled(
            listed, {shard.name: SHARD_BYTES for shard in listed}, epochs=epochs, seed=seed, readers=READERS, rate=NEED_BYTES_S,
            ahead=WINDOW if self.way.startswith("plans") else None,
        )  # fmt: skip
        scripts = (
            replace(
                script, reader=replace(script.reader, job=job), is_named=self.way != "nothing",
                set_name=self.pattern(job) if self.way == "plans" else None,
            )
            for script in made.scripts
        )  # fmt: skip
        return replace(made, scripts=tuple(scripts))


def fetched(case: Case) -> list[int]:
    """Bytes that the origin sent for each epoch of the second job."""
    run = SimulatedRun(case.workload(), LINE, case.capacity_bytes, overhead_bytes=OVERHEAD_BYTES)
    sent: list[int] = []  # in all, at the end of each epoch of either job
    run.events.on(EpochEnded, lambda _: sent.append(run.world.origin.sent_bytes))
    run.finish()
    run.world.check()
    return [after - before for before, after in zip(sent[FIRST_EPOCHS - 1 :], sent[FIRST_EPOCHS:], strict=False)]


def figures(shards: int, seed: int) -> list[Figure]:
    """``shards`` are each job's."""
    found = []
    for folders in FOLDERS:
        for way in WAYS:
            case = Case(way, folders, shards, seed)
            epochs = fetched(case)
            over = round(100 * (max(epochs[1:]) / (case.set_bytes - case.capacity_bytes) - 1), 2)
            parts = ", ".join(f"{count / case.set_bytes:.3f}" for count in epochs)
            print(f"{folders}, told by {way}: of its set fetched in each epoch: {parts}", file=sys.stderr, flush=True)
            name = f"a job after another, {folders}, told by {way}, simulated"
            found.append(at_most(f"{name}: most origin bytes over D - C from epoch 2 on", over, MOST_OVER, "%"))
    return found
