"""Compares whole shards with the digests that their origins name. Readers of a shard's last segment wait for the result.

Segments arrive in any order. They are hashed in order, read back from the page cache in the store's read threads, so that at the end only
the last one is left. A reader never waits for a segment that is not being fetched. If a segment passed through memory, left before its
turn, or was never requested, the last segment is released at once and the shard counts as unchecked. It is still compared if it completes
later.

A segment that was hashed once and is fetched again must have the same bytes: a reader that reads it before it is stored gets its last bytes
after the comparison. In a cache smaller than its data, this is the only check after the first epoch; without it, readers of other bytes
ended without an error (tried).

If a digest differs, its readers are cut off, the bytes are removed, and the shard is opened again. The second time in a row, its readers
get the error. The index does not claim the last segment before a result, so a kill never turns unchecked bytes into checked ones.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.integrity.segment_reader import Finding, SegmentReader
from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.core.digests import Digest, first_usable
from forebay_proxy.core.errors import DigestDiffers, ShardError, bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DigestChecked, IntegrityFailed
from forebay_proxy.core.shard import Shard
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.transfer.fetches import Fetch, FetchTable

__all__ = ["DigestCheck"]

log = logging.getLogger("forebay")

# Shards hashed at one time. Half the read threads, so that a reader whose bytes left the page cache never waits for digests; and no more
# than there are cores.
AT_ONCE = min(4, os.cpu_count() or 1)
# An origin that must be asked separately (S3) is asked when the body is requested, so its answer is nearly always first. A reader waits
# this long for a late answer: a retried or throttled request is no reason to stop training.
ASKED_S = 1.0
# Answers in a row without a digest after which an origin is not asked again: it keeps none (Ceph, older uploads), and each question is a
# request. A bucket with both kinds is asked on, because an answer with a digest resets the count.
SILENT_AFTER = 4
ORIGINS_MOST = 1024  # remembered; more only if clients invent buckets


class DigestCheck:
    """The digests of all versions: asking, hashing, and the readers that wait. Not thread-safe: used on the event loop alone."""

    def __init__(
        self, *, room: SpaceManager, table: FetchTable, segment_reader: SegmentReader, fetcher: Fetcher, faults: ShardFaults,
        events: Events, tasks: BackgroundTasks, enabled: bool,
    ) -> None:  # fmt: skip
        self._room = room
        self._table = table
        self._segment_reader = segment_reader
        self._fetcher = fetcher
        self._faults = faults
        self._events = events
        self._tasks = tasks
        self._enabled = enabled
        self._waiting: dict[str, Entry] = {}  # entries with a segment that can be hashed
        self._hashing: set[str] = set()
        self._asks: set[asyncio.Task[object]] = set()
        self._silent: dict[str, int] = {}  # by origin: answers in a row without a digest

    def __repr__(self) -> str:
        return f"<DigestCheck {len(self._hashing)} hashing, {len(self._waiting)} waiting, {len(self._asks)} asked for>"

    # Asking the origin

    def begun(self, entry: Entry, shard: Shard) -> None:
        """A fetch for ``entry`` begins. If its origin names digests only on request, ask for it, once per version."""
        trust = entry.trust
        if not self._enabled or shard.url.scheme not in self._fetcher.asked_schemes or not entry.version.identity:
            return
        if trust.digest_state is None and not trust.no_digest and self._silent.get(entry.origin, 0) < SILENT_AFTER:
            trust.digest_state = DigestState(None)
            self._tasks.spawn(self._ask(entry, trust.digest_state, shard), "digest")

    async def _ask(self, entry: Entry, digest_state: DigestState, shard: Shard) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._asks.add(task)
        try:
            offered = await self._fetcher.digests(shard, entry)
            before = self._silent.pop(entry.origin, 0)
            if not offered:
                if len(self._silent) >= ORIGINS_MOST:
                    self._silent.clear()
                self._silent[entry.origin] = before + 1
            self.digests_offered(entry, offered)
        except ShardError as error:
            log.info("shard %s: its digest could not be asked for (%s)", entry.name, error.cause)
        finally:
            self._asks.discard(task)
            if digest_state.expected is None and entry.trust.digest_state is digest_state:
                entry.trust.digest_state, entry.trust.no_digest = None, True
                self._room.claim(entry)
            digest_state.changed.send()

    def digests_offered(self, entry: Entry, offered: tuple[Digest, ...]) -> None:
        """An answer about this version carried digests."""
        digest_state = entry.trust.digest_state
        if not self._enabled or not offered or (digest_state is not None and digest_state.expected is not None):
            return
        digest = first_usable(offered)
        if digest is None:
            if not entry.trust.no_digest:
                entry.trust.no_digest = True
                self._events.emit(DigestChecked(offered[0].algorithm, "unchecked"))
            return
        if digest_state is None:
            entry.trust.digest_state = DigestState(digest)
        else:
            digest_state.expect(digest)
        self.hash_ready(entry)

    def stop(self) -> None:
        """Shutdown: hash and ask for nothing more.

        Segments that were not compared are not claimed, and are fetched after the next start.
        """
        self._enabled = False
        self._waiting.clear()
        for task in self._asks:
            task.cancel()

    # Hashing

    def segment_stored(self, entry: Entry, index: int, checksum: int) -> None:
        """A segment is stored, or a reader has read all of one that was stored before."""
        digest_state = entry.trust.digest_state
        if digest_state is None:
            return
        if digest_state.contradicts(index, checksum) and digest_state.verdict is not DigestVerdict.DIFFERS:
            self._differs(entry, digest_state, f"segment {index} came a second time with other bytes than the first")
            return
        self.hash_ready(entry)

    def hash_ready(self, entry: Entry) -> None:
        """``entry`` has changed: hash the segments that can be hashed, and wake the readers that wait for the digest."""
        digest_state = entry.trust.digest_state
        if digest_state is None:
            return
        if digest_state.verdict is DigestVerdict.PENDING and digest_state.expected is not None:
            if digest_state.next - 1 == entry.last_index:
                self._judge(entry, digest_state)
            elif self._enabled and entry.segments.has(digest_state.next) and entry.key not in self._hashing:
                self._waiting[entry.key] = entry
                self._start()
        digest_state.changed.send()

    def _start(self) -> None:
        """Start the hashing that is needed soonest: first for waiting readers, then for shards being read, then the rest."""
        while self._waiting and len(self._hashing) < AT_ONCE:
            entry = max(
                self._waiting.values(),
                key=lambda entry: (entry.trust.digest_state.waiting if entry.trust.digest_state else 0, entry.in_use.readers),
            )
            del self._waiting[entry.key]
            self._hashing.add(entry.key)
            self._tasks.spawn(self._hash(entry), "hash")

    async def _hash(self, entry: Entry) -> None:
        """Hash the next segment of ``entry``."""
        digest_state, goes_on = entry.trust.digest_state, True
        try:
            if digest_state is not None and digest_state.verdict is DigestVerdict.PENDING and entry.segments.has(digest_state.next):
                goes_on, index = False, digest_state.next
                hasher, value = digest_state.hasher(), entry.segments.sums[index]
                finding = await self._segment_reader.verify(entry, index, "digest", hasher=hasher)
                if finding is Finding.RIGHT:
                    digest_state.took(hasher, value)
                goes_on = finding in (Finding.RIGHT, Finding.GONE) or (finding.removes and not entry.segments.has(index))
        finally:
            self._hashing.discard(entry.key)
            if goes_on:
                self.hash_ready(entry)  # queued again, if it is still needed soonest
            elif digest_state is not None:
                self._give_up(entry, digest_state)  # the disk is slow or failing, or worse: no reader waits for that
            self._start()

    # Results

    def _judge(self, entry: Entry, digest_state: DigestState) -> None:
        computed = digest_state.computed()
        if computed != digest_state.expected:
            self._differs(entry, digest_state, f"the origin's digest is {digest_state.expected}, its bytes have {computed}")
            return
        digest_state.verdict = DigestVerdict.AGREES
        self._faults.trusted(entry.name)
        self._events.emit(DigestChecked(computed.algorithm, "agrees"))
        self._room.claim(entry)

    def _differs(self, entry: Entry, digest_state: DigestState, cause: str) -> None:
        assert digest_state.expected is not None
        digest_state.verdict = DigestVerdict.DIFFERS
        first = self._faults.spoilt(entry.name)
        entry.in_use.fault = DigestDiffers(entry.name, cause, again=not first)
        if not first:
            self._faults.refuse(entry.name, entry.in_use.fault)
        log.error("shard %s: %s; %s", entry.name, cause, "it is fetched once more" if first else "as before: its readers get an error")
        self._events.emit(DigestChecked(digest_state.expected.algorithm, "differs"))
        self._events.emit(IntegrityFailed("origin"))
        self._room.outdated(entry)
        digest_state.changed.send()

    # Readers of the last segment

    def must_wait(self, entry: Entry, index: int) -> bool:
        """Whether a reader must wait before it reads segment ``index``."""
        digest_state = entry.trust.digest_state
        if digest_state is None or index != entry.last_index or entry.in_use.fault is not None:
            return False
        if digest_state.verdict is DigestVerdict.AGREES:  # one that comes again is compared with the first one once it is stored
            return not entry.segments.has(index) and self._comes(entry, index)
        here_or_coming = (entry.segments.has(each) or self._comes(entry, each) for each in range(digest_state.next, index + 1))
        if digest_state.given_up or not all(here_or_coming):
            self._release(entry, digest_state)
            return False
        return True

    def _comes(self, entry: Entry, index: int) -> bool:
        fetch = self._table.find(entry.key, index)
        return fetch is not None and not fetch.bypass and not fetch.done

    def _release(self, entry: Entry, digest_state: DigestState) -> None:
        """Nothing can be compared: release the last segment."""
        if digest_state.closed:
            digest_state.released = True
            self._events.emit(DigestChecked(digest_state.expected.algorithm if digest_state.expected else "unknown", "unchecked"))
            self._room.claim(entry)
            digest_state.changed.send()

    def _give_up(self, entry: Entry, digest_state: DigestState) -> None:
        """Stop waiting for this result."""
        digest_state.given_up = True
        if digest_state.waiting:
            self._release(entry, digest_state)
        digest_state.changed.send()

    async def passed(self, entry: Entry, index: int) -> None:
        """Wait until ``must_wait`` is False."""
        digest_state = entry.trust.digest_state
        assert digest_state is not None

        def waits() -> bool:
            return entry.trust.digest_state is digest_state and self.must_wait(entry, index)

        digest_state.waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASKED_S):
                    while digest_state.expected is None and waits():
                        await digest_state.changed.wait()
            if digest_state.expected is None and entry.trust.digest_state is digest_state:
                self._give_up(entry, digest_state)
            while waits():
                await digest_state.changed.wait()
        finally:
            digest_state.waiting -= 1

    async def compared(self, entry: Entry, index: int, fetch: Fetch) -> None:
        """Wait until a segment that was hashed before, and that ``fetch`` brings, is stored and compared, or will not be stored."""
        digest_state = entry.trust.digest_state
        while digest_state is not None and entry.in_use.fault is None and not (index in fetch.stored or fetch.done):
            await digest_state.changed.wait()

    async def verdict(self, entry: Entry) -> None:
        """Wait until ``entry`` is compared, if that is possible; raises ``DigestDiffers``."""
        last = entry.last_index
        if last is not None and self.must_wait(entry, last):
            await self.passed(entry, last)
        if entry.in_use.fault is not None:
            raise bare(entry.in_use.fault)
