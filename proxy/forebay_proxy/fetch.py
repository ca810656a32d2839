"""One flight's way to the origin: ask, check, resume, land.

The version is pinned: every request carries the pin, every answer's version is compared, so bytes of two versions never meet. A broken body
is asked again from its next missing byte (Range + pin) within the retry budget; nobody who follows the flight notices.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from forebay_proxy import events
from forebay_proxy.buffers import Buffers
from forebay_proxy.entry import Entry
from forebay_proxy.errors import OriginError, OriginTimeout, OriginUnavailable, ShardChanged, ShardError, TruncatedShard
from forebay_proxy.events import Events
from forebay_proxy.flights import Flight
from forebay_proxy.landing import Landing
from forebay_proxy.limiter import DEMAND, Limiter, Limiters, Needed, Slot
from forebay_proxy.origins import Origins
from forebay_proxy.origins.base import Body
from forebay_proxy.patience import Patience
from forebay_proxy.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.wire.tar import EndMarker

__all__ = ["UNWANTED_BUDGET_S", "Fetcher", "reason_of"]

log = logging.getLogger("forebay")

# An origin that has not answered once since the start is more likely a wrong name than one in trouble: say so soon.
UNANSWERED_BUDGET_S = 10.0
# Nobody waits for it: a reader who left, or a prefetch. Whoever comes asks with a budget of its own.
UNWANTED_BUDGET_S = 15.0


class _Now:
    """The need of a question a reader waits for."""

    need = 0.0


class _Stopwatch:
    """Times one body, from its headers to its last byte, for the origin's pace."""

    def __init__(self, limiter: Limiter, clock: Callable[[], float]) -> None:
        self._limiter = limiter
        self._clock = clock
        self._began = clock()
        self._company = limiter.in_flight
        self._size = 0

    def came(self, size: int, last: bool) -> None:
        self._size += size
        if last:
            self._limiter.pace.measured(self._size, self._clock() - self._began, max(self._company, self._limiter.in_flight))


class Fetcher:
    """Brings bytes from origins; the only room that asks them for bodies."""

    def __init__(
        self,
        origins: Origins,
        limiters: Limiters,
        buffers: Buffers,
        events: Events,
        *,
        retry_budget_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        self._origins = origins
        self._limiters = limiters
        self._buffers = buffers
        self._events = events
        self._retry_budget_s = retry_budget_s
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._answered: set[str] = set()

    def patience(self, origin: str) -> Patience:
        """A fresh retry budget for one fetch from ``origin``."""
        known = origin in self._answered
        budget_s = self._retry_budget_s if known else min(UNANSWERED_BUDGET_S, self._retry_budget_s)
        return Patience(budget_s, self._clock, self._sleep, self._chance)

    @asynccontextmanager
    async def ask(self, shard: Shard, want: ByteRange | None, pin: Pin, flight: Needed) -> AsyncIterator[tuple[Body, Slot]]:
        """One request, in its turn; the origin's limiter learns how it went."""
        limiter = self._limiters.of(shard.origin)
        try:
            async with limiter.slot(flight) as slot, self._origins.of(shard.url.scheme).read(shard, want, pin) as body:
                self._answered.add(shard.origin)
                limiter.went_well()
                yield body, slot
        except ShardError as error:
            if error.status in (401, 403, 404, 416) and not isinstance(error, OriginUnavailable):
                self._answered.add(shard.origin)  # a refusal is an answer too
            raise

    async def version(self, shard: Shard) -> Version:
        """The version the origin holds now; waits for its turn like any request."""
        async with self._limiters.of(shard.origin).slot(_Now()):
            return await self._origins.of(shard.url.scheme).head(shard)

    def hurried(self, origin: str) -> None:
        """Something that waits for its turn is needed sooner now."""
        self._limiters.of(origin).wake()

    def ranges(self, origin: str) -> int:
        """How many ranges of one reader are worth having in the air at this origin."""
        return self._limiters.of(origin).pace.ranges

    def pushed_back(self, origin: str, error: ShardError) -> None:
        """Tell the origin's limiter of an answer that asks for fewer requests."""
        if isinstance(error, OriginTimeout) or (isinstance(error, OriginUnavailable) and error.throttled):
            self._limiters.of(origin).throttled()

    async def fill(self, entry: Entry, flight: Flight, shard: Shard, landing: Landing, patience: Patience | None = None) -> None:
        """Bring everything of ``flight`` that has not arrived, however often the body breaks. Raises what cannot be mended."""
        patience = patience or self.patience(shard.origin)
        await landing.ready()
        while not flight.done and not landing.complete:
            if landing.received > 0 and not entry.version.identity:
                raise TruncatedShard(entry.name, "the origin names no version: nothing would tell another one's bytes from these")
            before = landing.received
            try:
                want = self._range(entry, flight, landing)
                async with self.ask(shard, want, entry.version.pin, flight) as (body, slot):
                    self._check(entry, body, want)
                    await self.pour(entry, flight, shard, landing, body, slot)
                    return
            except ShardError as error:
                await landing.flush()  # what arrived is kept: the next request starts behind it
                if landing.received > before:
                    patience.progress()
                elif flight.end is None and isinstance(error, TruncatedShard):
                    raise  # the same end twice: it is the origin's, and asking again brings it again
                await self.again(entry, flight, shard, landing, error, patience)

    @staticmethod
    def _range(entry: Entry, flight: Flight, landing: Landing) -> ByteRange | None:
        if not entry.ranged:
            return None
        return ByteRange(landing.received, None if flight.end is None else flight.end - 1)

    async def again(self, entry: Entry, flight: Flight, shard: Shard, landing: Landing, error: ShardError, patience: Patience) -> None:
        """Pause before asking again, or raise ``error`` if asking again cannot help."""
        if not flight.aboard_count:
            patience.shorten(UNWANTED_BUDGET_S)
        self.pushed_back(shard.origin, error)
        if not error.retryable or isinstance(error, ShardChanged):
            raise error
        resumed = landing.received > 0
        if resumed and not entry.version.identity:
            raise error  # nothing would tell another version's bytes from these
        await patience.pause(error)
        self._events.emit(events.FetchRetried(shard.origin, reason_of(error), resumed))

    @staticmethod
    def _check(entry: Entry, body: Body, want: ByteRange | None) -> None:
        """The answer is about the version being fetched, and begins where it must."""
        if not entry.same_version(body.version) and (entry.version.identity or body.version.identity):
            new, old = body.version.identity or "without identity", entry.version.identity
            raise ShardChanged(entry.name, f"the origin now has version {new}, this one is {old}")
        if want is not None and not body.ranged:  # it did honour Range once, or an earlier process had its body as one stream
            raise ShardChanged(entry.name, f"asked for {want.header()}, the origin answered with the whole body")

    async def pour(self, entry: Entry, flight: Flight, shard: Shard, landing: Landing, body: Body, slot: Slot) -> None:
        """Land the bytes of ``body``; at its end the flight is complete.

        Raises ``TruncatedShard`` for a body that ended too early, or whose end cannot be told from a cut.
        """
        tail = EndMarker() if flight.end is None and not body.framed else None
        skip = landing.received - body.first  # a whole body asked again: what has arrived already is passed over
        if skip < 0:
            raise OriginError(entry.name, f"the body starts at {body.first}, {landing.received} is needed")
        kind = "demand" if flight.need < DEMAND else "prefetch"
        stopwatch = _Stopwatch(self._limiters.of(shard.origin), self._clock)
        with self._buffers.fetches.held():
            async for chunk in body.chunks:
                stopwatch.came(len(chunk), landing.received + len(chunk) == flight.end)
                self._events.emit(events.OriginBytes(shard.origin, len(chunk), kind))
                if tail is not None:
                    tail.feed(chunk)
                if skip:
                    passed = min(skip, len(chunk))
                    skip -= passed
                    chunk = chunk[passed:]  # noqa: PLW2901
                if flight.end is not None and landing.received + len(chunk) > flight.end:
                    raise OriginError(entry.name, f"more bytes came than the {flight.end} promised")
                if landing.bypassing:
                    slot.leave()
                await landing.put(chunk)
        await landing.flush()
        if flight.end is not None:
            if not landing.complete:
                raise TruncatedShard(entry.name, f"the body ended at byte {landing.received} of {flight.end}")
            return
        if not body.framed and not (tail is not None and tail.seen):
            raise TruncatedShard(
                entry.name,
                f"the connection closed after {landing.received} bytes, with neither a length nor a tar end marker: that may be a cut",
                next_step="serve the shard with a Content-Length",
            )
        await landing.finish(landing.received)


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
