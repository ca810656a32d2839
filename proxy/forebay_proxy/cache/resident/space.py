"""The cached entries and the bytes they take. ``AdmissionPolicy`` decides what gets room and what leaves.

Everything here is synchronous. ``reserve`` and ``vacate`` take segments out of use at once: no reader finds them any more, and their claim
is withdrawn, but their bytes are still on the disk. ``Reclaimer`` removes the bytes, and reports in ``removal_ended`` whether they are
gone.

The overhead is counted too: index, lock, directories, and the file system's own blocks of shard files. Leased segments do not leave.

It owns the ledger. Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, EntryLeft, SegmentGone, VersionOutdated
from forebay_proxy.core.events import Events, Fact
from forebay_proxy.core.facts.cache import Evicted
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import OVERHEAD_STEP_BYTES, Grant, Ledger, Victim
from forebay_proxy.policy.plans.registry import PlanRegistry, Rank
from forebay_proxy.store.index.row import commit_bytes
from forebay_proxy.store.store import Store

__all__ = ["Slice", "SpaceManager"]

Slice = tuple[Entry, tuple[int, ...]]  # segments of one entry that leave together
STUCK_S = 10.0  # seconds before the next try to remove something that could not be removed


class SpaceManager:
    """The cached shards and their bytes."""

    def __init__(self, ledger: Ledger[Slice], store: Store, plans: PlanRegistry, events: Events, clock: Callable[[], float]) -> None:
        self.layout = store.layout  # of every cached shard
        self.admission: AdmissionPolicy[Entry] = AdmissionPolicy(ledger, plans, clock, lambda: store.abilities.punch, events)
        self.ledger = ledger
        self.candidates = self.admission.candidates
        self.entries = self.candidates.entries
        self.read_ahead = self.admission.read_ahead
        self._beyond_bytes = 0  # bytes that all files together hold beyond their segments
        self._ahead_bytes = 0  # bytes that one commit may add
        self.leased_segments = 0  # by readers
        self._plans = plans
        self._store = store
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SpaceManager {self.ledger!r}, {len(self.entries)} shards>"

    # Room

    def reserve(self, size: int) -> Grant[Slice]:
        """Room for a segment that a reader waits for: everything that is not leased may leave for it. Raises ``CacheFull``."""
        return self._begun(self.admission.reserve(size))

    def reserve_ahead(
        self, size: int, need_at: float | None, reader: Hashable, place: tuple[str, int] | None = None, *, inside: bool = False
    ) -> Grant[Slice]:
        """As ``AdmissionPolicy.reserve_ahead``. Raises ``CacheFull``."""
        return self._begun(self.admission.reserve_ahead(size, need_at, reader, place, inside=inside))

    def _begun(self, grant: Grant[Slice]) -> Grant[Slice]:
        self._doom(victim.subject for victim in grant.victims)
        return grant

    # Leases of readers; ``FdLender`` has those of passed descriptors

    def lease(self, entry: Entry, index: int) -> None:
        """Lease the segment once more."""
        if index not in entry.segments.leases:
            self.leased_segments += 1
        entry.segments.lease(index)

    def release(self, entry: Entry, index: int) -> None:
        """End one lease of the segment."""
        entry.segments.release(index)
        if index not in entry.segments.leases:
            self.leased_segments -= 1
            if index not in entry.segments.unread:
                self.read_ahead.end(entry.key, index)  # read to its end, or abandoned: only now may others have its room
        self.candidates.touch(entry)  # segments that its readers have passed may leave
        self.changed()

    @contextmanager
    def holding(self, entry: Entry, index: int) -> Iterator[None]:
        """Keep a segment from leaving within the ``with``, without being its reader."""
        self.lease(entry, index)
        try:
            yield
        finally:
            self.release(entry, index)
            self.left(entry)

    # Removal

    def vacate(self, victims: Sequence[Victim[Slice]], reason: str = "") -> None:
        """Take segments out of use for another reason than a grant. ``reason`` is the label for metrics; "" to derive it from the plans."""
        self.ledger.doom(sum(victim.bytes for victim in victims))
        self._doom((victim.subject for victim in victims), reason)

    def _doom(self, slices: Iterable[Slice], given: str = "") -> None:
        now = self._clock()
        for entry, indices in slices:
            rank = self.candidates.use_of(entry).rank
            known = given or ("stale" if entry.in_use.stale else "plan" if rank in (Rank.AHEAD, Rank.LATER) else "")
            for index in indices:
                entry.in_use.leaving[index] = asyncio.get_running_loop().create_future()
                entry.in_use.departing[index] = entry.segments.sums[index]
                age_s = now - entry.stored.stored_at.get(index, now)
                used = index not in entry.segments.unread
                reason = known or ("guess" if used or rank > Rank.READ else "unused")
                self._events.emit(Evicted(entry.segments.bytes_of(index), reason, age_s, used))
                self._leave(entry, index)
            self.claim(entry)
            self.candidates.touch(entry)

    def _leave(self, entry: Entry, index: int) -> None:
        entry.segments.leave(index)
        entry.stored.stored_at.pop(index, None)
        self.read_ahead.end(entry.key, index)
        self._events.emit(SegmentGone(entry.name))

    def removal_ended(self, entry: Entry, indices: Sequence[int], *, removed: bool) -> None:
        """The removal of segments has ended: they are gone, or stored as before but unverified."""
        for index in indices:
            value = entry.in_use.departing.pop(index, None)
            if not removed and value is not None:
                entry.segments.land(index, value)
                entry.segments.unread.discard(index)
                entry.segments.unverified.add(index)
            entry.in_use.leaving.pop(index).set_result(None)
        if not removed:
            entry.in_use.stuck_until = self._clock() + STUCK_S
            self.claim(entry)
        self.candidates.touch(entry)

    def lost(self, entry: Entry) -> None:
        """Another program deleted the file: no segment of it is left."""
        for index in list(entry.segments.stored()):
            size = entry.segments.bytes_of(index)
            self.ledger.doom(size)
            self.ledger.gone(size)
            self._leave(entry, index)
        self.without_file(entry)
        self.claim(entry)
        self.candidates.touch(entry)

    def without_file(self, entry: Entry) -> None:
        """The entry's file is gone, or was given up."""
        entry.stored.removed()
        self._weigh(entry, 0)

    def forget(self, entry: Entry) -> None:
        """Forget ``entry``, of which nothing is left."""
        del self.entries[entry.key]
        self.candidates.touch(entry)

    # Arrival

    def found(self, entry: Entry, allocated_bytes: int) -> None:
        """At the start: add a shard that an earlier process stored, whose file holds ``allocated_bytes``."""
        self.entries[entry.key] = entry
        self._expect(entry)
        entry.stored.charged_bytes = self.layout.stored_bytes(entry.segments.sums, entry.segments.length)
        self._weigh(entry, allocated_bytes)
        self.ledger.found(entry.stored.charged_bytes)
        self.candidates.touch(entry)

    def tidied(self, key: str, allocated_bytes: int) -> None:
        """Garbage in a file was freed: it holds less than was found."""
        entry = self.entries.get(key)
        if entry is not None:
            self._weigh(entry, allocated_bytes)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice]) -> None:
        """A segment is complete on the disk: the grant's bytes count as stored."""
        entry.stored.writing.discard(index)
        self.ledger.commit(grant)
        entry.segments.land(index, checksum)
        entry.stored.stored_at[index] = self._clock()
        self.claim(entry)
        self.candidates.touch(entry)
        if entry.stored.file is not None:
            self._weigh(entry, entry.stored.file.allocated_bytes())

    def outdated(self, entry: Entry) -> None:
        """The origin has another version now, or this one cannot be completed: it serves the readers inside, and leaves."""
        if not entry.in_use.stale:
            entry.in_use.stale = True
            self._events.emit(VersionOutdated(entry))
            self.claim(entry)
            self.left(entry)

    def left(self, entry: Entry) -> None:
        """A reader or a fetch has left ``entry``; ``SegmentStorage`` handles what follows for the version."""
        self.candidates.touch(entry)
        if entry.trust.digest_state is not None or entry.in_use.stale or entry.is_empty:
            self._events.emit(EntryLeft(entry))
        self.changed()

    def changed(self) -> None:
        """A segment was stored, evicted or read. Only readers with a plan have refused requests that are repeated."""
        if len(self._plans):
            self._events.emit(CacheChanged())

    # Index rows

    def claim(self, entry: Entry) -> None:
        """Write to the index what is stored of ``entry`` now."""
        self._expect(entry)
        if entry.durable and entry.segments.stored_count:
            self._store.index_writer.put(entry.row(self._store.boot_id))
            entry.stored.claimed = True
        elif entry.stored.claimed:
            self._store.index_writer.drop(entry.key)
            entry.stored.claimed = False

    # Overhead. The store measures index and folders in the index's thread, after each commit: a disk may hang.

    def _weigh(self, entry: Entry, allocated_bytes: int) -> None:
        """``entry``'s file holds ``allocated_bytes``: beyond its segments, blocks of the file system and failed punches."""
        beyond = max(0, allocated_bytes - entry.stored.charged_bytes)
        self._beyond_bytes += beyond - entry.stored.beyond_bytes
        entry.stored.beyond_bytes = beyond

    def _expect(self, entry: Entry) -> None:
        """A row of ``entry`` will be committed, now or later: set aside room for the longest row so far.

        Otherwise the row would be on the disk before a segment has left for it. A body without Range is claimed all at once, so each
        segment counts when it is stored. The room is not reduced when the shard leaves.
        """
        most = commit_bytes(entry.segments.stored_count)
        if most > self._ahead_bytes:
            before, self._ahead_bytes = self._ahead_bytes, most
            if most // OVERHEAD_STEP_BYTES > before // OVERHEAD_STEP_BYTES:
                self.measure_overhead()

    def measure_overhead(self, _: Fact | None = None) -> None:
        """Report the overhead to the ledger: index, lock and directories after the last commit, bytes that files hold beyond their
        segments, and what the next commit may add.
        """
        held_bytes = self._store.overhead_bytes + self._beyond_bytes
        self.ledger.measured_overhead(held_bytes, self._store.sweeping.garbage_bytes, self._ahead_bytes)
