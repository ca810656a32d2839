"""Decides which segments get room, and which leave for them, from the ledger, the eviction queue and the read-ahead counts. Pure.

This is the deciding half of the space manager. It has no files and no tasks: it names victims, and the caller removes them (and calls
``EvictionCandidates.touch``). So ``forebay plan --replay`` makes the same decisions with entries that have no bytes.

Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import closing
from typing import Generic, Protocol, TypeVar

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import Segments
from forebay_proxy.policy.eviction.eviction_queue import EvictionQueue
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim, chosen
from forebay_proxy.policy.eviction.read_ahead import ReadAhead
from forebay_proxy.policy.plans.registry import NextUse, NextUseChanged, PlanRegistry, Rank

__all__ = ["AdmissionPolicy", "EvictionCandidates", "HeldBytes", "HeldUse"]

REFRESHED = 1024  # shards that ``refresh`` sorts again each second: 10 ms, and a few seconds for a cache of a terabyte


class HeldBytes(Protocol):
    """The facts about a shard version that decide whether it leaves."""

    key: str
    name: str
    group: str
    segments: Segments
    ranged: bool  # False: it stays or leaves whole

    @property
    def in_use(self) -> HeldUse: ...


class HeldUse(Protocol):
    """The facts that keep a shard version from leaving, or make it leave first."""

    readers: int
    stale: bool  # the origin has another version now
    stuck_until: float  # a part could not be removed; not tried again before this moment

    @property
    def idle(self) -> bool:
        """True while no reader is inside, no segment is being fetched, and none is being removed."""
        ...


H = TypeVar("H", bound=HeldBytes)


class EvictionCandidates(Generic[H]):
    """The cached shards, in the order in which they leave. A victim's subject is an entry and the segments that leave together."""

    def __init__(self, plans: PlanRegistry, clock: Callable[[], float], can_punch: Callable[[], bool]) -> None:
        """``can_punch`` says whether single segments can be removed; otherwise shards leave whole."""
        self.entries: dict[str, H] = {}
        self._plans = plans
        self._clock = clock
        self._can_punch = can_punch
        self._queue = EvictionQueue(self._use_of)

    def use_of(self, entry: H) -> NextUse:
        """When an entry is used next, regardless of readers that are inside it now."""
        return NextUse(Rank.DEAD, 0.0) if entry.in_use.stale else self._plans.next_use(entry.name, entry.group)

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

    def touch(self, entry: H) -> None:
        """Note a change of ``entry`` that may change when it leaves."""
        self._queue.touch(entry.key)

    def next_use_changed(self, current: Mapping[str, H], fact: NextUseChanged) -> None:
        """Call ``touch`` for the shards in ``fact``, whose next use has changed. ``current`` maps a shard name to its cached version."""
        for name in fact.names:
            entry = current.get(name)
            if entry is not None:
                self.touch(entry)

    def refresh(self, count: int = REFRESHED) -> None:
        """Sort ``count`` shards again. Call it once a second: the order also changes with time alone."""
        self._queue.refresh(count)

    def in_order(self) -> Generator[tuple[NextUse, H], None, None]:
        """All stored shards, the first to leave first. A caller that stops early must close the iterator."""
        order = self._queue.order()
        try:
            for use, key in order:
                yield use, self.entries[key]
        finally:
            order.close()  # type: ignore[attr-defined]

    def before(self, limit: NextUse | None) -> Iterator[Victim[tuple[H, tuple[int, ...]]]]:
        """The victims, the first to leave first; with a ``limit`` only those that are used later than it.

        A shard may be read for the last time in this epoch. Then the segments that all its readers have passed rank like shards that were
        read in this epoch. Otherwise each reader would keep a whole shard's room from segments that are still needed.
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
        """The victims in ``entry`` that may leave now, the first to leave first."""
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
    """Gives room to segments, and names the first of ``candidates`` that may leave for them."""

    def __init__(
        self,
        ledger: Ledger[tuple[H, tuple[int, ...]]],
        plans: PlanRegistry,
        clock: Callable[[], float],
        can_punch: Callable[[], bool],
        events: Events | None = None,
    ) -> None:
        """``can_punch``: as for ``EvictionCandidates``."""
        self.ledger = ledger
        self.read_ahead = ReadAhead(events)
        self.candidates: EvictionCandidates[H] = EvictionCandidates(plans, clock, can_punch)

    def reserve(self, size: int) -> Grant[tuple[H, tuple[int, ...]]]:
        """Room for a segment that a reader waits for: everything that is not leased may leave for it. Raises ``CacheFull``."""
        return self._reserve(size, None)

    def reserve_ahead(
        self, size: int, need_at: float | None, reader: Hashable, place: tuple[str, int] | None = None, *, inside: bool = False
    ) -> Grant[tuple[H, tuple[int, ...]]]:
        """Room for a segment that is fetched ahead. It takes free room, and the room of segments that nobody is known to need.

        Segments that are needed later than ``need_at`` leave for it too, while ``reader`` has fewer than two segments ahead.

        Args:
            size: Bytes of the segment.
            need_at: When it is needed, on the plans' clock; None if unknown.
            reader: The reader that will read it.
            place: Store key and segment, to count it as read ahead. None, or no ``reader``: it is not counted.
            inside: The reader is in this shard already and reads the segment soon. It is counted only if a needed segment leaves for it.

        Raises ``CacheFull``.
        """
        has_few = self.read_ahead.has_few(reader)
        if reader is not None and not inside and not has_few:
            self.check_half(size)
        try:
            grant, noted = self._reserve(size, NextUse(Rank.LATER, float("-inf"))), not inside
        except CacheFull:
            if need_at is None or not has_few:
                raise
            grant, noted = self._reserve(size, NextUse(Rank.AHEAD, -need_at)), True
        if noted and place is not None and reader is not None:
            self.read_ahead.note(*place, reader, 0 if inside else size)
        return grant

    def check_half(self, size: int) -> None:
        """Raises ``CacheFull`` if ``size`` more bytes would fill more than half of the cache with unread segments."""
        unread, capacity = self.read_ahead.unread_bytes, self.ledger.capacity_bytes
        if unread + size > capacity // 2:
            raise CacheFull(f"{unread} prefetched bytes are unread, and half of {capacity} may be")

    def _reserve(self, size: int, before: NextUse | None) -> Grant[tuple[H, tuple[int, ...]]]:
        return self.ledger.reserve(size, lambda: self.candidates.before(before))

    def check_ahead(self, size: int, need_at: float | None, reader: Hashable) -> None:
        """Raises ``CacheFull`` if ``reserve_ahead`` would; removes nothing."""
        has_few = self.read_ahead.has_few(reader)
        if reader is not None and not has_few:
            self.check_half(size)
        if not self.has_spare(size) and not (need_at is not None and has_few and self._has(size, NextUse(Rank.AHEAD, -need_at))):
            raise CacheFull(f"no {size} bytes are free ahead of need, and nothing may leave for them")

    def has_spare(self, size: int) -> bool:
        """Whether ``size`` bytes are free, or held by segments that nobody is known to need."""
        return self._has(size, NextUse(Rank.LATER, float("-inf")))

    def _has(self, size: int, before: NextUse) -> bool:
        found = self.ledger.capacity_bytes - self.ledger.used_bytes
        with closing(self.candidates.before(before)) as victims:  # type: ignore[type-var]  # a generator
            while found < size and (victim := next(victims, None)) is not None:
                found += victim.bytes
        return found >= size

    def excess(self) -> list[Victim[tuple[H, tuple[int, ...]]]]:
        """The victims for a capacity that shrank because other programs fill the disk; empty if nothing must or can leave."""
        excess = self.ledger.excess_bytes()
        return chosen(excess, lambda: self.candidates.before(None)) if excess > 0 else []
