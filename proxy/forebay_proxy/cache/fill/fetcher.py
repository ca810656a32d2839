"""One flight's way to the origin: ask, check, resume, land.

The version is pinned: every request carries the pin, every answer's version is compared, so bytes of two versions never meet. A broken body
is asked again from its next missing byte (Range + pin) within the retry budget; the readers of the flight do not notice.
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from forebay_proxy.cache.fill.body_copy import BodyCopy, Stopwatch, check
from forebay_proxy.cache.fill.segment_writer import SegmentWriter
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import (
    OriginLied,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    TruncatedShard,
    VersionLost,
)
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import FetchRetried, OriginOddity
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody, TellsDigests
from forebay_proxy.origins.registry import Origins
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.transfer.limiter import WAITED, Limiters, Slot, SlotNeed
from forebay_proxy.transfer.retry import RetryBudget

__all__ = ["DENIALS", "UNWANTED_BUDGET_S", "Fetcher", "QueuedNeed", "reason_of"]

log = logging.getLogger("forebay")

# An origin that has not answered once since the start is more likely a wrong name than one in trouble: say so soon.
UNANSWERED_BUDGET_S = 10.0
MOST_ANSWERED = 4096  # origins: a client may name any number of hosts; one that is forgotten is given up sooner, until its next answer
# No reader waits for it: a reader who left, or a prefetch. A later reader asks with a budget of its own.
UNWANTED_BUDGET_S = 15.0
# Denials in a row before a replaced version is believed to be gone: several servers behind one name may give a shard ETags of their own,
# and the next one asked may have this version. Two that answer by chance hide it once in 10^12 reads of a segment, four once in 100,000,
# eight once in 200. A real replacement is told 3.5 s later than it could be.
DENIALS = 40
DENIED_S = 0.01  # the n-th question comes after n of these, up to
LONGEST_DENIED_S = 0.1
NAMELESS = "the origin names no version: nothing would tell another one's bytes from these"


class QueuedNeed:
    """The need of a question whose answer a reader waits for at the end of its shard."""

    need = WAITED / 2  # behind readers that wait for bytes, but not held back with the prefetch


class Fetcher:
    """Brings bytes from origins; the only room that asks them for bodies."""

    def __init__(
        self,
        origins: Origins,
        limiters: Limiters,
        buffers: BufferBudget,
        events: Events,
        *,
        retry_budget_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        self._origins = origins.by_scheme
        self._limiters = limiters
        self._buffers = buffers
        self._events = events
        self._retry_budget_s = retry_budget_s
        self._clock = clock
        self.sleep = sleep
        self._chance = chance
        self.asked_schemes = origins.asked_schemes
        self._answered: OrderedDict[str, None] = OrderedDict()  # origins, the longest silent first
        self._advised: set[str] = set()  # origins whose servers contradict each other

    def retry_budget(self, origin: str) -> RetryBudget:
        """A fresh retry budget for one fetch from ``origin``; it grows with the host's first answer to anybody."""
        return RetryBudget(lambda: self._budget_s(origin), self._clock, self.sleep, self._chance)

    def _budget_s(self, origin: str) -> float:
        return self._retry_budget_s if origin in self._answered else min(UNANSWERED_BUDGET_S, self._retry_budget_s)

    @asynccontextmanager
    async def ask(
        self, shard: Shard, want: ByteRange | None, pin: Pin, flight: SlotNeed, retry_budget: RetryBudget | None = None
    ) -> AsyncIterator[tuple[OriginBody, Slot]]:
        """One request, in its turn; the origin's limiter learns how it went."""
        async with self._turn(shard, flight, retry_budget) as slot:
            slot.brings_bytes(self._clock)
            async with self._origins[shard.url.scheme].read(shard, want, pin) as body:
                self._answers(shard, slot)
                yield body, slot

    async def version(self, shard: Shard, needed: SlotNeed) -> Version:
        """The version the origin holds now; waits for its turn like any request, and asks again where the answer is nonsense."""
        retry_budget = self.retry_budget(shard.origin)
        while True:
            try:
                async with self._turn(shard, needed, retry_budget) as slot:
                    version = await self._origins[shard.url.scheme].head(shard)
                    self._answers(shard, slot)
                    return version
            except OriginLied as error:
                await self.again(shard, error, retry_budget)

    @asynccontextmanager
    async def _turn(self, shard: Shard, flight: SlotNeed, retry_budget: RetryBudget | None) -> AsyncIterator[Slot]:
        """A place at the origin; whatever goes wrong while it is held is told to the limiter."""
        came = self._clock()
        async with self._limiters.of(shard.origin).slot(flight) as slot:
            if retry_budget is not None:
                retry_budget.queued(self._clock() - came)
            try:
                yield slot
            except ShardError as error:
                if _is_answer(error):
                    self._heard(shard.origin)
                if isinstance(error, OriginTimeout) or (isinstance(error, OriginUnavailable) and error.throttled):
                    slot.pushed_back()
                raise

    def _answers(self, shard: Shard, slot: Slot) -> None:
        self._heard(shard.origin)
        slot.went_well()

    def _heard(self, origin: str) -> None:
        """The host is there."""
        self._answered[origin] = None
        self._answered.move_to_end(origin)
        if len(self._answered) > MOST_ANSWERED:
            self._answered.popitem(last=False)

    async def digests(self, shard: Shard, entry: Entry) -> tuple[Digest, ...]:
        """The digests the origin names for this version, asked for once, in its turn: behind those who wait for bytes, before prefetch."""
        origin = self._origins[shard.url.scheme]
        if not isinstance(origin, TellsDigests):
            return ()
        async with self._turn(shard, QueuedNeed(), None):
            return await origin.digests(shard, entry.version.pin)

    def ahead(self, origin: str) -> int:
        """How many requests ahead of need are worth having at this origin at once."""
        return self._limiters.of(origin).ahead

    def hurried(self, origin: str) -> None:
        """Something that waits for its turn is needed sooner now."""
        self._limiters.of(origin).wake()

    async def fill(
        self, entry: Entry, flight: Flight, shard: Shard, writer: SegmentWriter, retry_budget: RetryBudget | None = None
    ) -> None:
        """Bring everything of ``flight`` that has not arrived, however often the body breaks. Raises what cannot be mended."""
        retry_budget = retry_budget or self.retry_budget(shard.origin)
        await writer.ready()
        while not flight.done and not writer.complete:
            if writer.received > 0 and not entry.version.identity:
                raise VersionLost(entry.name, NAMELESS)
            before = writer.received
            try:
                want = self._range(entry, flight, writer)
                async with self.ask(shard, want, entry.version.pin, flight, retry_budget) as (body, slot):
                    check(entry, body, want)
                    if entry.trust.denials:
                        self._shown_again(entry)
                    await self.pour(entry, flight, shard, writer, body, slot)
                    return
            except RangeNotSatisfiable as error:
                cause = f"the origin says that byte {before} lies beyond its end, this version has {entry.version.length} bytes"
                raise ShardChanged(entry.name, cause) from error
            except ShardError as error:
                await writer.flush()  # what arrived is kept: the next request starts behind it
                if writer.complete:
                    return  # all of it came before the end of the body went wrong
                if writer.received > before:
                    retry_budget.progress()
                elif flight.end is None and isinstance(error, TruncatedShard):
                    raise  # the same end twice: it is the origin's, and asking again brings it again
                await self.resume(entry, flight, shard, writer, error, retry_budget)

    @staticmethod
    def _range(entry: Entry, flight: Flight, writer: SegmentWriter) -> ByteRange | None:
        if not entry.ranged:
            return None
        return ByteRange(writer.received, None if flight.end is None else flight.end - 1)

    async def resume(
        self, entry: Entry, flight: Flight, shard: Shard, writer: SegmentWriter, error: ShardError, retry_budget: RetryBudget
    ) -> None:
        """Pause before asking for the rest, or raise ``error`` if asking cannot help."""
        resumed = writer.received > 0
        if resumed and not entry.version.identity:
            raise VersionLost(entry.name, f"{error.cause}, and {NAMELESS}", next_step=error.next_step) from error
        if isinstance(error, ShardChanged):
            entry.trust.denials += 1
            if not entry.version.identity or entry.in_use.stale or entry.trust.denials > DENIALS:
                raise error
            await self.sleep(min(LONGEST_DENIED_S, DENIED_S * entry.trust.denials))
            self._events.emit(FetchRetried(shard.origin, reason_of(error), resumed))
            return
        if flight.passengers:
            retry_budget.wanted()
        else:
            retry_budget.shorten(UNWANTED_BUDGET_S)
        await self.again(shard, error, retry_budget, resumed=resumed)

    def _shown_again(self, entry: Entry) -> None:
        """The origin shows a version that it had denied: several servers behind one name made up their ETags from inodes or copy times."""
        entry.trust.denials = 0
        self._events.emit(OriginOddity(entry.origin, "version-returned"))
        if entry.origin not in self._advised and len(self._advised) < MOST_ANSWERED:
            self._advised.add(entry.origin)
            log.warning(
                "origin %s names a shard by one ETag (or date), then by another, then by the first, as several servers behind one name do: "
                "each part is asked for until the right one answers, which costs requests. Let all of them say the same: files copied with "
                "their times (rsync -t), then Apache 'FileETag MTime Size', nginx as it is",
                entry.origin,
            )

    async def again(self, shard: Shard, error: ShardError, retry_budget: RetryBudget, *, resumed: bool = False) -> None:
        """Pause before the same question is asked again, or raise: ``error``, or what it means in the end, if asking cannot help."""
        hopeless = isinstance(error, OriginUnavailable) and error.hopeless and shard.origin not in self._answered
        if hopeless or not (error.retryable or isinstance(error, (OriginLied, OriginUnavailable))):
            raise error
        try:
            await retry_budget.pause(error)
        except OriginLied as lie:
            if lie.of_version:
                raise ShardChanged(shard.name, lie.cause) from lie  # the origin insists: our version is not the one it has
            raise
        self._events.emit(FetchRetried(shard.origin, reason_of(error), resumed))

    async def pour(self, entry: Entry, flight: Flight, shard: Shard, writer: SegmentWriter, body: OriginBody, slot: Slot) -> None:
        """Land the bytes of ``body``; at its end the flight is complete. Raises as ``BodyCopy.run``."""
        limiter = self._limiters.of(shard.origin)
        stopwatch = Stopwatch(limiter.connection_rate, limiter.bandwidth, lambda: limiter.in_flight, self._clock)
        await BodyCopy(entry, flight, writer, body, origin=shard.origin, buffers=self._buffers, events=self._events).run(slot, stopwatch)


def _is_answer(error: ShardError) -> bool:
    """Whether the host said this: it is there."""
    if isinstance(error, OriginUnavailable):
        return error.answered
    return isinstance(error, (ShardForbidden, ShardNotFound, RangeNotSatisfiable, ShardChanged, OriginLied))


def reason_of(error: ShardError) -> str:
    """A short word for metrics: why an origin request was in vain."""
    if isinstance(error, OriginTimeout):
        return "timeout"
    if isinstance(error, OriginUnavailable):
        return "throttled" if error.throttled else "unavailable"
    if isinstance(error, TruncatedShard):
        return "short"
    return "changed" if isinstance(error, ShardChanged) else "status" if error.status in (401, 403, 404, 416) else "wrong"


def now_s() -> float:
    """The clock rooms are given in production."""
    return time.monotonic()
