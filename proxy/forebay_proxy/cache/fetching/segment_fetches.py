"""The fetches of segments: finds the fetch that brings a segment, and starts one if there is none.

Four callers ask for bytes. A reader that needs a segment now gets it in any case, through memory if need be. The others are a reader that
will need it next, the prefetcher, and an opening, whose first body has arrived already. Without room, a fetch ahead of need is refused.

Nothing here waits. A fetch runs as a task: room for its segment is made, then the bytes are requested, and its sink writes them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.fetching.segment_storage import SegmentStorage
from forebay_proxy.cache.fetching.sink import Sink
from forebay_proxy.cache.fetching.sparse import SparseParts
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentMissed
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheFull, DiskFailed, ShardChanged, bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import FetchJoined, NotStorable, Refetched
from forebay_proxy.core.segments import allocated
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.fetches import WHOLE, Answer, Fetch, FetchTable, error_for_subscribers
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.transfer.retry import RetryBudget
from forebay_proxy.transfer.single_flight import Urgency
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["SegmentFetches"]

log = logging.getLogger("forebay")
MOST_TOLD = 256  # origins named in the log; all are counted


class SegmentFetches:
    """Positions are bytes in the shard; ``need`` is an urgency, lower is sooner. Not thread-safe: used on the event loop alone."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        disk: DiskHealth,
        plans: PlanRegistry,
        table: FetchTable,
        storage: SegmentStorage,
        segment_reader: SegmentReader,
        fetcher: Fetcher,
        buffers: BufferBudget,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self.sparse = SparseParts()
        self._told: set[str] = set()  # origins for which the log says that nothing can be stored
        self._room = room
        self._disk = disk
        self._plans = plans
        self._table = table
        self._storage = storage
        self._segment_reader = segment_reader
        self._fetcher = fetcher
        self._buffers = buffers
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SegmentFetches {len(self._table)} running>"

    def find(self, entry: Entry, index: int) -> Fetch | None:
        """The fetch that brings the segment; None if there is none."""
        fetch = self._table.find(entry.key, index)
        if fetch is not None and index in fetch.stored and not entry.segments.has(index):
            return None  # it has left already, while the fetch waits for the end of its body: holes below its watermark
        return fetch

    def ensure(self, entry: Entry, index: int, shard: Shard, *, need: float, need_at: float | None, reader: Hashable) -> Fetch | None:
        """Prefetch segment ``index``. None if it is stored or being fetched. Raises ``CacheFull``.

        ``need_at`` is in monotonic seconds; None: unknown.
        """
        if entry.segments.has(index):
            self._segment_reader.foresee(entry, index)
            return None
        if self.find(entry, index) is not None:
            return None
        if not entry.ranged or self._room.entries.setdefault(entry.key, entry) is not entry:
            raise CacheFull("this version cannot be completed any more")
        grant = self._ahead(entry, index, need_at, reader)
        return self._begin(entry, index, shard, need, grant)

    def launch(self, entry: Entry, index: int, shard: Shard, *, in_part: bool = False) -> Fetch:
        """Start a fetch for a missing segment that a reader needs now; into memory if it gets no room."""
        return self._begin(entry, index, shard, 0.0, self._demand(entry, index), in_part=in_part)

    def launch_ahead(
        self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None, *, in_part: bool = False
    ) -> bool:
        """Start a fetch for a segment beyond the reader's position; False if there is no room for it.

        For a ``reader`` with a plan, needed segments leave for at most two segments.
        """
        if self.announced(reader) is None:
            grant = self._demand(entry, index)
        elif not self._disk.usable:
            return False
        else:
            try:
                grant = self._room.reserve_ahead(entry.segments.bytes_of(index), self._clock(), reader, (entry.key, index), inside=True)
            except CacheFull:
                return False
        if grant is None:
            return False
        self._begin(entry, index, shard, need, grant, in_part=in_part)
        return True

    def opened(self, entry: Entry, index: int, needed: Urgency) -> tuple[Fetch, Sink] | None:
        """The fetch and the sink for an opening's first body, for ``run``. The body has segment ``index`` (``WHOLE``: all of them).

        None if the body comes only whole, and there is no room for all of it. Raises ``CacheFull`` if a segment ahead of need gets no room.
        """
        fetch = Fetch(*self._span(entry, index), needed.need, self._clock(), in_part=needed.in_part)
        if index != WHOLE:
            grant = self._ahead(entry, index, needed.need_at, needed.reader) if fetch.prefetch else self._demand(entry, index)
        elif (grant := self._whole(entry, needed)) is None:
            self._events.emit(SegmentMissed(entry, 0, fetch))
            return None
        else:
            entry.in_use.whole = fetch
        return fetch, self._listed(entry, index, fetch, grant)

    def _whole(self, entry: Entry, needed: Urgency) -> Grant[Slice] | None:
        """Room for all segments at once; None if there is not enough. Ahead of need, no needed segment leaves for it."""
        total, reader = allocated(entry.version.length or 0), needed.reader  # not summed up: an origin may name any length
        if not self._disk.usable:
            self._storage.refused("disk")
            return None
        try:
            if needed.need < AHEAD:
                return self._room.reserve(total)
            if reader is not None:
                self._room.admission.check_half(total)
            grant = self._room.reserve_ahead(total, None, reader)
        except CacheFull:
            self._storage.refused("no-room")
            return None
        for index in range(entry.segments.count) if reader is not None else ():
            self._room.read_ahead.note(entry.key, index, reader, entry.segments.bytes_of(index))
        return grant

    def _begin(self, entry: Entry, index: int, shard: Shard, need: float, grant: Grant[Slice] | None, *, in_part: bool = False) -> Fetch:
        fetch = Fetch(*self._span(entry, index), need, self._clock(), in_part=in_part)
        self._table.start(entry.key, index, self.run(entry, index, shard, fetch, self._listed(entry, index, fetch, grant)))
        return fetch

    def _listed(self, entry: Entry, index: int, fetch: Fetch, grant: Grant[Slice] | None) -> Sink:
        """Register ``fetch``, so that readers find and follow it; ``run`` removes it."""
        self._table.add(entry.key, index, fetch)
        entry.in_use.fetching += 1
        return Sink(self._storage, self._buffers.memory, entry, fetch, grant)

    @staticmethod
    def _span(entry: Entry, index: int) -> tuple[int, int]:
        if index == WHOLE:
            return 0, entry.version.length or 0
        first, size = entry.segments.span(index)
        return first, first + size

    async def run(
        self,
        entry: Entry,
        index: int,
        shard: Shard,
        fetch: Fetch,
        sink: Sink,
        answer: Answer | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> None:
        """Fetch everything of ``fetch``; afterwards no part of it is left registered or reserved. Raises the error that ends it."""
        self._storage.digest_check.begun(entry, shard)
        error: BaseException | None = None
        try:
            await sink.ready()
            pieces = self._fetcher.stream(
                entry, shard, fetch.first, fetch.end, fetch, wanted=lambda: fetch.subscribers, answer=answer, retry_budget=retry_budget
            )
            answer = None
            with self._buffers.bodies.held():
                async with aclosing(pieces):
                    async for piece in pieces:
                        await sink.put(piece)
            if fetch.bypass and not fetch.followed:
                await fetch.first_subscriber()
        except BaseException as failed:
            # Before the room is given back: no reader may read these bytes from now on.
            error = fetch.error = bare(error_for_subscribers(failed))
            if isinstance(failed, ShardChanged):
                self._room.outdated(entry)
            if isinstance(failed, DiskFailed):
                self._storage.failed(entry, failed)
            raise
        finally:
            sink.close()
            self._ended(entry, index, fetch)
            self._table.remove(entry.key, index, fetch, error)
            if answer is not None:
                await answer.drop()

    def _ended(self, entry: Entry, index: int, fetch: Fetch) -> None:
        entry.in_use.fetching -= 1
        if entry.in_use.whole is fetch:
            entry.in_use.whole = None
        mine = range(entry.segments.count) if index == WHOLE else (index,)
        missing = [each for each in mine if each not in fetch.stored]  # a stored segment that has left again may belong to another fetch
        for each in missing:
            self._room.read_ahead.end(entry.key, each)
        if missing:
            self._events.emit(SegmentMissed(entry, max(0, index), fetch))
        if missing and index == WHOLE:
            self._room.outdated(entry)  # a part of a body that comes only whole is useless for later readers
        self._room.left(entry)

    def not_kept(self, entry: Entry) -> None:
        """An opening found a version that cannot be stored: count it, and log it once per origin."""
        self._events.emit(NotStorable(entry.origin))
        if entry.origin not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(entry.origin)
            log.warning(
                "%s: shards are passed through to each reader, and not stored: of %s, %s", entry.origin, entry.name, entry.why_passed
            )

    async def alone(
        self, entry: Entry, position: int, end: int | None, shard: Shard, *, sparse: bool
    ) -> AsyncGenerator[bytes | memoryview]:
        """Pass bytes ``position`` to ``end`` (exclusive; None: to the shard's end) to one reader, without storing them.

        If an opening's answer has them, it is used. ``sparse``: no more of the segment is wanted. Otherwise these bytes are fetched in
        addition to a stored fetch.
        """
        answer = entry.in_use.answer
        if answer is not None and answer.claim(position, end):
            entry.in_use.answer = None
        else:
            answer = None
            if not sparse and not entry.passes:
                self._events.emit(Refetched())
        self._storage.digest_check.hash_ready(entry)  # perhaps its digest can no longer be compared
        stream = self._fetcher.stream(entry, shard, position, end, Urgency(0.0), wanted=lambda: True, answer=answer, alone=True)
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                yield piece

    def is_sparse(self, entry: Entry, position: int, end: int) -> bool:
        """Whether to pass ``position`` to ``end`` (exclusive, in one segment) through, rather than fetch the segment.

        If so, the bytes are counted. Never for a version without an identity: nothing would tell that two parts belong to one version.
        """
        index = entry.segments.layout.index_of(position)
        can = entry.ranged and bool(entry.version.identity)
        return can and self.sparse.take(entry.name, index, end - position, entry.segments.span(index)[1])

    def announced(self, reader: ReaderName | None) -> ReaderName | None:
        """``reader`` if it has a plan, else None."""
        return reader if reader is not None and self._plans.get(reader) is not None else None

    def hurry(self, entry: Entry, fetch: Fetch, need: float) -> None:
        """A fetch is needed as soon as ``need`` says, or sooner."""
        if need < fetch.need:
            fetch.need = need
            self._fetcher.hurried(entry.origin)

    def joined(self) -> None:
        """A reader follows a fetch that others asked for."""
        self._events.emit(FetchJoined())

    # Room

    def _demand(self, entry: Entry, index: int) -> Grant[Slice] | None:
        """Room for a segment that is needed now, with victims still to be removed; None: bypass."""
        if not self._disk.usable:
            self._storage.refused("disk")
            return None
        try:
            return self._room.reserve(entry.segments.bytes_of(index))
        except CacheFull:
            self._storage.refused("no-room")
            return None

    def _ahead(self, entry: Entry, index: int, need_at: float | None, reader: Hashable) -> Grant[Slice]:
        """Room for a segment ahead of need. Raises ``CacheFull``."""
        if not self._disk.usable:
            raise CacheFull("the cache disk is failing")
        return self._room.reserve_ahead(entry.segments.bytes_of(index), need_at, reader, (entry.key, index))

    def check_ahead(self, size: int, needed: Urgency) -> None:
        """Raises ``CacheFull`` if ``size`` bytes would get no room ahead of need: then the origin need not be asked."""
        if not self._disk.usable:
            raise CacheFull("the cache disk is failing")
        self._room.admission.check_ahead(size, needed.need_at, needed.reader)
