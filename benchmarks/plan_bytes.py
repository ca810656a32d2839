"""Origin bytes of an epoch against what no policy can beat: D - (C - W).

D is the set, C the cache less its index and log, W what of the cache cannot keep bytes for later: in the air, read ahead and unread, or
stored and being read. All three are measured: the first is what the sidecar's ledger says (the mean of four looks a second), the others
follow from when the origin had sent a segment and when a reader was in it. Room that the epoch has read already is no loss, whatever comes
into it, and a run has much lead in such room. What costs bytes is room that something still needed had to leave, and of that design.md 7
allows two segments a reader, in the air, ahead and being read together. So W of the bound is the measured one, or two segments a reader
where that is less; and what the cache in fact kept less than C (``lost``: fetched - (D - C)) is held against two segments a reader as well.
Epoch 1 fills the cache and is not counted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from far_origin import far_origin
from far_policies import lru_fetched, optimal_fetched
from far_readers import Hearing, Reader
from far_set import SEGMENT_BYTES, FarSet
from figures import Figure, at_most
from plan_record import Record, orders, recorded
from support.sidecar import running

__all__ = ["CAPACITIES", "Case", "Outcome", "cases", "figures", "heading", "measured", "recorded_case", "row"]

CAPACITIES = (25, 50, 75, 90)  # percent of the set
LRU_HITS = {25: 3, 50: 14, 75: 39, 90: 67}  # percent of the bytes, expected of LRU with a fresh shuffle each epoch
MOST_OVER = 0.03  # the price of so simple a bound on what may be displaced (``policy.eviction.read_ahead``)
WINDOW = 16
MOST_AHEAD = 2 * SEGMENT_BYTES  # of each reader


@dataclass(frozen=True)
class Case:
    """One run. ``window`` None: whole epochs. ``origin_mb``: what the origin gives in all, None: what it can (two processors)."""

    percent: int
    readers: int
    staggered: bool
    window: int | None
    epochs: int = 5
    origin_mb: float | None = None
    need_mb: float | None = None  # of all readers together; None: as fast as bytes come
    latency_ms: str = "0"

    @property
    def name(self) -> str:
        readers = f"{self.readers} staggered readers" if self.staggered else f"{self.readers} reader{'s' * (self.readers > 1)}"
        return f"C = {self.percent} %, {readers}, {'whole epochs' if self.window is None else f'windows of {self.window}'}"


@dataclass(frozen=True)
class Outcome:
    """What a run came to: bytes of one epoch, the mean of all but the first."""

    case: Case
    set_bytes: int
    capacity_bytes: int
    fetched: float
    in_air: float
    unread: float
    inside: float
    overhead: float
    wasted: float
    lru: float
    optimal: float
    epoch_s: float

    @property
    def w(self) -> float:
        return min(self.in_air + self.unread + self.inside, MOST_AHEAD * self.case.readers)

    @property
    def lost(self) -> float:
        """What of the cache did not keep anything from one epoch to the next."""
        return self.fetched - (self.set_bytes - (self.capacity_bytes - self.overhead))

    @property
    def bound(self) -> float:
        return self.set_bytes - (self.capacity_bytes - self.overhead - self.w)

    @property
    def over(self) -> float:
        """How much more than the bound was fetched, as a part of it."""
        return self.fetched / self.bound - 1


def cases(*, quick: bool, epochs: int) -> list[Case]:
    """Every capacity with 1, 8 and 8 staggered readers, announcing 16 shards ahead and whole epochs."""
    percents = (50,) if quick else CAPACITIES
    return [
        Case(percent, readers, staggered, window, epochs)
        for percent in percents
        for readers, staggered in ((1, False), (8, False), (8, True))
        for window in (WINDOW, None)
    ]


def recorded_case(case: Case, shards: FarSet, seed: int, *, contents: bool = False, log: Path | None = None) -> Record:
    """Run ``case`` with a real sidecar on an empty cache; ``log``: where it writes its access log, if anywhere."""
    capacity = shards.bytes * case.percent // 100
    record = Record(shards, capacity)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory,
        far_origin(shards, latency_ms=case.latency_ms, together_mb=case.origin_mb) as origin,
        running(Path(directory), "--cache-size", str(capacity), *(["--access-log", str(log)] if log else []), allow=[origin]) as sidecar,
    ):
        hearing = Hearing()
        readers = [
            Reader(f"train/0/{number}/1.1", shards, sidecar.url, origin, hearing, window=case.window, take=_pace(case))
            for number in range(case.readers)
        ]
        dealt = orders(shards, case.epochs, case.readers, seed)
        run = _staggered if case.staggered else _together
        asyncio.run(recorded(record, sidecar, origin, hearing, lambda: run(readers, dealt), contents=contents))
    return record


async def _together(readers: Sequence[Reader], dealt: Sequence[Sequence[Sequence[int]]]) -> None:
    """All readers begin every epoch together."""
    for epoch, shares in enumerate(dealt):
        async with asyncio.TaskGroup() as group:
            for reader, order in zip(readers, shares, strict=True):
                group.create_task(reader.epoch(epoch, order))
    for reader in readers:
        await reader.withdraw()
        reader.close()


async def _staggered(readers: Sequence[Reader], dealt: Sequence[Sequence[Sequence[int]]]) -> None:
    """Reader i of n begins with i/n of its first share behind it, and nobody waits for anybody."""

    async def live(place: int, reader: Reader) -> None:
        for epoch, shares in enumerate(dealt):
            skipped = len(shares[place]) * place // len(readers) if epoch == 0 else 0
            await reader.epoch(epoch, shares[place][skipped:])
        await reader.withdraw()
        reader.close()

    async with asyncio.TaskGroup() as group:
        for place, reader in enumerate(readers):
            group.create_task(live(place, reader))


def _pace(case: Case) -> Callable[[int], Awaitable[None]] | None:
    """Holds a reader back to its share of what all need; None where nothing does."""
    if case.need_mb is None:
        return None
    rate, due = case.need_mb * 1e6 / case.readers, [0.0]

    async def take(count: int) -> None:
        now = time.monotonic()
        due[0] = max(due[0], now - 0.05) + count / rate
        if due[0] > now + 0.002:
            await asyncio.sleep(due[0] - now)

    return take


def measured(case: Case, record: Record) -> Outcome:
    """The mean epoch after the first; of staggered readers what lies between 1.5 sets read and half a set before the end."""
    reads = record.accesses()
    total = sum(size for _, size in reads) / record.shards.bytes
    first, last = (1.5, total - 0.5) if case.staggered else (1.0, float(case.epochs))
    (start, begin), (end, stop) = record.read_from(first), record.read_from(last)
    count = sum(size for _, size in reads[begin:stop]) / record.shards.bytes
    air, unread, inside = record.in_air(start, end), record.unread_ahead(start, end), record.inside(start, end)
    usable = record.capacity_bytes - MOST_AHEAD * case.readers
    return Outcome(
        case, record.shards.bytes, record.capacity_bytes, record.fetched(start, end) / count, air, unread, inside, record.overhead(),
        record.wasted(start, end) / count, sum(lru_fetched(reads, record.capacity_bytes)[begin:stop]) / count,
        sum(optimal_fetched(reads, usable)[begin:stop]) / count, (end - start) / count,
    )  # fmt: skip


_COLUMNS = ("fetched", "bound", "over", "lost", "W", "in air", "unread", "inside", "wasted", "LRU", "best", "epoch")


def heading() -> str:
    return " " * 46 + " ".join(f"{column:>8}" for column in _COLUMNS)


def row(outcome: Outcome) -> str:
    """One case for people: bytes in MiB, W and its parts in segments, an epoch in seconds."""
    mib = [f"{value / 2**20:8.0f}" for value in (outcome.fetched, outcome.bound)]
    ahead = [f"{value / SEGMENT_BYTES:8.1f}" for value in (outcome.lost, outcome.w, outcome.in_air, outcome.unread, outcome.inside)]
    rest = [f"{value / 2**20:8.0f}" for value in (outcome.wasted, outcome.lru, outcome.optimal)]
    return f"{outcome.case.name:46}" + " ".join([*mib, f"{outcome.over:+8.2%}", *ahead, *rest, f"{outcome.epoch_s:8.1f}"])


def figures(outcomes: Sequence[Outcome]) -> list[Figure]:
    found = []
    for outcome in outcomes:
        name = outcome.case.name
        found.append(at_most(f"{name}: origin bytes over D - (C - W)", round(100 * outcome.over, 2), 100 * MOST_OVER, "%"))
        found.append(Figure(f"{name}: W of the bound", round(outcome.w / SEGMENT_BYTES, 1), "segments"))
        found.append(Figure(f"{name}: in the air", round(outcome.in_air / SEGMENT_BYTES, 1), "segments"))
        found.append(Figure(f"{name}: read ahead, unread", round(outcome.unread / SEGMENT_BYTES, 1), "segments"))
        found.append(Figure(f"{name}: being read", round(outcome.inside / SEGMENT_BYTES, 1), "segments"))
        most = (MOST_AHEAD * outcome.case.readers + MOST_OVER * outcome.bound) / SEGMENT_BYTES
        found.append(at_most(f"{name}: of the cache, kept nothing", round(outcome.lost / SEGMENT_BYTES, 1), round(most, 1), "segments"))
        found.append(Figure(f"{name}: LRU would hit", round(100 * (1 - outcome.lru / outcome.set_bytes), 1), "%"))
    return found
