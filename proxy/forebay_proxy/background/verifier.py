"""Compares stored bytes with their checksums: all of them because a person asked, and a few all the time.

A cache outlives reboots, disks and file system repairs; a segment that rots is found by its reader only once another boot has made it
doubtful. In this boot the reader of a wrong segment gets what the page cache holds. So it is worth comparing, slowly.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator

from forebay_proxy.cache.integrity.segment_reader import Finding, SegmentReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.tasks import Event, told_while

__all__ = ["IdleVerifier", "Verifier"]

# A sixth of what one NVMe reads, and a twentieth of a core for the sums: training meanwhile does not notice, and a terabyte takes half an
# hour.
RATE_BYTES_S = 500 * 10**6
AT_ONCE = 2  # of the eight read threads: enough to keep a queue at the disk


class Verifier:
    """One request to verify; iterate ``run`` for its events. A wrong segment is removed, also under a reader, which is then cut off."""

    def __init__(
        self,
        segment_reader: SegmentReader,
        entries: AsyncIterable[Entry],
        rate_bytes_s: float = RATE_BYTES_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``rate_bytes_s``: reads no faster than that."""
        self._segment_reader = segment_reader
        self._rate_bytes_s = rate_bytes_s
        self._clock = clock
        self._sleep = sleep
        self._entries = entries
        self._work: list[tuple[Entry, list[int]]] = []
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._total_bytes = self._begun_bytes = 0
        self._done_bytes = self._segments = self._unread = 0  # looked at, read whole, not read
        self._wrong: Counter[str] = Counter()  # segments by shard name

    def run(self) -> AsyncIterator[Event]:
        """``progress`` each second, ``wrong`` for each wrong segment, ``end`` last. Closing the iterator stops it."""
        return told_while(self._all, self._events, self._progress)

    def _progress(self) -> Event:
        return {"event": "progress", "done_bytes": self._done_bytes, "bytes": self._total_bytes}

    async def _all(self) -> None:
        async for entry in self._entries:
            indices = list(entry.segments.stored())
            self._work.append((entry, indices))
            self._total_bytes += sum(entry.segments.span(index)[1] for index in indices)
        waiting = ((entry, index) for entry, indices in self._work for index in indices)
        started = self._clock()
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._some(waiting, started), name=f"verify {number}")
        self._events.put_nowait({
            "event": "end", "shards": sum(1 for _, indices in self._work if indices), "segments": self._segments,
            "bytes": self._done_bytes, "wrong": self._wrong.total(), "wrong_shards": len(self._wrong), "unread": self._unread,
        })  # fmt: skip

    async def _some(self, waiting: Iterator[tuple[Entry, int]], started: float) -> None:
        for entry, index in waiting:
            await self._sleep(max(0.0, started + self._begun_bytes / self._rate_bytes_s - self._clock()))
            first, size = entry.segments.span(index)
            self._begun_bytes += size
            finding = await self._segment_reader.verify(entry, index, "verify", gentle=True)
            self._segments += finding.removes or finding is Finding.RIGHT
            self._unread += finding is Finding.UNREAD
            self._done_bytes += size
            if finding.removes:
                self._wrong[entry.name] += 1
                self._events.put_nowait({"event": "wrong", "shard": entry.name, "segment": index, "offset": first, "length": size})


class IdleVerifier:
    """One task: every few seconds one segment, anywhere in the cache."""

    def __init__(
        self,
        room: SpaceManager,
        segment_reader: SegmentReader,
        idle: Callable[[], bool],
        *,
        every_s: float,
        chance: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``idle``: whether the disk has nothing else to do now; a turn that falls on a busy moment is left out."""
        self._room = room
        self._segment_reader = segment_reader
        self._idle = idle
        self._every_s = every_s
        self._chance = chance
        self._sleep = sleep

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._sleep(self._every_s)
            if self._idle():
                await self.sample()

    async def sample(self) -> Finding:
        """Look at one segment, each as likely as any other."""
        entries = list(self._room.entries.values())
        weights = [entry.segments.stored_count for entry in entries]
        if not any(weights):
            return Finding.GONE
        entry = self._chance.choices(entries, weights)[0]
        index = self._chance.choice(list(entry.segments.stored()))
        return await self._segment_reader.verify(entry, index, "sample", gentle=True)
