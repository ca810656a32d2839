"""Where readers of a shard's end wait until the whole of it was compared with its digest, or nothing can be compared any more.

A reader of the last segment waits for the verdict, and for nothing that nobody is bringing: where a segment passed through memory, left
before its turn, or was never asked for, the end is released at once, counted as unchecked. A segment that was hashed once and is fetched
again must be the same bytes: whoever read it before it landed is given its own last bytes after the comparison.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core import events
from forebay_proxy.core.errors import bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import segment_count
from forebay_proxy.transfer.flights import Flight, Flights

__all__ = ["DigestGate"]

# An origin that must be asked apart (S3) is asked when the body is, so its answer is nearly always here first. A reader waits this much for
# one that is late: a retried request, or a throttled one, is no reason to stop training.
ASKED_S = 1.0


class DigestGate:
    """The readers' side of all seals."""

    came_again: Callable[[Entry, int, int], None]  # a segment with this checksum; the sealing, which is made after us, sets this

    def __init__(self, *, room: SpaceManager, flights: Flights, events: Events) -> None:
        self._room = room
        self._flights = flights
        self._events = events

    def release(self, entry: Entry, seal: DigestState) -> None:
        """Nothing can be compared: the end is everybody's."""
        if seal.closed:
            seal.released = True
            self._events.emit(events.DigestChecked(seal.expected.algorithm if seal.expected else "unknown", "unchecked"))
            self._room.claim(entry)
            seal.changed.send()

    def give_up(self, entry: Entry, seal: DigestState) -> None:
        """Nobody waits for this verdict any more."""
        seal.given_up = True
        if seal.waiting:
            self.release(entry, seal)
        seal.changed.send()

    def holds(self, entry: Entry, index: int) -> bool:
        """Whether a reader must wait before it reads segment ``index``."""
        seal = entry.seal
        if seal is None or index != entry.last_index or entry.fault is not None:
            return False
        if seal.verdict is DigestVerdict.AGREES:  # a last segment that comes again is compared with the first one once it has landed
            return not entry.segments.has(index) and self._comes(entry, index)
        if seal.given_up or not self._can_end(entry, seal):
            self.release(entry, seal)
            return False
        return True

    async def passed(self, entry: Entry, index: int) -> None:
        """Wait until ``holds`` no longer says so."""
        seal = entry.seal
        assert seal is not None
        seal.waiting += 1
        try:
            if seal.expected is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASKED_S):
                        await self._while(lambda: entry.seal is seal and seal.expected is None and self.holds(entry, index), seal)
                if seal.expected is None and entry.seal is seal:
                    self.give_up(entry, seal)
            await self._while(lambda: entry.seal is seal and self.holds(entry, index), seal)
        finally:
            seal.waiting -= 1

    def knows(self, entry: Entry, index: int) -> bool:
        """Whether a segment was hashed when it was here before; one that has the same name must be the same bytes."""
        return entry.seal is not None and index < entry.seal.next

    async def compared(self, entry: Entry, index: int, flight: Flight) -> None:
        """Wait until a known segment that ``flight`` brings has landed, and so been compared; or until it will not land."""
        seal = entry.seal
        if seal is not None:
            await self._while(lambda: entry.fault is None and not (index in flight.landed or flight.done or flight.bypass), seal)

    @staticmethod
    async def _while(condition: Callable[[], bool], seal: DigestState) -> None:
        while condition():
            await seal.changed.wait()

    def _can_end(self, entry: Entry, seal: DigestState) -> bool:
        """Whether everything that is not hashed yet is here, or on its way to the disk."""
        count = segment_count(entry.version.length or 0)
        return all(entry.segments.has(index) or self._comes(entry, index) for index in range(seal.next, count))

    def _comes(self, entry: Entry, index: int) -> bool:
        flight = entry.stream if entry.stream_flying else self._flights.find(entry.key, index)
        return flight is not None and not flight.bypass and not flight.done

    async def verdict(self, entry: Entry) -> None:
        """Wait for what can still be compared of ``entry``; raises ``DigestDiffers``."""
        last = entry.last_index
        if last is not None and self.holds(entry, last):
            await self.passed(entry, last)
        if entry.fault is not None:
            raise bare(entry.fault)
