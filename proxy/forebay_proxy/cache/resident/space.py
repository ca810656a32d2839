"""The entries that are here, and the bytes they take. ``AdmissionPolicy`` decides what gets room and what leaves.

Everything here is synchronous. ``reserve`` and ``vacate`` take segments out of use at once: no reader finds them any more, their claim is
withdrawn, their bytes are still there. ``Reclaimer`` removes the bytes, and ``removal_ended`` says how that came out: gone, or back.

Beside the shards stands what the cache directory holds beyond them: index, lock, directories, and the file system's own
blocks of shard files. What readers hold does not leave.

Owner of the ledger. Not thread-safe: the event loop's only.
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
STUCK_S = 10.0  # how long what could not be removed is left alone


class SpaceManager:
    """The shards that are here, and the bytes they have."""

    def __init__(self, ledger: Ledger[Slice], store: Store, plans: PlanRegistry, events: Events, clock: Callable[[], float]) -> None:
        self.layout = store.layout  # of every shard here
        self.admission: AdmissionPolicy[Entry] = AdmissionPolicy(ledger, plans, clock, lambda: store.abilities.punch, events)
        self.ledger = ledger
        self.candidates = self.admission.candidates
        self.entries = self.candidates.entries
        self.read_ahead = self.admission.read_ahead
        self._beyond_bytes = 0  # that all files together hold beyond their segments
        self._ahead_bytes = 0  # what one commit may add
        self.leased_segments = 0  # by readers
        self._plans = plans
        self._store = store
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SpaceManager {self.ledger!r}, {len(self.entries)} shards>"

    # Who gets room

    def reserve(self, size: int) -> Grant[Slice]:
        """Room for a demanded segment: whatever is not leased may leave for it. Raises ``CacheFull``."""
        return self._begun(self.admission.reserve(size))

    def reserve_ahead(
        self, size: int, need_at: float | None, reader: Hashable, place: tuple[str, int] | None = None, *, inside: bool = False
    ) -> Grant[Slice]:
        """As ``AdmissionPolicy.reserve_ahead``. Raises ``CacheFull``."""
        return self._begun(self.admission.reserve_ahead(size, need_at, reader, place, inside=inside))

    def _begun(self, grant: Grant[Slice]) -> Grant[Slice]:
        self._doom(victim.subject for victim in grant.victims)
        return grant

    # What readers hold; what passed descriptors hold is ``FdLender``'s

    def lease(self, entry: Entry, index: int) -> None:
        """One more holds the segment."""
        if index not in entry.segments.leases:
            self.leased_segments += 1
        entry.segments.lease(index)

    def release(self, entry: Entry, index: int) -> None:
        """One lease of the segment ends."""
        entry.segments.release(index)
        if index not in entry.segments.leases:
            self.leased_segments -= 1
            if index not in entry.segments.unread:
                self.read_ahead.end(entry.key, index)  # read to its end, or left: only now is its room anybody's
        self.candidates.touch(entry)  # what its readers have behind them may leave
        self.changed()

    @contextmanager
    def holding(self, entry: Entry, index: int) -> Iterator[None]:
        """Keep a segment from leaving for the length of the ``with``, without being its reader."""
        self.lease(entry, index)
        try:
            yield
        finally:
            self.release(entry, index)
            self.left(entry)

    # Who leaves

    def vacate(self, victims: Sequence[Victim[Slice]], reason: str = "") -> None:
        """Take segments out of use for another reason than a grant: ``reason``, as metrics name it, or what plans say of them."""
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
        """The end of what was taken out of use: segments are gone, or here as before but not to be trusted unseen."""
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
        """Another program deleted the file: no segment of it is here."""
        for index in list(entry.segments.stored()):
            size = entry.segments.bytes_of(index)
            self.ledger.doom(size)
            self.ledger.gone(size)
            self._leave(entry, index)
        self.without_file(entry)
        self.claim(entry)
        self.candidates.touch(entry)

    def without_file(self, entry: Entry) -> None:
        """The entry's file is gone, or is nobody's any more."""
        entry.stored.removed()
        self._weigh(entry, 0)

    def forget(self, entry: Entry) -> None:
        """Nothing of ``entry`` is left."""
        del self.entries[entry.key]
        self.candidates.touch(entry)

    # Who comes

    def found(self, entry: Entry, allocated_bytes: int) -> None:
        """At the start: a shard an earlier process stored, whose file holds ``allocated_bytes``."""
        self.entries[entry.key] = entry
        self._expect(entry)
        entry.stored.charged_bytes = self.layout.stored_bytes(entry.segments.sums, entry.segments.length)
        self._weigh(entry, allocated_bytes)
        self.ledger.found(entry.stored.charged_bytes)
        self.candidates.touch(entry)

    def tidied(self, key: str, allocated_bytes: int) -> None:
        """The start's leftovers in a file are gone: it holds less than was found."""
        entry = self.entries.get(key)
        if entry is not None:
            self._weigh(entry, allocated_bytes)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice]) -> None:
        """A segment is whole on the disk: the grant's bytes are stored ones."""
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
        """A reader or a fetch is gone from ``entry``; what may follow for the version is ``SegmentStorage``'s."""
        self.candidates.touch(entry)
        if entry.trust.digest_state is not None or entry.in_use.stale or entry.is_empty:
            self._events.emit(EntryLeft(entry))
        self.changed()

    def changed(self) -> None:
        """A segment was stored, evicted or read. Only requests for readers with a plan are refused room and made again."""
        if len(self._plans):
            self._events.emit(CacheChanged())

    # What the index says of it

    def claim(self, entry: Entry) -> None:
        """Let the index say what is here of ``entry`` now."""
        self._expect(entry)
        if entry.durable and entry.segments.stored_count:
            self._store.index_writer.put(entry.row(self._store.boot_id))
            entry.stored.claimed = True
        elif entry.stored.claimed:
            self._store.index_writer.drop(entry.key)
            entry.stored.claimed = False

    # What no stored segment holds. The store measures index and folders in the index's thread, after each commit: a disk may hang.

    def _weigh(self, entry: Entry, allocated_bytes: int) -> None:
        """``entry``'s file holds ``allocated_bytes``: beyond its segments there are blocks of the file system's own tree, and what could
        not be punched.
        """
        beyond = max(0, allocated_bytes - entry.stored.charged_bytes)
        self._beyond_bytes += beyond - entry.stored.beyond_bytes
        entry.stored.beyond_bytes = beyond

    def _expect(self, entry: Entry) -> None:
        """A row of ``entry`` will be committed, now or once it is durable: set room aside for the longest there has been.

        Room that is set aside too late is on the disk before any segment left for it, and a body without Range is claimed all at once. So
        each segment counts as it is stored; none is taken back when its shard leaves.
        """
        most = commit_bytes(entry.segments.stored_count)
        if most > self._ahead_bytes:
            before, self._ahead_bytes = self._ahead_bytes, most
            if most // OVERHEAD_STEP_BYTES > before // OVERHEAD_STEP_BYTES:
                self.measure_overhead()

    def measure_overhead(self, _: Fact | None = None) -> None:
        """Tell the ledger what index, lock and directories held after the last commit, what files hold beyond their segments, and what
        the next commit may add.
        """
        held_bytes = self._store.overhead_bytes + self._beyond_bytes
        self.ledger.measured_overhead(held_bytes, self._store.sweeping.garbage_bytes, self._ahead_bytes)
