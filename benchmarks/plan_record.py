"""One run through a real sidecar, and what it says: fetches (the origin's log), reads (the readers'), levels (``/v1/status``)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from far_readers import Hearing, Read, get_json
from far_set import SEGMENT_BYTES, FarSet
from support.sidecar import Sidecar

__all__ = ["Fetch", "Level", "Record", "orders", "recorded"]

LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Fetch:
    """One answered GET at the origin. Moments on the monotonic clock, as the readers'."""

    began: float
    ended: float
    number: int
    first: int
    bytes: int

    @property
    def index(self) -> int:
        return self.first // SEGMENT_BYTES


@dataclass(frozen=True)
class Level:
    """What the ledger held at a moment, in bytes; ``stored`` maps shard numbers to segments held (empty unless asked for)."""

    at: float
    reserved: int
    doomed: int
    overhead: int
    stored: dict[int, int] = field(default_factory=dict)


@dataclass
class Record:
    """All of one run, in the order of time. ``epochs`` are the moments at which every reader had begun epoch 0, 1, …"""

    shards: FarSet
    capacity_bytes: int
    fetches: list[Fetch] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    status: dict[str, object] = field(default_factory=dict)

    def accesses(self) -> list[tuple[tuple[int, int], int]]:
        """The reads as policies see them: ((shard, segment), bytes)."""
        return [((read.number, read.index), self.shards.size(read.number, read.index)) for read in self.reads]

    def read_from(self, epochs: float) -> tuple[float, int]:
        """(moment, place in ``reads``) at which ``epochs`` times the whole set had been read."""
        left = epochs * self.shards.bytes
        for place, read in enumerate(self.reads):
            if left <= 0:
                return self.reads[place - 1].ended if place else self.began, place
            left -= self.shards.size(read.number, read.index)
        return self.ended, len(self.reads)

    def fetched(self, start: float, end: float) -> int:
        """Body bytes the origin sent for requests that came between two moments."""
        return sum(fetch.bytes for fetch in self.fetches if start <= fetch.began < end)

    def in_air(self, start: float, end: float) -> float:
        """Mean of the bytes that were promised and not stored yet, as the sidecar says."""
        seen = [level.reserved + level.doomed for level in self.levels if start <= level.at < end]
        return sum(seen) / len(seen) if seen else 0.0

    def overhead(self) -> float:
        return float(max((level.overhead for level in self.levels), default=0))

    def unread_ahead(self, start: float, end: float) -> float:
        """Mean of the bytes that had arrived, and that nobody had begun to read since."""
        reads: dict[tuple[int, int], list[float]] = {}
        for read in self.reads:
            reads.setdefault((read.number, read.index), []).append(read.began)
        arrivals: dict[tuple[int, int], list[Fetch]] = {}
        for fetch in self.fetches:
            arrivals.setdefault((fetch.number, fetch.index), []).append(fetch)
        total = 0.0
        for key, fetches in arrivals.items():
            for place, fetch in enumerate(fetches):
                after = fetches[place + 1].began if place + 1 < len(fetches) else self.ended  # fetched again: it had left unread
                used = min((moment for moment in reads.get(key, ()) if moment >= fetch.began), default=after)
                total += max(0.0, min(used, after, end) - max(fetch.ended, start)) * fetch.bytes
        return total / (end - start)

    def inside(self, start: float, end: float) -> float:
        """Mean of the bytes of stored segments that readers were in: held for nobody who comes later."""
        landed: dict[tuple[int, int], list[Fetch]] = {}
        for fetch in self.fetches:
            landed.setdefault((fetch.number, fetch.index), []).append(fetch)
        total = 0.0
        for read in self.reads:
            stored = max([read.began, *(fetch.ended for fetch in landed.get((read.number, read.index), ()) if fetch.began < read.ended)])
            total += max(0.0, min(read.ended, end) - max(stored, start)) * self.shards.size(read.number, read.index)
        return total / (end - start)

    def wasted(self, start: float, end: float) -> int:
        """Bytes fetched again before anybody had read what was fetched before."""
        again, last = 0, dict[tuple[int, int], Fetch]()
        moments = sorted(
            [(read.ended, 0, (read.number, read.index), None) for read in self.reads]
            + [(fetch.began, 1, (fetch.number, fetch.index), fetch) for fetch in self.fetches],
            key=lambda each: each[:2],
        )
        for moment, _, key, fetch in moments:
            if fetch is None:
                last.pop(key, None)
            else:
                again += fetch.bytes if key in last and start <= moment < end else 0
                last[key] = fetch
        return again


async def recorded(
    record: Record, sidecar: Sidecar, origin: str, hearing: Hearing, run: Callable[[], Awaitable[None]], *, contents: bool = False
) -> None:
    """Run, and write down what happened meanwhile. ``contents``: also how much of each shard was stored, at every look (ten a second)."""
    over = asyncio.Event()
    watcher = asyncio.ensure_future(_watch(record, sidecar.url, over, contents))
    record.began = time.monotonic()
    try:
        await run()
    finally:
        record.ended = time.monotonic()
        over.set()
        await watcher
    record.reads = sorted(hearing.reads, key=lambda read: read.ended)
    record.fetches = sorted((Fetch(*entry) for entry in await get_json(origin, "/-/log")), key=lambda fetch: fetch.began)
    record.status = await get_json(sidecar.url, "/v1/status")


async def _watch(record: Record, url: str, over: asyncio.Event, contents: bool) -> None:
    places = {name: number for number, name in enumerate(record.shards.names)}
    while not over.is_set():
        cache = (await get_json(url, "/v1/status"))["cache"]
        stored = {}
        if contents:
            listed = (await get_json(url, "/v1/shards"))["shards"]
            stored = {places[entry["shard"].rpartition("/")[2]]: entry["segments"] for entry in listed}
        record.levels.append(Level(time.monotonic(), cache["reserved_bytes"], cache["doomed_bytes"], cache["overhead_bytes"], stored))
        try:
            await asyncio.wait_for(over.wait(), 0.1 if contents else LOOK_EVERY_S)
        except TimeoutError:
            continue


def orders(shards: FarSet, epochs: int, readers: int, seed: int) -> list[list[Sequence[int]]]:
    """[epoch][reader] -> shard numbers: a fresh shuffle for each epoch, dealt out like cards."""
    dealt = []
    for epoch in range(epochs):
        order = list(range(shards.count))
        random.Random(f"{seed} {epoch}").shuffle(order)
        dealt.append([order[reader::readers] for reader in range(readers)])
    return dealt
