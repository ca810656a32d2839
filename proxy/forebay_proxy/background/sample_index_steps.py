"""Reads a shard's tar headers step by step, for its sample index: bounded in time, in memory and in what it asks of the disk.

A hostile tar can hold millions of members, chains of extended headers, names of a gigabyte. A step ends after ``STEP_S`` at the next
member; between two of them comes a pause, and the work may be given up. ``SampleIndexSteps`` runs in a thread, one step at a time, and
holds no descriptor; ``SampleIndexReader`` has it run, on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.errors import IndexNotYet, NoIndex
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, compression_of, not_a_tar
from forebay_proxy.wire.tar.header import BadTar
from forebay_proxy.wire.tar.sample_index import IndexBuilder, NotIndexable, encode
from forebay_proxy.wire.tar.scan import scan

__all__ = ["SampleIndexReader", "SampleIndexSteps", "check_indexable", "index_not_yet", "no_index"]

# The interpreter is the event loop's too: it gets it back at each read, and for good after this. Shorter costs more in handing over.
STEP_S = 0.002
LOOK_EVERY = 16  # members between two looks at the clock
MOST_READS = 1 << 12  # for one member: a chain of headers about the next one, or a gigabyte of zeros behind the end
MOST_READ_BYTES = 1 << 20  # what ``Walk`` compares at a time
MOST_MEMBER_S = 2.0  # of the processor, in one step: what these headers say may take longer to read than they take to come
MOST_TIME_S = 120.0  # of work: a million members take ten
AHEAD_PAUSE = 19.0  # pauses in units of the work before, while the sidecar is busy: 5 % of a core
ASKED_PAUSE = 2.0
MOST_PAUSE_S = 1.0


class SampleIndexSteps:
    """``step`` until it says that it is done, then ``encoded``. Both raise ``NotIndexable``, and ``OSError`` of the disk."""

    def __init__(self, length: int) -> None:
        self.worked_s = 0.0
        self._length = length
        self._fd = -1
        self._reads = 0
        self._until_s = 0.0  # of the processor's time
        self._builder = IndexBuilder()
        self._members = scan(self._read, length)

    def step(self, fd: int) -> bool:
        """Go on for ``STEP_S`` in the file ``fd``, which holds the shard. True: that was all of it."""
        self._fd = fd
        began = time.perf_counter()
        self._until_s = time.thread_time() + MOST_MEMBER_S
        try:
            return self._add_members(began + STEP_S)
        except BadTar as bad:
            raise NotIndexable(self._described(bad)) from None
        finally:
            self._fd = -1
            self.worked_s += time.perf_counter() - began

    def encoded(self) -> bytes:
        """The index, when ``step`` has said that it is done."""
        return encode(self._builder.finished(self._length))

    def _add_members(self, until: float) -> bool:
        if self.worked_s > MOST_TIME_S:
            raise NotIndexable(f"its {len(self._builder)} files so far took {MOST_TIME_S:g} s to read")
        for count, member in enumerate(self._members, 1):
            self._builder.add(*member)
            self._reads = 0
            if count % LOOK_EVERY == 0 and time.perf_counter() > until:
                return False
        return True

    def _read(self, offset: int, size: int) -> bytes:
        self._reads += 1
        if size > MOST_READ_BYTES or self._reads > MOST_READS or time.thread_time() > self._until_s:
            raise NotIndexable(f"a header of its tar is longer than {MOST_READ_BYTES} bytes, or too many of them tell about one file")
        return os.pread(self._fd, size, offset)

    def _described(self, bad: BadTar) -> str:
        if bad.kind != "start":
            return f"its tar is not well formed: {bad}, at byte {bad.at}"
        beginning = os.pread(self._fd, LOOK_BYTES, 0)
        packed = compression_of(beginning)
        return f"it is not a plain tar ({packed})" if packed else f"it is {not_a_tar(bad, beginning)}"


class SampleIndexReader:
    """Reads what is here of one complete shard at a time, step by step. Not thread-safe: the event loop's only."""

    def __init__(self, cache: ShardCache) -> None:
        self._cache = cache
        self._asking = 0  # how many clients wait for an index
        self._stopped = asyncio.Event()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """A client waits, for the length of the ``with``: the pauses are shorter."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def stop(self) -> None:
        """Everything is coming down: what is being read ends unfinished."""
        self._stopped.set()

    async def read(self, entry: Entry) -> bytes:
        """The encoded index of ``entry``. Raises ``NotIndexable``, ``IndexNotYet``, ``NoIndex``, and ``CacheError`` of the disk."""
        check_indexable(entry)
        for index in sorted(entry.segments.unverified):
            if not await self._cache.parts.segment_reader.trusted(entry, index):
                raise index_not_yet(entry, "a part of it was not what had been stored")
        landed, steps = dict(entry.stored.stored_at), SampleIndexSteps(entry.version.length or 0)
        done = False
        try:
            while not done:
                before_s = steps.worked_s
                file = entry.stored.file or await self._cache.parts.segment_reader.stored(entry)
                done = await file.inspect(steps.step)
                check_indexable(entry)
                await self._pause(steps.worked_s - before_s)
        except NotIndexable:
            _unchanged(entry, landed)  # what was read may have been a hole, and no fault of the tar
            raise
        _unchanged(entry, landed)
        return await file.inspect(lambda _: steps.encoded())

    async def _pause(self, worked_s: float) -> None:
        if self._stopped.is_set():
            raise asyncio.CancelledError
        busy = bool(self._cache.fetches) or len(self._cache.readers) > self._asking
        factor = (ASKED_PAUSE if self._asking else AHEAD_PAUSE) if busy else 0.0
        with suppress(TimeoutError):
            async with asyncio.timeout(min(MOST_PAUSE_S, factor * worked_s)):
                await self._stopped.wait()


def check_indexable(entry: Entry) -> None:
    """Raises ``IndexNotYet``, ``NoIndex``: what is here of ``entry`` cannot be indexed."""
    if entry.version.encoding:
        raise no_index(entry, f"it has the encoding {entry.version.encoding[:40]!r}")
    if entry.in_use.stale or not entry.segments.complete:
        raise index_not_yet(entry, f"{entry.segments.stored_count} of its {entry.segments.count or 'unknown'} segments are here")
    if not entry.version.length:
        raise no_index(entry, "it is empty")
    if entry.trust.digest_pending or entry.in_use.fault is not None:
        raise index_not_yet(entry, "it is still being compared with its digest")


def _unchanged(entry: Entry, landed: dict[int, float]) -> None:
    """Raises ``IndexNotYet``: not all that was read had been there all the time."""
    check_indexable(entry)
    if entry.stored.stored_at != landed:
        raise index_not_yet(entry, "a part of it left, and came again, while its headers were read")


def no_index(entry: Entry, cause: str) -> NoIndex:
    """What a client is told of a shard that can have none."""
    return NoIndex(entry.name, f"it has no sample index: {cause}", next_step="read it from its start; only whole, plain tars have one")


def index_not_yet(entry: Entry, cause: str) -> IndexNotYet:
    """What a client is told of a shard that may have one later."""
    step = "read it first, or 'forebay index' its URL, and ask again"
    return IndexNotYet(entry.name, f"its sample index is made once all of it is here: {cause}", next_step=step)
