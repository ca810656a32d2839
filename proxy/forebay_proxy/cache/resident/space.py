"""Who may have disk, and who gives it up: keeps the books of what is here. ``AdmissionPolicy`` decides.

Everything here is synchronous. ``reserve`` and ``vacate`` take segments out of use at once: nobody finds them any more, their claim is
withdrawn, their bytes are still there. ``Clearing`` removes the bytes, and ``parted`` ends what was begun: they are gone, or back.

Owner of the ledger. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentGone
from forebay_proxy.cache.resident.overhead import Overhead
from forebay_proxy.core import events
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import stored_bytes
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim
from forebay_proxy.policy.plans.next_use import NextUse, Rank
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.store import Store

__all__ = ["Slice", "SpaceManager"]

Slice = tuple[Entry, tuple[int, ...]]  # segments of one entry that leave together
STUCK_S = 10.0  # how long what could not be removed is left alone


class SpaceManager:
    """The shards that are here, and the bytes they have."""

    def __init__(self, ledger: Ledger[Slice], store: Store, plans: PlanRegistry, events: Events, clock: Callable[[], float]) -> None:
        self._admission: AdmissionPolicy[Entry] = AdmissionPolicy(ledger, plans, clock, lambda: store.can_punch, events)
        self.ledger = ledger
        self.entries = self._admission.entries
        self.prefetch_debts = self._admission.prefetch_debts
        self.overhead = Overhead(ledger, store)
        self._store = store
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SpaceManager {self.ledger!r}, {len(self.entries)} shards>"

    # In what order shards leave

    def touch(self, entry: Entry) -> None:
        """Something happened to ``entry`` that may change when it leaves."""
        self._admission.touch(entry)

    def refresh(self) -> None:
        """Once a second: put some shards where they belong now; time alone has moved them."""
        self._admission.refresh()

    def victims_of(self, entry: Entry) -> Iterator[Victim[Slice]]:
        """What of ``entry`` may leave now, first to leave first."""
        return self._admission.victims_of(entry)

    # Who gets room

    def reserve(self, size: int, reader: Hashable = None) -> Grant[Slice]:
        """Room for a demanded segment: whatever is not leased may leave for it. ``reader`` owes for it. Raises ``CacheFull``."""
        return self._begun(self._admission.reserve(size, reader))

    def reserve_ahead(self, size: int, need_at: float | None, reader: Hashable, *, inside: bool = False) -> Grant[Slice]:
        """Room for a prefetched segment: free room, what has been read, and at most two segments a reader that are needed later still.

        Raises ``CacheFull``.
        """
        return self._begun(self._admission.reserve_ahead(size, need_at, reader, inside=inside))

    def may_come_ahead(self, size: int, reader: Hashable) -> None:
        """Raises ``CacheFull`` where so much more, prefetched for ``reader``, would be more than may be unread."""
        self._admission.may_come_ahead(size, reader)

    def stand_still(self, readers: Mapping[Hashable, None]) -> None:
        """``readers`` is kept up to date by the caller: who stands still."""
        self._admission.still = readers

    def give_back(self, size: int) -> None:
        """Let ``size`` bytes of the lead of those who stand still, or what there is of it, be nobody's."""
        self._admission.give_back(size, None)

    def take_again(self, reader: Hashable) -> None:
        """``reader`` moves again: what nobody took of its lead is its lead as before."""
        self._admission.take_again(reader)

    def has_spare(self, size: int) -> bool:
        """Whether ``size`` bytes are free, or taken by what nobody is known to need."""
        found = self.ledger.free_bytes
        with closing(self._admission.candidates(NextUse(Rank.LATER, float("-inf")))) as victims:  # type: ignore[type-var]  # a generator
            while found < size and (victim := next(victims, None)) is not None:
                found += victim.bytes
        return found >= size

    def _begun(self, grant: Grant[Slice]) -> Grant[Slice]:
        self._doom(victim.subject for victim in grant.victims)
        return grant

    def owed_for(self, grant: Grant[Slice]) -> Mapping[Hashable, int]:
        """What is owed of the room of ``grant``, the last one: to be noted with the segment that comes into it."""
        return self._admission.owed_for(grant)

    def excess(self) -> list[Victim[Slice]]:
        """The capacity shrank (others fill the disk): what leaves for that, in the usual order; empty where nothing must or can."""
        excess = self.ledger.excess_bytes()
        return self.ledger.choose(excess, lambda: self._admission.candidates(None)) if excess > 0 else []

    def last_needed(self, count: int) -> list[Entry]:
        """Up to ``count`` shards that may leave whole, those that are needed last first: each has an inode that another may need."""
        with closing(self._admission.in_order()) as order:
            free = (entry for _, entry in order if entry.in_use.idle and not entry.segments.is_held)
            return list(islice(free, count))

    # Who leaves

    def vacate(self, victims: Sequence[Victim[Slice]], reason: str = "") -> None:
        """Take segments out of use for another reason than a grant: ``reason``, as metrics name it, or what plans say of them."""
        self.ledger.doom(sum(victim.bytes for victim in victims))
        self._doom((victim.subject for victim in victims), reason)

    def _doom(self, slices: Iterable[Slice], given: str = "") -> None:
        now = self._clock()
        for entry, indices in slices:
            rank = self._admission.use_of(entry).rank
            known = given or ("stale" if entry.in_use.stale else "plan" if rank in (Rank.AHEAD, Rank.LATER) else "")
            for index in indices:
                entry.in_use.leaving[index] = asyncio.get_running_loop().create_future()
                entry.in_use.departing[index] = entry.segments.sums[index]
                age_s = now - entry.stored.stored_at.get(index, now)
                used = index not in entry.segments.unread
                reason = known or ("guess" if used or rank > Rank.READ else "unused")
                self._events.emit(events.Evicted(entry.segments.bytes_of(index), reason, age_s, used))
                self._leave(entry, index)
            self.claim(entry)
            self.touch(entry)

    def _leave(self, entry: Entry, index: int) -> None:
        entry.segments.leave(index)
        entry.stored.stored_at.pop(index, None)
        self.prefetch_debts.clear(entry.key, index)
        self._events.emit(SegmentGone(entry.name, index))

    def parted(self, entry: Entry, indices: Sequence[int], *, removed: bool) -> None:
        """The end of what was taken out of use: segments are gone, or here as before but not to be trusted unseen."""
        for index in indices:
            value = entry.in_use.departing.pop(index, None)
            if not removed and value is not None:
                self._put_back(entry, index, value)
            entry.in_use.leaving.pop(index).set_result(None)
        if not removed:
            entry.in_use.stuck_until = self._clock() + STUCK_S
            self.claim(entry)
        self.touch(entry)

    @staticmethod
    def _put_back(entry: Entry, index: int, value: int) -> None:
        entry.segments.land(index, value)
        entry.segments.unread.discard(index)
        entry.segments.unverified.add(index)

    def lost(self, entry: Entry) -> None:
        """Somebody deleted the file: nothing of it is here."""
        for index in list(entry.segments.stored()):
            size = entry.segments.bytes_of(index)
            self.ledger.doom(size)
            self.ledger.gone(size)
            self._leave(entry, index)
        self.without_file(entry)
        self.claim(entry)
        self.touch(entry)

    def without_file(self, entry: Entry) -> None:
        """The entry's file is gone, or is nobody's any more."""
        entry.stored.removed()
        self.overhead.weigh(entry, 0)

    def forget(self, entry: Entry) -> None:
        """Nothing of ``entry`` is left."""
        del self.entries[entry.key]
        self.touch(entry)

    # Who comes

    def found(self, entry: Entry, allocated_bytes: int) -> None:
        """At the start: a shard an earlier process stored, whose file holds ``allocated_bytes``."""
        self.entries[entry.key] = entry
        entry.stored.charged_bytes = stored_bytes(entry.segments.sums, entry.segments.length)
        self.overhead.weigh(entry, allocated_bytes)
        self.ledger.found(entry.stored.charged_bytes)
        self.touch(entry)

    def tidied(self, key: str, allocated_bytes: int) -> None:
        """The start's leftovers in a file are gone: it holds less than was found."""
        entry = self.entries.get(key)
        if entry is not None:
            self.overhead.weigh(entry, allocated_bytes)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice]) -> None:
        """A segment is whole on the disk: the grant's bytes are stored ones."""
        size = entry.segments.bytes_of(index)
        entry.stored.charged_bytes -= grant.bytes - size
        entry.stored.writing.discard(index)
        self.ledger.commit(grant, size)
        entry.segments.land(index, checksum)
        entry.stored.stored_at[index] = self._clock()
        self.claim(entry)
        self.touch(entry)
        if entry.stored.file is not None:
            self.overhead.weigh(entry, entry.stored.file.allocated_bytes())

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        """A segment turned out smaller than what was allocated for it, and its file has been cut to that."""
        entry.stored.charged_bytes -= max(0, grant.bytes - size)
        self.ledger.shrink(grant, size)

    def withdraw(self, entry: Entry, index: int) -> None:
        """A segment that was being written will not become one: until ``Clearing.abandon`` has freed it nobody begins it anew."""
        entry.in_use.leaving[index] = asyncio.get_running_loop().create_future()

    # What the index says of it

    def claim(self, entry: Entry) -> None:
        """Let the index say what is here of ``entry`` now."""
        if entry.durable and entry.segments.stored_count:
            self._store.index_writer.put(entry.row(self._store.boot_id))
            entry.stored.claimed = True
        elif entry.stored.claimed:
            self._store.index_writer.drop(entry.key)
            entry.stored.claimed = False

    def claim_all(self) -> None:
        """The index was begun anew."""
        for entry in self.entries.values():
            self.claim(entry)
