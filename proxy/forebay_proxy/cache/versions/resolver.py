"""Finds the version of a shard: a stored one that is still fresh, or the origin's, by one opening for all readers that ask.

An *opening* is the first ranged GET itself. Its headers give version, length and whether the origin supports Range; its body is the first
segment. 206: the length is in Content-Range. 200: no Range support, and this body has everything. 416 with ``*/0``: an empty shard.
If the origin names no version or no length, nothing is stored, and each reader gets a body of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import AsyncExitStack, nullcontext, suppress

from forebay_proxy.cache.fetching.fetcher import UNWANTED_BUDGET_S, Fetcher
from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.checks import VersionChecks
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.cache.versions.versions import Versions
from forebay_proxy.core.errors import CacheFull, RangeNotSatisfiable, ShardChanged, ShardError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OpeningDone
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import BLOCK_BYTES, SegmentLayout
from forebay_proxy.core.shard import ByteRange, Pin, Shard, SparseRange
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.fetches import WHOLE, Answer
from forebay_proxy.transfer.limiter import AHEAD, Slot
from forebay_proxy.transfer.single_flight import SingleFlight, Urgency

__all__ = ["VersionResolver"]

ATTEMPTS = 4  # for a shard that changes again while it is being opened


class VersionResolver:
    """Finds versions by shard name, and has the running openings."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        reclaimer: Reclaimer,
        fetches: SegmentFetches,
        faults: ShardFaults,
        fetcher: Fetcher,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
        hmac_key: bytes,
        revalidate: str | float,
    ) -> None:
        self.faults = faults
        self.versions = Versions(room=room, faults=faults, clock=clock, hmac_key=hmac_key, revalidate=revalidate)
        self.fetcher = fetcher
        self.fetches = fetches
        self.room = room
        self.events = events
        self.clock = clock
        self._reclaimer = reclaimer
        self._openings: SingleFlight[Entry] = SingleFlight(group, fetcher.hurried)
        self._checks = VersionChecks(
            fetcher=fetcher, versions=self.versions, faults=faults, room=room, events=events, group=group,
            clock=clock,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._openings)

    def __repr__(self) -> str:
        return f"<VersionResolver {len(self.versions.current)} shards known, {len(self._openings)} in the air>"

    @property
    def running(self) -> int:
        """Openings and checks whose task has not ended, even if their answer is known."""
        return self._openings.running + self._checks.calls.running

    async def entry(
        self,
        shard: Shard,
        job: str,
        want: RangeRequest | None = None,
        *,
        head: bool = False,
        need: float = 0.0,
        need_at: float | None = None,
        reader: Hashable = None,
    ) -> tuple[Entry, bool]:
        """The version of ``shard`` to read now, and whether this call began its opening. Waits for the origin if it must be asked.

        Args:
            shard: The shard, with its credential.
            job: The reader's job; "" for none.
            want: The range that the reader wants.
            head: The request is a HEAD.
            need: The urgency.
            need_at: When a prefetched shard is needed, in seconds of the plans' clock.
            reader: The reader for which it is prefetched.

        Raises ``ShardError``. A prefetch also raises ``CacheFull``, before the origin is asked, if there is no room and nothing may leave
        for it.
        """
        mac = self.versions.mac(shard)
        self.faults.recall(shard.name, mac, ahead=need >= AHEAD)
        compared: Entry | None = None  # by this very call: with a TTL of 0 it is never fresh
        elsewhere: set[Entry] = set()  # entries that the origin gives to other credentials only
        for _ in range(ATTEMPTS):
            entry = self.versions.meant(shard.name, mac, elsewhere)
            if entry is None:
                with suppress(CacheFull) if need < AHEAD else nullcontext():  # an opening that was begun ahead of need failed: once more
                    mine = Urgency(
                        need, need_at, reader, in_part=want is not None and not (isinstance(want, ByteRange) and want.last is None)
                    )
                    return await self._opened(shard, mac, job, want, head=head, mine=mine)
                continue
            proven = entry.access.may_read(mac, self.clock())
            if proven and (entry is compared or self.versions.is_fresh(entry, job)):
                self.versions.known_by(entry, shard)
                return entry, False
            if await (self._checks.is_same(entry, shard, job, need) if proven else self._checks.is_shown(entry, shard)):
                self.versions.checked(entry, job)  # also if another job had asked
                compared = entry
            else:
                elsewhere.add(entry)
        raise ShardChanged(shard.name, f"the origin changed it {ATTEMPTS} times while it was being opened")

    def ready(self, shard: Shard, job: str) -> Entry | None:
        """The result of ``entry`` if the origin need not be asked, else None. Raises ``ShardError``."""
        self.faults.recall(shard.name, self.versions.mac(shard))
        entry = self.versions.readable(shard)
        if entry is None:
            return None
        # A client that names this very version gets its bytes, whatever the origin has now: they are right, like those of a pinned object.
        is_meant = bool(shard.meant) and shard.meant == entry.shown_version.etag(entry.shown_key)
        return entry if is_meant or self.versions.is_fresh(entry, job) else None

    async def _opened(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, *, head: bool, mine: Urgency
    ) -> tuple[Entry, bool]:
        async def call(needed: Urgency, known: asyncio.Future[Entry]) -> None:
            opening = Opening(self, shard, job, want, head=head, needed=needed, known=known)
            started = self.clock()
            try:
                await opening.run()
            except ShardError as error:
                if not known.done():
                    self.faults.origin_refused(shard.name, mac, error)
                    self.events.emit(OpeningDone(self.clock() - started, type(error).__name__))
                raise
            finally:
                if opening.entry is not None:
                    self._reclaimer.retire(opening.entry)

        key = (shard.name, mac, head)
        begun = key not in self._openings
        entry = await self._openings.join(key, shard.origin, mine, call)
        self.versions.checked(entry, job)
        return entry, begun

    def cancel(self) -> None:
        """Shutdown: cancel every opening and check; the task group waits for them."""
        self._openings.cancel()
        self._checks.calls.cancel()

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """Drain: cancel every opening, except those of shards whose name is ``wanted``: their first body may be on its way to a client."""
        self._openings.drop(lambda key: wanted(key[0]))
        self._checks.calls.drop(lambda key: False)


class Opening:
    """One run of an opening; ``known`` is resolved as soon as the version is known.

    Its steps: ask for the first range. If the shard cannot be requested in parts, ask for the whole. When the version is known, waiting
    readers go on. Room is reserved for the length in the header, while the body waits in the kernel. The body goes to the first fetch; if
    it breaks, the fetch resumes like any other. If nothing can be stored, or only a part of a segment is wanted, the body goes to one
    reader (``Answer``).
    """

    def __init__(
        self,
        resolver: VersionResolver,
        shard: Shard,
        job: str,
        want: RangeRequest | None,
        *,
        head: bool,
        needed: Urgency,
        known: asyncio.Future[Entry],
    ) -> None:
        self.entry: Entry | None = None
        self._resolver = resolver
        self._fetcher = resolver.fetcher
        self._fetches = resolver.fetches
        self._layout = resolver.room.layout
        self._shard = shard
        self._job = job
        self._head = head
        self._needed = needed
        self._known = known
        part = None if head else self._fetches.sparse.asked_at_opening(shard.name, want, self._layout)
        self._asked: ByteRange | None = part or (ByteRange(0, 0) if head else _first_range(want, self._layout))
        self._retry_budget = self._fetcher.retry_budget(shard.origin)
        self._started = resolver.clock()

    async def run(self) -> None:
        """Ask until the version is known and its first body is stored. Raises ``ShardError``, and ahead of need ``CacheFull``."""
        while not self._known.done():
            try:
                await self._attempt()
            except RangeNotSatisfiable:
                if self._known.done() or self._asked is None:
                    raise
                # The range lies beyond the shard's end, or the shard is empty. Ask for another, because one reader's range must not fail
                # the other readers of this opening. A shard counts as empty only if all of it was requested and no byte came: a 416 may be
                # a mistake of a proxy on the way, and would end a stream of samples without an error.
                self._asked = _first_range(None, self._layout) if self._asked.first else None
            except ShardError as error:
                if self._known.done():
                    raise
                if self._needed.waiting and self._needed.need < AHEAD:
                    self._retry_budget.wanted()
                else:  # readers ahead of need wait too, but can do without
                    self._retry_budget.shorten(UNWANTED_BUDGET_S)
                await self._fetcher.again(self._shard, error, self._retry_budget)

    async def _attempt(self) -> None:
        if self._needed.need >= AHEAD and not self._head:
            self._fetches.check_ahead(BLOCK_BYTES, self._needed)  # for any room at all: the answer tells how much it needs
        async with AsyncExitStack() as held:
            asking = self._fetcher.ask(self._shard, self._asked, Pin(), self._needed, self._retry_budget)
            body, slot = await held.enter_async_context(asking)
            if self._asked is not None and not self._head and _must_be_whole(body):
                self._asked = None
                return
            part = self._asked if isinstance(self._asked, SparseRange) else None
            if part and not (body.ranged and self._fetches.sparse.worth(self._shard.name, part, self._layout, body.version)):
                self._asked = _first_range(part, self._layout)
                return
            self.entry = entry = self._resolver.versions.admit(self._shard, self._job, body.version, ranged=body.ranged)
            self._resolver.events.emit(OpeningDone(self._resolver.clock() - self._started))
            self._retry_budget = self._fetcher.retry_budget(self._shard.origin)  # it has answered, so the full budget applies now
            if entry.passes and entry.version.length != 0:
                self._fetches.not_kept(entry)
            if self._head or entry.version.length == 0:
                self._known.set_result(entry)
            elif part or entry.passes or not await self._fetched(entry, body, slot, held):
                await self._handed_over(entry, body, slot, held)

    async def _fetched(self, entry: Entry, body: OriginBody, slot: Slot, held: AsyncExitStack) -> bool:
        """Store the body; False if it comes only whole and there is no room for it."""
        index = entry.segments.layout.index_of(body.first) if entry.ranged else WHOLE
        if self._is_coming(entry, index):
            self._known.set_result(entry)
            return True
        begun = self._fetches.opened(entry, index, self._needed)
        if begun is None:
            self._resolver.room.outdated(entry)
            return False
        self._known.set_result(entry)
        answer = Answer(body, slot, held.pop_all())  # connection and slot are released before any pause
        await self._fetches.run(entry, index, self._shard, *begun, answer, self._retry_budget)
        return True

    def _is_coming(self, entry: Entry, index: int) -> bool:
        if index == WHOLE:
            return entry.segments.complete or entry.in_use.whole is not None
        return entry.segments.has(index) or self._fetches.find(entry, index) is not None

    async def _handed_over(self, entry: Entry, body: OriginBody, slot: Slot, held: AsyncExitStack) -> None:
        """The body goes to the first reader that asks for it; ahead of need there is none."""
        if self._needed.need >= AHEAD:
            self._known.set_result(entry)
            return
        answer = entry.in_use.answer = Answer(body, slot, held.pop_all())
        self._known.set_result(entry)
        try:
            await answer.claimed()
        finally:
            if entry.in_use.answer is answer:
                entry.in_use.answer = None
            await answer.drop()


def _must_be_whole(body: OriginBody) -> bool:
    """Whether a ranged answer is of a shard that cannot be requested in parts: its end or its version is unknown."""
    return body.ranged and (body.version.length is None or not body.version.identity)


def _first_range(want: RangeRequest | None, layout: SegmentLayout) -> ByteRange:
    """The segment of the client's first byte; for a suffix, whose place is unknown, the first segment."""
    first, size = layout.span(layout.index_of(want.first) if isinstance(want, ByteRange) else 0, None)
    return ByteRange(first, first + size - 1)
