"""Compares whole shards with the digests their origins offer.

Segments land in any order and are hashed in theirs, each as soon as those before it are: read back from the page cache, in the store's read
threads, so that at the end only the last of them is left. A reader of the end waits meanwhile at the ``DigestGate``. What is completed
after it was released is compared all the same.

A digest that differs ends the version: readers inside are cut off, its bytes go, and the shard is opened anew. The second time in a row its
readers get the error. Until a verdict the index does not claim the last segment, so a kill in between turns no unchecked bytes into checked
ones.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import logging
import os

from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.integrity.digest_questions import AskableOrigins, DigestQuestions
from forebay_proxy.cache.integrity.segment_check import Finding, SegmentCheck
from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import VersionRefuted
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.core.digests import Digest, first_usable
from forebay_proxy.core.errors import DigestDiffers
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DigestChecked, IntegrityFailed
from forebay_proxy.core.tasks import BackgroundTasks

__all__ = ["DigestCheck"]

log = logging.getLogger("forebay")

# Shards hashed at one time. Half the read threads, so that a reader whose bytes left the page cache never queues behind digests; no more
# than there are cores, or they only slow each other down.
AT_ONCE = min(4, os.cpu_count() or 1)


class DigestCheck:
    """The seals of all versions, and the hashing that opens them."""

    def __init__(
        self, *, room: SpaceManager, gate: DigestGate, segment_check: SegmentCheck, asking: AskableOrigins, faults: ShardFaults,
        events: Events, tasks: BackgroundTasks,
        enabled: bool = True,
    ) -> None:  # fmt: skip
        self._room = room
        self._gate = gate
        self._segment_check = segment_check
        self._faults = faults
        self._events = events
        self._tasks = tasks
        self._enabled = enabled
        self._waiting: dict[str, Entry] = {}  # something of them can be hashed
        self._hashing: set[str] = set()
        self.questions = DigestQuestions(asking, room, tasks, self.digests_offered, enabled=enabled)

    def __repr__(self) -> str:
        return f"<DigestCheck {len(self._hashing)} hashing, {len(self._waiting)} waiting>"

    # What the origin says

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
        """Shutdown: nothing more is hashed or asked for. Segments not compared are not claimed, and fetched at the next start."""
        self._enabled = False
        self._waiting.clear()
        self.questions.stop()

    # What has come

    def segment_stored(self, entry: Entry, index: int, checksum: int) -> None:
        """A segment is stored, or a reader had all of one that had been here before."""
        digest_state = entry.trust.digest_state
        if digest_state is None:
            return
        if digest_state.contradicts(index, checksum) and digest_state.verdict is not DigestVerdict.DIFFERS:
            self._differs(entry, digest_state, f"segment {index} came a second time with other bytes than the first")
            return
        self.hash_ready(entry)

    def hash_ready(self, entry: Entry) -> None:
        """Something about ``entry`` changed: hash the segments that can be hashed, and wake the readers that wait for the digest."""
        digest_state = entry.trust.digest_state
        if digest_state is None:
            return
        if digest_state.verdict is DigestVerdict.PENDING and digest_state.expected is not None:
            if self._is_whole(entry, digest_state):
                self._judge(entry, digest_state)
            elif self._enabled and entry.segments.has(digest_state.next) and entry.key not in self._hashing:
                self._waiting[entry.key] = entry
                self._start()
        digest_state.changed.send()

    @staticmethod
    def _is_whole(entry: Entry, digest_state: DigestState) -> bool:
        length = entry.version.length
        return length is not None and digest_state.next == entry.segments.layout.count(length)

    def _start(self) -> None:
        """Begin the hashing that is needed soonest: readers at the gate, then shards that are being read, then the rest."""
        while self._waiting and len(self._hashing) < AT_ONCE:
            entry = max(
                self._waiting.values(),
                key=lambda entry: (entry.trust.digest_state.waiting if entry.trust.digest_state else 0, entry.in_use.readers),
            )
            del self._waiting[entry.key]
            self._hashing.add(entry.key)
            self._tasks.spawn(self._hash(entry), "hash")

    async def _hash(self, entry: Entry) -> None:
        """The next segment of ``entry``."""
        digest_state, goes_on = entry.trust.digest_state, True
        try:
            if digest_state is not None and digest_state.verdict is DigestVerdict.PENDING and entry.segments.has(digest_state.next):
                goes_on = False
                goes_on = await self._hash_next(entry, digest_state)
        finally:
            self._hashing.discard(entry.key)
            if goes_on:
                self.hash_ready(entry)  # in line again, should it still be the one that is needed soonest
            elif digest_state is not None:
                self._gate.give_up(entry, digest_state)  # the disk is slow or failing, or worse: no reader waits for that
            self._start()

    async def _hash_next(self, entry: Entry, digest_state: DigestState) -> bool:
        """Whether looking again can lead on."""
        index = digest_state.next
        hasher, value = digest_state.hasher(), entry.segments.sums[index]
        finding = await self._segment_check.verify(entry, index, "digest", hasher=hasher)
        if finding is Finding.RIGHT:
            digest_state.took(hasher, value)
        return finding in (Finding.RIGHT, Finding.GONE) or (finding.removes and not entry.segments.has(index))

    # How it comes out

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
        self._events.emit(VersionRefuted(entry))
        digest_state.changed.send()
