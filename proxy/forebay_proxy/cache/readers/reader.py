"""One reader inside one shard: asks for segments a little ahead of its position, and returns their bytes in order.

Each step finds the source of the bytes at the position. The first line that holds decides, without I/O:

| source | when | what the reader does |
|---|---|---|
| ``ALONE`` | the version cannot be stored, or an origin without Range has sent its one body | fetches a body of its own |
| ``ALONE`` | the stored segment is wrong or unreadable, and the disk cannot remove it now | the same |
| ``STORE`` | the segment is stored | reads the file |
| ``FETCH`` | a fetch brings it | follows its watermark |
| ``ALONE`` | so little of it is wanted that only that is requested (``SparseRange``) | fetches a body of its own |
| ``FETCH`` | it is missing | starts a fetch |

If a fetch meets a failing disk, its reader continues alone to the end of that segment.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack
from enum import Enum
from typing import Protocol, cast

from forebay_proxy.cache.fetching.fetcher import NAMELESS
from forebay_proxy.cache.readers.chunk_reader import (
    FIRST_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    Alone,
    ChunkReader,
    FileStretch,
    ReaderParts,
    RepeatCheck,
)
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import CacheError, DigestDiffers, OriginError, ShardChanged, VersionLost, bare
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.segments import read_ahead_breadth
from forebay_proxy.core.shard import Shard
from forebay_proxy.telemetry.waits import Wait
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["REST_S", "ShardReader"]

# A reader that has taken no byte for this long gives up what it holds: a trainer stopped in a debugger, or in a checkpoint of half an hour,
# must not keep room from others. The reader is not cut off: when it goes on, its segments are still stored, or fetched again. A shorter
# time would take the window from readers that are only slow.
REST_S = 60.0
ATTEMPTS_ALONE = 5  # bodies of its own without a byte of progress before a reader gives up


class ShardReaderHost(Protocol):
    """The cache, as a reader uses it."""

    @property
    def parts(self) -> ReaderParts: ...

    def waiting(self, reading: ShardReader) -> AbstractContextManager[None]: ...

    def breadth(self, entry: Entry, bypassing: bool) -> int: ...

    async def move(self, reading: ShardReader) -> None:
        """Move a reader that was given no byte yet to the shard's next opening."""
        ...


class SegmentSource(Enum):
    """Where the bytes of one segment come from, for one reader."""

    STORE = "store"  # the file
    FETCH = "fetch"  # from a fetch, through the file or memory
    ALONE = "alone"  # a body of its own, passed through


class ShardReader:
    """A reader's right to bytes: its segment, and those after it that it has requested, are leased until it leaves.

    Not thread-safe: used on the event loop alone.
    """

    def __init__(
        self, host: ShardReaderHost, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool, sparse: bool = False
    ) -> None:
        """``opened_here``: the origin was first asked on behalf of this reader. ``sparse``: few bytes are wanted; of a segment that is not
        stored, only the bytes to be read are requested.
        """
        self.shard = shard
        self.reader = reader
        self.entry = entry
        self.outcome = RequestOutcome.HIT
        self.hit_bytes = 0
        self.waited_s = 0.0  # sum of all waits that have ended, including the opening's
        self.wait: Wait | None = None  # the present wait for bytes
        self.epoch: int | None = None  # of its reader's plan, when it opened
        self.position = 0
        self.fetch: Fetch | None = None  # the fetch that it follows
        self.asked_to = -1  # the highest segment requested
        self.segment = -1  # the segment it is in; -1: it must find the source first
        self._host = host
        self._parts = host.parts
        self._opened_here = opened_here
        self._sparse = sparse
        self._first = 0
        self._end: int | None = 0
        self._source = SegmentSource.FETCH  # of the segment it is in
        self._began_at: int | None = None  # the first segment it was in
        self._segments_read = 0
        self._attempts_alone = 0
        self._handed_at: float | None = None  # since when the client has been busy with the last chunk
        self._leased: set[int] = set()
        self._subscribed = ExitStack()
        self._alone: Alone | None = None
        self.chunk_reader = ChunkReader(self._parts, entry)
        self._repeats = RepeatCheck(self._parts.digest_check, entry)

    def __repr__(self) -> str:
        return f"<ShardReader {self.entry.name} at {self.position} of {self._end}, {self.outcome.value}>"

    async def begin(self, first: int, last: int | None) -> RequestOutcome:
        """Request ``first`` to ``last`` (inclusive; None: to the end), and wait until the first byte can be read.

        Returns the outcome as known now; a bypass further on changes it to ``BYPASS``. Raises ``ShardError``.
        """
        self.position = self._first = first
        length = self.entry.shown_version.length
        self._end = length if last is None else last + 1 if length is None else min(length, last + 1)
        if length is not None and first >= length:
            return self.outcome
        index = self._index_of(first)
        alone = self._opened_here or self.entry.segments.has(index) or self._parts.segment_fetches.find(self.entry, index) is None
        self.outcome = _foreseen(self.entry, first, self._end, joins=not alone)
        while True:
            try:
                await self._reach()
                return self.outcome
            except CacheError as error:
                self._go_alone(error)
            except DigestDiffers as error:
                if not error.retryable:
                    raise
                await self._host.move(self)  # it has given out no byte yet, so the second fetch may be used

    def chunks(self) -> AsyncIterator[bytes | memoryview]:
        """The bytes of the range, in order; a chunk is valid until the next is asked for.

        It ends without an error only at the end of the range, or at the proven end of the shard. Raises ``ShardError``.
        """
        return cast(AsyncIterator[bytes | memoryview], self.pieces(None))

    async def pieces(self, stretches: Callable[[], bool] | None) -> AsyncIterator[bytes | memoryview | FileStretch]:
        """As ``chunks``, but bytes in the file may come as a ``FileStretch``, which the caller sends from there.

        The first piece is never a stretch. Bytes that the caller could not send come again in the next piece. ``stretches`` returns whether
        stored bytes shall come as stretches now (that pays with many readers); bytes that a fetch has just written always do. None: no
        stretches at all.
        """
        copied = FIRST_BYTES if stretches is not None else MOST_BYTES
        while self._end is None or self.position < self._end:
            try:
                if not await self._reach():
                    break
                data = await self._next(copied)
                stretch = data if isinstance(data, FileStretch) else None
                if self._alone is not None and not isinstance(data, FileStretch):
                    self._repeats.add(self.segment, self.position, data)
                    self.chunk_reader.check()
                if self._repeats and self._end is not None and self.position + len(data) >= self._end:
                    await self._compared()
            except CacheError as error:
                self._go_alone(error)
                continue
            if stretch is None:
                self._moved(len(data))
            else:
                self._handed_at = time.monotonic()
            yield data
            self._handed_at = None
            copied = stretch.copied if stretch is not None else 0
            if not copied and (stretches is None or not (self._source is SegmentSource.FETCH or stretches())):
                copied = MOST_BYTES
        await self._compared()

    async def aclose(self) -> None:
        """End its own body, if it has one."""
        alone, self._alone = self._alone, None
        if alone is not None:
            await alone.aclose()

    async def _reach(self) -> bool:
        """Make the byte at the position readable; False at the end of a shard of unknown length."""
        while True:
            self.chunk_reader.check()
            index = self._index_of(self.position)
            await self._enter(index)
            if await self._comes():
                await self._await_verdict(index)  # last: the digest is known no later than the first byte
                return True
            if self.entry.version.length is None:
                self._end = self.position
                return False
            self.segment = -1  # its source is exhausted: find another

    async def _comes(self) -> bool:
        """Wait for the byte at the position; False if its source ended without it."""
        if self._alone is not None:
            if self._alone.ready:
                return True
            with self._host.waiting(self):
                comes = await self._alone.comes()
            if not comes:
                await self.aclose()
            return comes
        fetch = self.fetch
        if fetch is None:
            return True
        if fetch.error is not None:
            raise bare(fetch.error)
        if fetch.position > self.position:
            return True
        with self._host.waiting(self):
            return await fetch.grown_beyond(self.position)

    def _moved(self, count: int) -> None:
        """The client has ``count`` more bytes."""
        self.position += count
        if self._source is SegmentSource.STORE:
            self.hit_bytes += count
        self._attempts_alone = 0
        self._handed_at = time.monotonic()

    async def _next(self, copied: int) -> bytes | memoryview | FileStretch:
        """The bytes at the position, which can be read, up to the end of the segment at most.

        ``copied``: the maximum number of bytes to copy into a buffer; 0: they may come as a stretch.
        """
        index, fetch = self.segment, self.fetch
        self._repeats.expect(index, fetch, stored=self._source is SegmentSource.STORE)
        end = self.chunk_reader.end_of(index, self._end)
        if self._alone is not None:
            return self._alone.take(end - self.position)
        if not copied and (fetch is None or not fetch.bypass):
            last = end if fetch is None else min(end, fetch.position)
            if last - self.position >= LEAST_BYTES:
                return FileStretch(
                    self.chunk_reader, index, fetch, self.position, last, moved=self._moved, inside=lambda: self.segment == index,
                    goes_on=fetch is None,
                )  # fmt: skip
        if fetch is not None and fetch.bypass:
            self.outcome = RequestOutcome.BYPASS
        return await self.chunk_reader.read(index, self.position, min(end, self.position + (copied or MOST_BYTES)), fetch)

    async def _await_verdict(self, index: int) -> None:
        """At the last segment, wait until the whole shard is compared with its origin's digest."""
        if self.entry.trust.digest_state is not None and self._parts.digest_check.must_wait(self.entry, index):
            with self._host.waiting(self):
                await self._parts.digest_check.passed(self.entry, index)
        self.chunk_reader.check()

    async def _compared(self) -> None:
        """Before the last bytes: wait until segments that came again, and were read before they were stored, prove to be the same."""
        if self._repeats:
            with self._host.waiting(self):
                await self._repeats.finish()
            self.chunk_reader.check()

    # Sources

    async def _enter(self, index: int) -> None:
        """Enter segment ``index``: choose its source, request the segments after it, and release those before it."""
        if index == self.segment:
            return
        goes_on = self._alone is not None and self._alone.goes_on_at(self.position)
        follows = self.fetch is not None and self.fetch.error is None and self.fetch.first <= self.position < self.fetch.end
        if not goes_on and not follows:
            await self.aclose()
            self._leave_fetch()
            self._arrive(index)  # segments that it has read may leave for the one it needs now
            if self.entry.segments.has(index) and not await self._parts.segment_reader.trusted(self.entry, index):
                self.outcome = RequestOutcome.PARTIAL if self.outcome is RequestOutcome.HIT else self.outcome
            self._turn_to_source(index)
        self._arrive(index)
        if self._began_at is None:
            self._began_at = index
        if self.segment != -1:
            self._segments_read += 1
        self.segment = index
        self._ask_ahead(index)

    def _turn_to_source(self, index: int) -> None:
        """Choose the source by the module's table."""
        entry, fetches = self.entry, self._parts.segment_fetches
        if index in entry.segments.unverified:
            self._read_alone(self._end_of(index))
        elif entry.segments.has(index):
            self._source = SegmentSource.STORE
            entry.segments.unread.discard(index)
        elif (fetch := fetches.find(entry, index)) is not None:
            if not self._opened_here and index > self.asked_to:
                fetches.joined()
            self._follow(fetch)
        elif entry.passes or not entry.ranged:
            self._read_alone(self._end)
        elif self._sparse and fetches.is_sparse(entry, self.position, self._end_of(index)):
            self._read_alone(self._end_of(index), RequestOutcome.RELAYED)
        else:
            self._follow(fetches.launch(entry, index, self.shard, in_part=self._in_part))

    @property
    def _in_part(self) -> bool:
        """Whether the reader leaves before the shard's end."""
        return self._end is not None and self._end != self.entry.version.length

    def _end_of(self, index: int) -> int:
        return self.chunk_reader.end_of(index, self._end)

    def _follow(self, fetch: Fetch) -> None:
        self._source, self.fetch = SegmentSource.FETCH, fetch
        self._parts.segment_fetches.hurry(self.entry, fetch, 0.0)
        self._subscribed.enter_context(fetch.subscribed())
        if fetch.bypass:
            self.outcome = RequestOutcome.BYPASS

    def _read_alone(self, end: int | None, outcome: RequestOutcome = RequestOutcome.BYPASS) -> None:
        """Fetch a body of its own, to ``end`` (exclusive; None: the shard's end)."""
        if self.position > self._first and not self.entry.version.identity:
            raise VersionLost(self.entry.name, NAMELESS)
        self._source, self.outcome = SegmentSource.ALONE, outcome
        sparse = outcome is RequestOutcome.RELAYED
        pieces = self._parts.segment_fetches.alone(self.entry, self.position, end, self.shard, sparse=sparse)
        self._alone = Alone(pieces, self._parts.buffers.readers.unit_bytes, end)

    def _go_alone(self, error: CacheError) -> None:
        """Continue alone, because the segment's source cannot serve this reader any further."""
        self._attempts_alone += 1
        if self._attempts_alone > ATTEMPTS_ALONE:
            raise OriginError(self.entry.name, f"no byte beyond {self.position} arrived in {ATTEMPTS_ALONE} attempts") from error
        self._leave_fetch()
        index = self._index_of(self.position)
        self._read_alone(self._end_of(index) if self.entry.ranged and not self.entry.passes else self._end)
        self.segment = index

    def _ask_ahead(self, index: int) -> None:
        """Request as many segments after ``index`` as are useful, until there is no room."""
        if self._sparse or not self.entry.ranged or self.entry.passes or self._end is None:
            return
        passes_by = self._source is SegmentSource.ALONE or (self.fetch is not None and self.fetch.bypass)
        breadth = read_ahead_breadth(self.entry.segments, self._segments_read, lambda: self._host.breadth(self.entry, passes_by))
        fetches = self._parts.segment_fetches
        for ahead in range(index + 1, min(self._index_of(self._end - 1), index + breadth - 1) + 1):
            if self.entry.segments.has(ahead):
                self._parts.segment_reader.foresee(self.entry, ahead)
            elif (fetch := fetches.find(self.entry, ahead)) is not None:
                fetches.hurry(self.entry, fetch, float(ahead - index))
            elif not fetches.launch_ahead(self.entry, ahead, self.shard, float(ahead - index), self.reader, in_part=self._in_part):
                return
            self._lease(ahead)
            self.asked_to = ahead

    # Leases

    def _lease(self, index: int) -> None:
        if index not in self._leased:
            self._leased.add(index)
            self._parts.room.lease(self.entry, index)

    def _release(self, index: int) -> None:
        self._leased.discard(index)
        self._parts.room.release(self.entry, index)

    def _arrive(self, index: int) -> None:
        """The reader is in segment ``index`` now: release those before it."""
        self._lease(index)
        for passed in [held for held in self._leased if held < index]:
            self._release(passed)

    def _leave_fetch(self) -> None:
        self.fetch = None
        self._subscribed.close()

    def give_up(self) -> None:
        """Release everything. Its fetches go on; the next step finds the source again."""
        self._leave_fetch()
        self.asked_to = self.segment = -1
        for index in list(self._leased):
            self._release(index)

    def _index_of(self, position: int) -> int:
        return self.entry.segments.layout.index_of(position)

    # Calls from other parts

    @property
    def entered(self) -> tuple[int, int] | None:
        """The first and the last segment that this reader has been in; None before its first one."""
        if self._began_at is None:
            return None
        return self._began_at, max(self._began_at, self.segment, self._index_of(max(0, self.position - 1)))

    def has_all(self) -> None:
        """The reader has a descriptor of the whole shard: all of it counts as read from the store."""
        length, last = self.entry.shown_version.length or 0, self.entry.last_index or 0
        self._began_at, self.segment = 0, last
        self.position = self._end = self.hit_bytes = length

    def ask_again(self) -> None:
        """Request the next segment of this shard again, as there may be room now: the reader needs it before any other shard."""
        last = -1 if self._end is None else self._index_of(self._end - 1)
        if self.segment >= 0 and self.asked_to <= self.segment < last:
            self._ask_ahead(self.segment)

    def rests(self, now: float) -> bool:
        """Whether the client has taken nothing for ``REST_S`` (``now`` is monotonic). If so, everything is released until it goes on."""
        if self._handed_at is None or now - self._handed_at < REST_S:
            return False
        self.give_up()
        return True

    def moved_to(self, entry: Entry, *, opened_here: bool) -> None:
        """Start again in ``entry``, a new entry of the same version. Raises ``ShardChanged`` if it is another version."""
        if entry.version.identity != self.entry.version.identity or entry.version.length != self.entry.version.length:
            raise ShardChanged(entry.name, "the origin has another version now")
        self.give_up()
        self.entry, self._opened_here = entry, opened_here
        self.chunk_reader, self._repeats = ChunkReader(self._parts, entry), RepeatCheck(self._parts.digest_check, entry)


def _foreseen(entry: Entry, position: int, end: int | None, *, joins: bool) -> RequestOutcome:
    """The expected outcome for ``position`` to ``end`` (exclusive; None: unknown), from the stored segments.

    ``joins``: a fetch that others started brings the first of them.
    """
    layout = entry.segments.layout
    first = layout.index_of(position)
    last = first if end is None else layout.index_of(end - 1)
    stored = entry.segments.sums.count_within(first, last + 1)
    if stored == last + 1 - first and end is not None:
        return RequestOutcome.HIT
    if stored:
        return RequestOutcome.PARTIAL
    return RequestOutcome.COLLAPSED if joins else RequestOutcome.MISS
