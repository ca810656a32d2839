"""Which segments are given room, and which must leave for them: the ledger, the eviction queue and the prefetch debts together. Pure.

The half of the space manager that decides. It has no files and no tasks: it names victims, and the caller takes them out of use (and tells
``EvictionCandidates.touch``). So the simulator drives these very decisions with entries that have no bytes.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Generic, Protocol, TypeVar

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import Segments
from forebay_proxy.policy.eviction.eviction_queue import EvictionQueue
from forebay_proxy.policy.eviction.facts import LeadGivenBack
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim, chosen
from forebay_proxy.policy.eviction.prefetch_debt import PrefetchDebts
from forebay_proxy.policy.plans.facts import NextUseChanged
from forebay_proxy.policy.plans.next_use import NextUse, Rank
from forebay_proxy.policy.plans.registry import PlanRegistry

__all__ = ["AdmissionPolicy", "EvictionCandidates", "HeldBytes", "HeldUse"]

REFRESHED = 1024  # shards put in their place again each second: 10 ms, and a cache of a terabyte in a few seconds


class HeldBytes(Protocol):
    """What must be known of a shard version to decide whether it leaves."""

    key: str
    name: str
    group: str
    segments: Segments
    ranged: bool  # False: it stays or leaves whole

    @property
    def in_use(self) -> HeldUse: ...


class HeldUse(Protocol):
    """What keeps a shard version from leaving, or makes it leave first."""

    readers: int
    stale: bool  # the origin has another version now
    stuck_until: float  # something of it could not be removed: not tried again before

    @property
    def idle(self) -> bool:
        """Nobody is inside, nothing of it is in the air, nothing is being removed."""
        ...


H = TypeVar("H", bound=HeldBytes)


class EvictionCandidates(Generic[H]):
    """The shards that are here, in the order in which they leave. A victim's subject is an entry with the segments that leave together."""

    def __init__(
        self, plans: PlanRegistry, prefetch_debts: PrefetchDebts, clock: Callable[[], float], can_punch: Callable[[], bool]
    ) -> None:
        """``can_punch``: whether single segments can be given up; else shards leave whole."""
        self.entries: dict[str, H] = {}
        self._plans = plans
        self._prefetch_debts = prefetch_debts
        self._clock = clock
        self._can_punch = can_punch
        self._queue = EvictionQueue(self._use_of)

    def __repr__(self) -> str:
        return f"<EvictionCandidates {len(self.entries)} shards>"

    def use_of(self, entry: H) -> NextUse:
        """When an entry is used next, whoever is inside it now."""
        use = NextUse(Rank.DEAD, 0.0) if entry.in_use.stale else self._plans.next_use(entry.name, entry.group)
        if use.rank > Rank.READ and use.plan is None and entry.key in self._prefetch_debts.given_back:
            return NextUse(Rank.READ, use.order)  # only a paused reader has announced it
        return use

    def _use_of(self, key: str) -> NextUse | None:
        entry = self.entries.get(key)
        if entry is None or not entry.segments.stored_count:
            return None
        use = self.use_of(entry)
        if entry.in_use.readers and not (use.rank <= Rank.READ and self._has_passed(entry)):
            return self._plans.inside(entry.name)
        if use.rank != Rank.READ:
            return use
        return NextUse(Rank.READ, -entry.segments.tail if self._leaves_in_parts(entry) else 0.0, then=use.order)

    def _has_passed(self, entry: H) -> bool:
        return self._leaves_in_parts(entry) and entry.segments.has_passed

    def _leaves_in_parts(self, entry: H) -> bool:
        return entry.ranged and self._can_punch()

    def is_needed(self, entry: H) -> bool:
        """Whether plans say that it is used again."""
        return self.use_of(entry).rank > Rank.READ

    def touch(self, entry: H) -> None:
        """Something happened to ``entry`` that may change when it leaves."""
        self._queue.touch(entry.key)

    def touch_all(self, keys: Iterable[str]) -> None:
        """As ``touch``, of those of these store keys that are here."""
        for key in keys:
            entry = self.entries.get(key)
            if entry is not None:
                self.touch(entry)

    def next_use_changed(self, current: Mapping[str, H], fact: NextUseChanged) -> None:
        """As ``touch``, of the shards that plans use at another time than before; ``current``: what is here, by shard name."""
        for name in fact.names:
            entry = current.get(name)
            if entry is not None:
                self.touch(entry)

    def refresh(self, count: int = REFRESHED) -> None:
        """Once a second: put some shards where they belong now; time alone has moved them."""
        self._queue.refresh(count)

    def in_order(self) -> Generator[tuple[NextUse, H], None, None]:
        """Everything stored, first to leave first. A caller that stops early must close the iterator."""
        order = self._queue.order()
        try:
            for use, key in order:
                yield use, self.entries[key]
        finally:
            order.close()  # type: ignore[attr-defined]

    def before(self, limit: NextUse | None) -> Iterator[Victim[tuple[H, tuple[int, ...]]]]:
        """What may leave, first to leave first; with a ``limit`` only what is used later than that.

        Of a shard that is read for the last time in this epoch, what all its readers have behind them is used no sooner than any other
        shard read in this epoch: else each reader would keep a whole shard from those that are still needed.
        """
        order, now = self.in_order(), self._clock()
        inside: list[H] = []
        try:
            for use, entry in order:
                if limit is not None and use >= limit:
                    return
                if entry.in_use.stuck_until > now:
                    continue
                if entry.in_use.readers and use.rank < Rank.NOW:
                    inside.append(entry)
                    yield from self._single(entry, entry.segments.passed())
                else:
                    yield from self.victims_of(entry)
        finally:
            order.close()
        for entry in inside:
            yield from self._single(entry, entry.segments.before_readers())

    def victims_of(self, entry: H) -> Iterator[Victim[tuple[H, tuple[int, ...]]]]:
        """What of ``entry`` may leave now, first to leave first."""
        segments = entry.segments
        if self._leaves_in_parts(entry):
            yield from self._single(entry, segments.may_leave())
        elif entry.in_use.idle and segments.stored_count and not segments.is_held:
            whole = tuple(segments.stored())
            yield Victim((entry, whole), sum(segments.bytes_of(index) for index in whole))

    @staticmethod
    def _single(entry: H, indices: Iterator[int]) -> Iterator[Victim[tuple[H, tuple[int, ...]]]]:
        return (Victim((entry, (index,)), entry.segments.bytes_of(index)) for index in indices)


class AdmissionPolicy(Generic[H]):
    """Which segments are given room, and which must leave for them: the first of ``candidates`` that may."""

    def __init__(
        self,
        ledger: Ledger[tuple[H, tuple[int, ...]]],
        plans: PlanRegistry,
        clock: Callable[[], float],
        can_punch: Callable[[], bool],
        segment_bytes: int,
        events: Events | None = None,
    ) -> None:
        """``can_punch``: as for ``EvictionCandidates``."""
        self.ledger = ledger
        self._events = events or Events()
        self.prefetch_debts = PrefetchDebts(segment_bytes, self._events)
        self.candidates: EvictionCandidates[H] = EvictionCandidates(plans, self.prefetch_debts, clock, can_punch)
        self.idle: Mapping[Hashable, None] = {}  # idle readers: their lead is theirs until others want the room
        self._granted: tuple[Grant[tuple[H, tuple[int, ...]]], Mapping[Hashable, int]] | None = None  # the last one, and who owes for it

    def __repr__(self) -> str:
        return f"<AdmissionPolicy {self.ledger!r}, {self.candidates!r}>"

    @property
    def has_debts(self) -> bool:
        """Whether ``prefetch_debts`` knows of any segment: of none where no reader announces what it opens."""
        return bool(self.prefetch_debts.noted or self.prefetch_debts.given_back.places)

    def reserve(self, size: int, reader: Hashable = None) -> Grant[tuple[H, tuple[int, ...]]]:
        """Room for a demanded segment: whatever is not leased may leave for it. Raises ``CacheFull``.

        ``reader``: owes for segments that leave though a plan needs them; None where the reader's future is not known.
        """
        return self._reserve(size, None, reader)

    def reserve_ahead(
        self, size: int, need_at: float | None, reader: Hashable, *, inside: bool = False
    ) -> Grant[tuple[H, tuple[int, ...]]]:
        """Room for a prefetched segment: free room, what has been read, and at most two segments a reader that are needed later still.

        All that was prefetched and is unread stays within half the cache: it is room that nobody uses yet. ``inside``: it is for a
        reader that is in that very shard already, and will have read it in a moment. Raises ``CacheFull``.
        """
        if not inside:
            self.may_come_ahead(size, reader)
        try:
            return self._reserve(size, NextUse(Rank.LATER, float("-inf")), reader)
        except CacheFull:
            if need_at is None or not self._may_displace(reader, size):
                raise
            return self._reserve(size, NextUse(Rank.AHEAD, -need_at), reader)

    def may_come_ahead(self, size: int, reader: Hashable) -> None:
        """Raises ``CacheFull`` where so much more, prefetched for ``reader`` (None: for nobody in particular), would be too much unread."""
        half = self.ledger.capacity_bytes // 2
        if reader is not None and self.prefetch_debts.unread_bytes + size > half:
            self.give_back(self.prefetch_debts.unread_bytes + size - half, reader)
        unread = self.prefetch_debts.unread_bytes
        if reader is not None and unread + size > half:
            raise CacheFull(f"{unread} prefetched bytes are unread, and half of {self.ledger.capacity_bytes} may be")

    def give_back(self, size: int, reader: Hashable) -> None:
        """Take ``size`` bytes of lead, or what there is, from idle readers other than ``reader``: they are nobody's lead any more."""
        until = self.prefetch_debts.unread_bytes - size
        for other in list(self.idle):
            if self.prefetch_debts.unread_bytes <= until:
                return
            if other != reader:
                keys = self.prefetch_debts.give_back(other)
                if keys:
                    self._events.emit(LeadGivenBack(other))
                    self.candidates.touch_all(keys)

    def restore_lead(self, reader: Hashable) -> None:
        """``reader`` moves again: what nobody took of its lead is its lead as before."""
        self.candidates.touch_all(self.prefetch_debts.restore_lead(reader, self.ledger.capacity_bytes // 2))

    def _may_displace(self, reader: Hashable, size: int) -> bool:
        """Whether something needed may leave for ``reader``; what lies on a segment that is itself needed again is owed no more."""
        if not self.prefetch_debts.may(reader, size):
            for key, index in self.prefetch_debts.debts(reader):
                entry = self.candidates.entries.get(key)
                if entry is None or self.candidates.is_needed(entry):
                    self.prefetch_debts.drop(key, index)
        return self.prefetch_debts.may(reader, size)

    def _reserve(self, size: int, before: NextUse | None, reader: Hashable) -> Grant[tuple[H, tuple[int, ...]]]:
        grant = self.ledger.reserve(size, lambda: self.candidates.before(before))
        self._granted = grant, self._owed_for(grant, reader)
        return grant

    def _owed_for(self, grant: Grant[tuple[H, tuple[int, ...]]], reader: Hashable) -> Mapping[Hashable, int]:
        """The prefetch debts that come with the grant's room, in bytes by reader.

        ``reader`` owes the bytes of every victim that is still needed; a debt that lay on a victim before stays its reader's.
        """
        owed: Counter[Hashable] = Counter()
        for victim in grant.victims:
            entry, indices = victim.subject
            needed = self.candidates.is_needed(entry)
            for index in indices:
                if needed and reader is not None:
                    owed[reader] += entry.segments.bytes_of(index)
                if not needed or self.prefetch_debts.is_lead(entry.key, index):
                    owed.update(self.prefetch_debts.owed_on(entry.key, index))
        return owed

    def owed_for(self, grant: Grant[tuple[H, tuple[int, ...]]]) -> Mapping[Hashable, int]:
        """What is owed of the room of ``grant``, the last one: to be noted with the segment that comes into it."""
        return self._granted[1] if self._granted is not None and self._granted[0] is grant else {}

    def has_spare(self, size: int) -> bool:
        """Whether ``size`` bytes are free, or taken by what nobody is known to need."""
        found = self.ledger.free_bytes
        with closing(self.candidates.before(NextUse(Rank.LATER, float("-inf")))) as victims:  # type: ignore[type-var]  # a generator
            while found < size and (victim := next(victims, None)) is not None:
                found += victim.bytes
        return found >= size

    def excess(self) -> list[Victim[tuple[H, tuple[int, ...]]]]:
        """The capacity shrank (others fill the disk): what leaves for that, in the usual order; empty where nothing must or can."""
        excess = self.ledger.excess_bytes()
        return chosen(excess, lambda: self.candidates.before(None)) if excess > 0 else []
