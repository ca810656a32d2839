"""One opening of a shard: asks until the origin answers, tells its waiting readers, and has the body of the answer stored.

The state machine, in the order of its methods: ask -> (cannot be asked in pieces: ask for the whole) -> the version is known, its waiting
readers go on -> room is reserved for what the header says, while the body waits in the kernel -> the body is the first fetch's -> broken:
the fetch resumes as any other would. Where nothing can be kept, or only a part of a segment is wanted, the body is the reader's that comes
for it (``Answer``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from forebay_proxy.cache.fetching.fetcher import UNWANTED_BUDGET_S, Fetcher
from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.versions.versions import Outdated, Versions
from forebay_proxy.core.errors import RangeNotSatisfiable, ShardError
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import BLOCK_BYTES, SegmentLayout
from forebay_proxy.core.shard import ByteRange, Pin, Shard, SparseRange, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.fetches import WHOLE, Answer
from forebay_proxy.transfer.limiter import DEMAND, Slot
from forebay_proxy.transfer.single_flight import Urgency

__all__ = ["Opening", "OpeningParts"]


@dataclass(frozen=True, slots=True)
class OpeningParts:
    """What every opening works with."""

    fetcher: Fetcher
    fetches: SegmentFetches
    layout: SegmentLayout
    versions: Versions
    outdated: Outdated
    clock: Callable[[], float]


class Opening:
    """One run of it; ``known`` is resolved as soon as the version is."""

    def __init__(
        self,
        parts: OpeningParts,
        shard: Shard,
        job: str,
        want: RangeRequest | None,
        *,
        head: bool,
        needed: Urgency,
        known: asyncio.Future[Entry],
    ) -> None:
        self.entry: Entry | None = None
        self.seconds = 0.0
        self._parts = parts
        self._shard = shard
        self._job = job
        self._head = head
        self._needed = needed
        self._known = known
        part = None if head else parts.fetches.sparse.asked_at_opening(shard.name, want, parts.layout)
        self._asked: ByteRange | None = part or (ByteRange(0, 0) if head else _first_range(want, parts.layout))
        self._retry_budget = parts.fetcher.retry_budget(shard.origin)
        self._started = parts.clock()

    async def run(self) -> None:
        """Ask until the version is known and its first body has landed. Raises ``ShardError``, and ahead of need ``CacheFull``."""
        while not self._known.done():
            try:
                await self._attempt()
            except RangeNotSatisfiable as error:
                if self._known.done():
                    raise
                self._beyond(error)
            except ShardError as error:
                if self._known.done():
                    raise
                await self._again(error)

    def _beyond(self, error: RangeNotSatisfiable) -> None:
        """The origin answered 416: the range lies beyond the shard's end, or the shard is empty.

        Another range is asked for, as one reader's range must not fail the other readers of this opening. A shard counts as empty only when
        all of it was asked for and no byte came: a 416 may be a mistake of a proxy on the way, and would end a stream of samples without an
        error.
        """
        if self._asked is None:
            raise error
        self._asked = _first_range(None, self._parts.layout) if self._asked.first else None

    async def _again(self, error: ShardError) -> None:
        if self._needed.waiting and self._needed.need < DEMAND:
            self._retry_budget.wanted()
        else:  # who asks ahead of need waits too, but can do without
            self._retry_budget.shorten(UNWANTED_BUDGET_S)
        await self._parts.fetcher.again(self._shard, error, self._retry_budget)

    async def _attempt(self) -> None:
        parts = self._parts
        if self._needed.need >= DEMAND and not self._head:
            parts.fetches.check_ahead(BLOCK_BYTES, self._needed)  # how much it needs its head will tell, and its version is known then
        async with AsyncExitStack() as held:
            asking = parts.fetcher.ask(self._shard, self._asked, Pin(), self._needed, self._retry_budget)
            body, slot = await held.enter_async_context(asking)
            if self._asked is not None and not self._head and _must_be_whole(body):
                self._asked = None
                return
            part = self._asked if isinstance(self._asked, SparseRange) else None
            if part and not (body.ranged and parts.fetches.sparse.worth(self._shard.name, part, parts.layout, body.version)):
                self._asked = _first_range(part, parts.layout)
                return
            entry = self._admit(body.version, ranged=body.ranged)
            if entry.passes and entry.version.length != 0:
                parts.fetches.not_kept(entry)
            if self._head or entry.version.length == 0:
                self._resolve()
            elif part or entry.passes or not await self._fetched(entry, body, slot, held):
                await self._handed_over(entry, body, slot, held)

    def _admit(self, version: Version, *, ranged: bool) -> Entry:
        """The version is known; a version of which nothing can be kept serves who waits now, and leaves."""
        self.entry = entry = self._parts.versions.admit(self._shard, self._job, version, self._parts.outdated, ranged=ranged)
        self.seconds = self._parts.clock() - self._started
        self._retry_budget = self._parts.fetcher.retry_budget(
            self._shard.origin
        )  # it has answered: from now on it is worth the full budget
        return entry

    def _resolve(self) -> None:
        """Everybody who waits goes on."""
        assert self.entry is not None
        if not self._known.done():
            self._known.set_result(self.entry)

    async def _fetched(self, entry: Entry, body: OriginBody, slot: Slot, held: AsyncExitStack) -> bool:
        """Have the body stored; False where there is no room for a body that comes whole or not at all."""
        parts, index = self._parts, _index_of(entry, body)
        if self._is_coming(entry, index):
            self._resolve()
            return True
        begun = parts.fetches.opened(entry, index, self._needed)
        if begun is None:
            parts.outdated(entry)
            return False
        self._resolve()
        answer = Answer(body, slot, held.pop_all())  # connection and slot go back before any pause
        await parts.fetches.run(entry, index, self._shard, *begun, answer, self._retry_budget)
        return True

    def _is_coming(self, entry: Entry, index: int) -> bool:
        if index == WHOLE:
            return entry.segments.complete or entry.in_use.comes_whole
        return entry.segments.has(index) or self._parts.fetches.find(entry, index) is not None

    async def _handed_over(self, entry: Entry, body: OriginBody, slot: Slot, held: AsyncExitStack) -> None:
        """The body is the reader's that comes for it first; of an opening ahead of need nobody does."""
        if self._needed.need >= DEMAND:
            self._resolve()
            return
        answer = entry.in_use.answer = Answer(body, slot, held.pop_all())
        self._resolve()
        try:
            await answer.claimed()
        finally:
            if entry.in_use.answer is answer:
                entry.in_use.answer = None
            await answer.drop()


def _index_of(entry: Entry, body: OriginBody) -> int:
    """Which segment ``body`` brings; ``WHOLE`` where it cannot be asked in pieces."""
    return entry.segments.layout.index_of(body.first) if entry.ranged else WHOLE


def _must_be_whole(body: OriginBody) -> bool:
    """A ranged answer of a shard that cannot be asked in pieces: nothing says where it ends, or which version it is of."""
    return body.ranged and (body.version.length is None or not body.version.identity)


def _first_range(want: RangeRequest | None, layout: SegmentLayout) -> ByteRange:
    """The segment of the client's first byte; for a suffix, whose place is not known yet, the first one."""
    first, size = layout.span(layout.index_of(want.first) if isinstance(want, ByteRange) else 0, None)
    return ByteRange(first, first + size - 1)
