"""Fetches from origins: asks, checks the answer, resumes; yields the bytes of one version in order.

The version is pinned. Every request carries the pin, and every answer's version is compared before any of its bytes is used. So bytes of
two versions never mix. If a body breaks, the fetcher asks again from the next missing byte (Range and pin), within the retry budget; the
consumer of the bytes does not notice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import DigestsOffered
from forebay_proxy.core.digests import Digest, first_usable, hasher_of
from forebay_proxy.core.errors import (
    DigestDiffers,
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
from forebay_proxy.core.facts.cache import DigestChecked
from forebay_proxy.core.facts.origins import FetchRetried, OriginBytes, OriginOddity
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody, TellsDigests
from forebay_proxy.origins.registry import Origins
from forebay_proxy.shared.shared_tier import SharedNeed, SharedTier
from forebay_proxy.transfer.buffers import Share
from forebay_proxy.transfer.fetches import Answer
from forebay_proxy.transfer.limiter import AHEAD, WAITED, Limiters, Slot, SlotNeed
from forebay_proxy.transfer.retry import RetryBudget
from forebay_proxy.transfer.single_flight import Urgency
from forebay_proxy.wire.tar.end_marker import EndMarker

__all__ = ["DENIALS", "NAMELESS", "UNWANTED_BUDGET_S", "Fetcher", "check", "reason_of"]

log = logging.getLogger("forebay")

# An origin that has not answered once since the start is more likely a wrong name than a failing server: report that early.
UNANSWERED_BUDGET_S = 10.0
MOST_ANSWERED = 4096  # origins; a client may name any number of hosts. For a forgotten one the shorter budget counts until its next answer
# For a fetch without a waiting reader: the reader left, or it is a prefetch. A later reader asks with its own budget.
UNWANTED_BUDGET_S = 15.0
# Denials in a row before a pinned version counts as replaced. Several servers behind one name may give a shard different ETags, and the
# next one may have this version. If servers answer at random, two hide it once in 10^12 reads of a segment, four once in 100,000, eight
# once in 200. A real replacement is reported 3.5 s later than possible.
DENIALS = 40
DENIED_S = 0.01  # the n-th question comes after n times this, up to LONGEST_DENIED_S
LONGEST_DENIED_S = 0.1
ALONE_BYTES = 128 * 1024  # held in this process for the one reader of a body, who may be slow
NAMELESS = "the origin names no version: nothing would tell another one's bytes from these"


class Fetcher:
    """Fetches bytes from origins. Only this class requests bodies from them."""

    def __init__(
        self,
        origins: Origins,
        limiters: Limiters,
        bodies: Share,
        events: Events,
        *,
        origin_digests: bool = True,
        retry_budget_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        self._origins = origins.by_scheme
        self._limiters = limiters
        self._bodies = bodies
        self._events = events
        self._origin_digests = origin_digests
        self._retry_budget_s = retry_budget_s
        self._clock = clock
        self.sleep = sleep
        self.shared: SharedTier | None = None
        self._chance = chance
        self.asked_schemes = origins.asked_schemes
        self._answered: OrderedDict[str, None] = OrderedDict()  # origins that have answered, the longest silent first
        self._advised: set[str] = set()  # origins whose servers contradict each other

    def retry_budget(self, origin: str) -> RetryBudget:
        """A new retry budget for one fetch from ``origin``. It grows when the host first answers any request."""
        return RetryBudget(lambda: self._budget_s(origin), self._clock, self.sleep, self._chance)

    def _budget_s(self, origin: str) -> float:
        return self._retry_budget_s if origin in self._answered else min(UNANSWERED_BUDGET_S, self._retry_budget_s)

    @asynccontextmanager
    async def ask(
        self,
        shard: Shard,
        want: ByteRange | None,
        pin: Pin,
        need: SharedNeed,
        retry_budget: RetryBudget | None = None,
        *,
        alone: bool = False,
    ) -> AsyncIterator[tuple[OriginBody, Slot]]:
        """Send one request, in its turn; the origin's limiter learns the result.

        The shared tier is asked first, if there is one. Not for one reader ``alone``: the tier would hold a whole segment in memory for it.
        """
        async with AsyncExitStack() as held:
            if self.shared is not None and not alone:
                found = await held.enter_async_context(self.shared.asked(shard, want, pin, need))
                if found is not None:
                    yield found
                    return
            slot = await held.enter_async_context(self._turn(shard, need, retry_budget))
            slot.brings_bytes()
            async with self._origins[shard.url.scheme].read(shard, want, pin) as body:
                self._answers(shard, slot)
                if self.shared is not None:
                    self.shared.answered(shard, pin, body.version)
                yield body, slot

    async def version(self, shard: Shard, needed: SlotNeed) -> Version:
        """The version that the origin has now. Waits for its turn like any request, and asks again if the answer is invalid."""
        retry_budget = self.retry_budget(shard.origin)
        while True:
            try:
                return await self.head(shard, needed, retry_budget=retry_budget)
            except OriginLied as error:
                await self.again(shard, error, retry_budget)

    async def head(
        self, shard: Shard, needed: SlotNeed, within_s: float | None = None, *, retry_budget: RetryBudget | None = None
    ) -> Version:
        """As ``Origin.head``, in its turn. After ``within_s`` seconds, counted from its turn, raises TimeoutError."""
        async with self._turn(shard, needed, retry_budget) as slot:
            async with asyncio.timeout(within_s):
                version = await self._origins[shard.url.scheme].head(shard)
            self._answers(shard, slot)
            return version

    @asynccontextmanager
    async def _turn(self, shard: Shard, need: SlotNeed, retry_budget: RetryBudget | None) -> AsyncIterator[Slot]:
        """A slot at the origin. An error while it is held is reported to the limiter."""
        came = self._clock()
        async with self._limiters.of(shard.origin).slot(need) as slot:
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
        """Note that the host answers."""
        self._answered[origin] = None
        self._answered.move_to_end(origin)
        if len(self._answered) > MOST_ANSWERED:
            self._answered.popitem(last=False)

    async def digests(self, shard: Shard, entry: Entry) -> tuple[Digest, ...]:
        """The digests that the origin names for this version. The request comes after those of waiting readers and before prefetch."""
        origin = self._origins[shard.url.scheme]
        if not isinstance(origin, TellsDigests):
            return ()
        # A reader waits for it at the end of its shard. So it comes after readers that wait for bytes, but is not delayed with the
        # prefetch.
        async with self._turn(shard, Urgency(WAITED / 2), None):
            return await origin.digests(shard, entry.version.pin)

    def ahead(self, origin: str) -> int:
        """How many requests ahead of need are useful at this origin at once."""
        return self._limiters.of(origin).ahead

    def hurried(self, origin: str) -> None:
        """A waiting request at ``origin`` is needed sooner now."""
        self._limiters.of(origin).wake()
        if self.shared is not None:
            self.shared.hurried()

    async def stream(
        self,
        entry: Entry,
        shard: Shard,
        first: int,
        end: int | None,
        need: SharedNeed,
        *,
        wanted: Callable[[], object],
        answer: Answer | None = None,
        retry_budget: RetryBudget | None = None,
        alone: bool = False,
    ) -> AsyncGenerator[bytes | memoryview]:
        """Bytes ``first`` to ``end`` of the pinned version, resumed as often as a body breaks.

        Args:
            entry: The version.
            shard: The shard, with its credential.
            first: The first byte.
            end: The end (exclusive); None: to the end of the origin's body.
            need: The urgency for the origin's limiter.
            wanted: Returns whether a reader waits for the bytes.
            answer: A running answer that has the first bytes.
            retry_budget: The budget to use; None: a new one.
            alone: The bytes go to one reader, at its pace; they keep no slot of the origin.

        The consumer must be done with a piece before it asks for the next. A version without an identity gets one body only, of whichever
        version it is: a reader that was given bytes before must not continue with it.

        Raises an error that cannot be repaired; ``TruncatedShard`` for a body whose end cannot be told from a cut.
        """
        budget = retry_budget or self.retry_budget(shard.origin)
        position = first
        while end is None or position < end:
            before, framed = position, True
            try:
                want = ByteRange(position, None if end is None else end - 1) if entry.ranged else None
                asking = self.ask(shard, want, entry.version.pin, need, budget, alone=alone) if answer is None else answer.taken()
                answer = None
                async with asking as (body, slot):
                    self._judge(entry, body, want)
                    framed = body.framed
                    if alone:
                        slot.leave()
                    body.narrow(ALONE_BYTES if alone else self._bodies.unit_bytes)
                    pieces = self._needed(entry, shard, body, position, end, need)
                    if entry.passes and self._origin_digests and (digest := first_usable(body.digests)) is not None:
                        pieces = self._held(entry, pieces, digest, whole=position == 0 and end in (None, entry.version.length))
                    async with aclosing(pieces):
                        async for piece in pieces:
                            yield piece
                            position += len(piece)
                if end is None or entry.version.length is None:
                    return
                if position < end:
                    raise TruncatedShard(entry.name, f"the body ended at byte {position} of {end}")
            except RangeNotSatisfiable as error:
                cause = f"the origin says that byte {before} lies beyond its end, this version has {entry.version.length} bytes"
                raise ShardChanged(entry.name, cause) from error
            except DigestDiffers:
                raise
            except ShardError as error:
                if position == end:
                    return  # all bytes arrived before the end of the body went wrong
                if position > before:
                    budget.progress()
                elif not framed and isinstance(error, TruncatedShard):
                    raise  # the same end twice comes from the origin, and asking again would bring it again
                await self._resume(entry, shard, position, error, budget, wanted)

    def _judge(self, entry: Entry, body: OriginBody, want: ByteRange | None) -> None:
        """Call ``check``, and report other facts that a valid answer shows."""
        check(entry, body, want)
        if entry.trust.denials:
            self._shown_again(entry)
        if body.digests and not entry.passes:
            self._events.emit(DigestsOffered(entry, body.digests))

    async def _needed(
        self, entry: Entry, shard: Shard, body: OriginBody, position: int, end: int | None, need: SlotNeed
    ) -> AsyncGenerator[bytes | memoryview]:
        """The bytes from ``position`` to ``end`` of one body. Raises ``OriginLied`` if it begins too late, or goes on too long."""
        limiter, kind = self._limiters.of(shard.origin), "demand" if need.need < AHEAD else "prefetch"
        began, company, received = self._clock(), limiter.in_flight, 0
        # The body may be longer than needed: a whole one, or the part that another reader asked for. Bytes before and after the range are
        # dropped.
        whole = not body.ranged and (entry.ranged or end != entry.version.length)
        longer = whole or (end is not None and body.ranged and body.length is not None and body.first + body.length > end)
        skip, tail = position - body.first, EndMarker() if entry.version.length is None and not body.framed else None
        if skip < 0:
            raise OriginLied(entry.name, f"the body starts at {body.first}, {position} is needed")
        if whole and entry.ranged:
            self._events.emit(OriginOddity(shard.origin, "whole-for-range"))
        async for piece in body.chunks:
            received += len(piece)
            if not body.shared:
                limiter.bandwidth.came(len(piece), self._clock())
                self._events.emit(OriginBytes(shard.origin, len(piece), kind))
            if tail is not None:
                tail.feed(piece)
            passed = min(skip, len(piece))
            skip -= passed
            needed = piece[passed:] if end is None else piece[passed : passed + end - position]
            if len(needed) < len(piece) - passed and not longer:
                raise OriginLied(entry.name, f"more bytes came than the {end} promised")
            position += len(needed)
            if position == end and not body.shared:
                limiter.connection_rate.measured(received, self._clock() - began, max(company, limiter.in_flight))
            if needed:
                yield needed
            if longer and position == end:
                return
        if tail is not None and not tail.seen:
            raise TruncatedShard(
                entry.name,
                f"the connection closed after {position} bytes, with neither a length nor a tar end marker: that may be a cut",
                next_step="serve the shard with a Content-Length",
            )

    async def _held(
        self, entry: Entry, pieces: AsyncGenerator[bytes | memoryview], digest: Digest, *, whole: bool
    ) -> AsyncGenerator[bytes | memoryview]:
        """Yield ``pieces`` of a body that is not stored. If it is ``whole``, the last piece comes only after the bytes match ``digest``.

        Bytes that came in two bodies are not compared: no one has them whole.
        """
        hasher, last = hasher_of(digest.algorithm), memoryview(b"")
        async with aclosing(pieces):
            async for piece in pieces:
                hasher.update(piece)
                if last:
                    yield last
                last = memoryview(piece)
        computed = Digest(digest.algorithm, hasher.digest())
        self._events.emit(DigestChecked(digest.algorithm, "unchecked" if not whole else "agrees" if computed == digest else "differs"))
        if whole and computed != digest:
            raise DigestDiffers(entry.name, f"the origin's digest is {digest}, its bytes have {computed}", again=True)
        if last:
            yield last

    async def _resume(
        self, entry: Entry, shard: Shard, position: int, error: ShardError, budget: RetryBudget, wanted: Callable[[], object]
    ) -> None:
        """Pause before asking for the rest, or raise ``error`` if asking cannot help."""
        resumed = position > 0
        if resumed and not entry.version.identity:
            raise VersionLost(entry.name, f"{error.cause}, and {NAMELESS}", next_step=error.next_step) from error
        if isinstance(error, ShardChanged):
            entry.trust.denials += 1
            if not entry.version.identity or entry.in_use.stale or entry.trust.denials > DENIALS:
                raise error
            await self.sleep(min(LONGEST_DENIED_S, DENIED_S * entry.trust.denials))
            self._events.emit(FetchRetried(shard.origin, reason_of(error), resumed))
            return
        if wanted():
            budget.wanted()
        else:
            budget.shorten(UNWANTED_BUDGET_S)
        await self.again(shard, error, budget, resumed=resumed)

    def _shown_again(self, entry: Entry) -> None:
        """The origin shows a version that it had denied: several servers behind one name made ETags from inodes or copy times."""
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
        """Pause before the request is repeated; raises ``error``, or its final meaning, if that cannot help."""
        hopeless = isinstance(error, OriginUnavailable) and error.hopeless and shard.origin not in self._answered
        if hopeless or not (error.retryable or isinstance(error, (OriginLied, OriginUnavailable))):
            raise error
        try:
            await retry_budget.pause(error)
        except OriginLied as lie:
            if lie.of_version:
                raise ShardChanged(shard.name, lie.cause) from lie  # the origin insists: it does not have our version
            raise
        self._events.emit(FetchRetried(shard.origin, reason_of(error), resumed))


def check(entry: Entry, body: OriginBody, want: ByteRange | None) -> None:
    """Check that the answer is about the version being fetched. Raises ``ShardChanged`` or ``OriginLied``.

    If the origin names versions, the same name with another length or encoding is a lie. If it does not, length and encoding alone can tell
    two versions apart.
    """
    mine, theirs = entry.version, body.version
    if mine.encoding != theirs.encoding and mine.identity:
        was, now = mine.encoding or "identity", theirs.encoding or "identity"
        raise OriginLied(entry.name, f"the origin now sends it encoded as {now}, it was {was}", of_version=True)
    if mine.identity and not theirs.identity:
        raise OriginLied(entry.name, f"the origin does not say of which version this is, it was {mine.identity}", of_version=True)
    if mine.identity != theirs.identity:
        raise ShardChanged(entry.name, f"the origin now has version {theirs.identity or 'without identity'}, this one is {mine.identity}")
    if mine.length is not None and theirs.length is not None and mine.length != theirs.length:
        cause = f"the origin now says that it has {theirs.length} bytes, it said {mine.length}"
        raise OriginLied(entry.name, cause, of_version=True) if mine.identity else ShardChanged(entry.name, cause)
    if mine.encoding != theirs.encoding:
        raise ShardChanged(entry.name, "the origin now sends it in another encoding")
    # The origin honoured Range before, or an earlier process stored its whole body. Version and length match, so the needed part is used.
    if want is not None and not body.ranged and theirs.length is None:
        raise OriginLied(entry.name, f"asked for {want.header()}, the origin answered with a body of unknown length", of_version=True)


def _is_answer(error: ShardError) -> bool:
    """Whether the host sent this error, so that it is reachable."""
    if isinstance(error, OriginUnavailable):
        return error.answered
    return isinstance(error, (ShardForbidden, ShardNotFound, RangeNotSatisfiable, ShardChanged, OriginLied))


def reason_of(error: ShardError) -> str:
    """A short word for metrics: why an origin request failed."""
    if isinstance(error, OriginTimeout):
        return "timeout"
    if isinstance(error, OriginUnavailable):
        return "throttled" if error.throttled else "unavailable"
    if isinstance(error, TruncatedShard):
        return "short"
    return "changed" if isinstance(error, ShardChanged) else "status" if error.status in (401, 403, 404, 416) else "wrong"
