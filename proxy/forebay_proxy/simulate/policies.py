"""What a simulated cache keeps: ours, and two others to compare with. All three ask the same ledger. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, Segments
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["POLICIES", "CachePolicy", "LeastRecent", "Light", "Never", "Ours", "Slice"]

POLICIES = ("ours", "lru", "never-evict")


class SimulatedUse:
    """The readers inside a shard without bytes, and its segments in the air."""

    stale = False
    stuck_until = 0.0

    def __init__(self) -> None:
        self.readers = 0
        self.flying = 0

    def __repr__(self) -> str:
        return f"<SimulatedUse {self.readers} readers, {self.flying} flying>"

    @property
    def idle(self) -> bool:
        return not self.readers and not self.flying


class Light:
    """A shard without bytes: what ``AdmissionPolicy`` must know of it."""

    ranged = True

    def __init__(self, shard: Shard, length: int) -> None:
        self.key = self.name = shard.name
        self.group = shard.group
        self.shard = shard
        self.length = length
        self.known = False  # the origin has told its length
        self.segments = Segments(DEFAULT_LAYOUT, length)
        self.in_use = SimulatedUse()

    def __repr__(self) -> str:
        return f"<Light {self.name} {self.segments}, {self.in_use!r}>"


Slice = tuple[Light, tuple[int, ...]]


class CachePolicy(Protocol):
    """Which segment gets room, and which leave for it."""

    ledger: Ledger[Slice]
    entries: dict[str, Light]

    def reserve(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        """Room for a segment that ``reader`` wants now. Raises ``CacheFull``."""
        ...

    def reserve_inside(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        """Room for a segment that ``reader`` needs after the one it is in. Raises ``CacheFull``."""
        ...

    def touch(self, entry: Light) -> None:
        """Something happened to ``entry`` that may change when it leaves."""
        ...

    def used(self, entry: Light, index: int) -> None:
        """A stored segment is read."""
        ...

    def passed(self, entry: Light, index: int) -> None:
        """No reader is in a segment any more."""
        ...

    def came(self, entry: Light, index: int) -> None:
        """A segment is stored."""
        ...

    def left(self, entry: Light, index: int) -> None:
        """A segment left."""
        ...


class Ours:
    """The sidecar's own decisions."""

    def __init__(self, capacity_bytes: int, plans: PlanRegistry, clock: Callable[[], float], events: Events) -> None:
        self.ledger: Ledger[Slice] = Ledger(capacity_bytes)
        self.admission: AdmissionPolicy[Light] = AdmissionPolicy(
            self.ledger, plans, clock, lambda: True, DEFAULT_LAYOUT.segment_bytes, events
        )
        self.entries = self.admission.candidates.entries
        self._plans = plans
        self._clock = clock

    def reserve(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        announced = reader if self._plans.get(reader) is not None else None
        grant = self.admission.reserve(size, announced)
        self.admission.prefetch_debts.note(entry.key, index, announced, owed=self.admission.owed_for(grant), is_lead=False)
        return grant

    def reserve_inside(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        if self._plans.get(reader) is None:
            return self.reserve(entry, index, size, reader)
        grant = self.admission.reserve_ahead(size, self._clock(), reader, inside=True)
        self.admission.prefetch_debts.note(entry.key, index, reader, owed=self.admission.owed_for(grant), is_lead=False)
        return grant

    def touch(self, entry: Light) -> None:
        self.admission.candidates.touch(entry)

    def came(self, entry: Light, index: int) -> None:
        """``touch`` is all it takes."""

    def used(self, entry: Light, index: int) -> None:
        self.admission.prefetch_debts.hit(entry.key, index)

    def passed(self, entry: Light, index: int) -> None:
        if index not in entry.segments.unread:
            self.admission.prefetch_debts.read(entry.key, index)

    def left(self, entry: Light, index: int) -> None:
        self.admission.prefetch_debts.drop(entry.key, index)


class Never:
    """Keeps what came first. Reaches the bound of one pass an epoch, and nothing else: it also keeps the shards of a data set that no job
    reads any more.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.ledger: Ledger[Slice] = Ledger(capacity_bytes)
        self.entries: dict[str, Light] = {}

    def reserve(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        return self.ledger.reserve(size, self.eviction_queue)

    def reserve_inside(self, entry: Light, index: int, size: int, reader: ReaderName) -> Grant[Slice]:
        return self.reserve(entry, index, size, reader)

    def eviction_queue(self) -> Iterator[Victim[Slice]]:
        """What may leave, first to leave first."""
        return iter(())

    def touch(self, entry: Light) -> None:
        """Nothing depends on it."""

    def used(self, entry: Light, index: int) -> None:
        """Nothing depends on it."""

    def passed(self, entry: Light, index: int) -> None:
        """Nothing depends on it."""

    def came(self, entry: Light, index: int) -> None:
        """Nothing depends on it."""

    def left(self, entry: Light, index: int) -> None:
        """Nothing depends on it."""


class LeastRecent(Never):
    """Who was used longest ago leaves, as in most caches; segment by segment, which is kinder to it than whole shards."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._order: OrderedDict[tuple[str, int], None] = OrderedDict()

    def eviction_queue(self) -> Iterator[Victim[Slice]]:
        for key, index in self._order:
            entry = self.entries[key]
            if index not in entry.segments.leases and entry.segments.has(index):
                yield Victim((entry, (index,)), entry.segments.bytes_of(index))

    def came(self, entry: Light, index: int) -> None:
        self.used(entry, index)

    def used(self, entry: Light, index: int) -> None:
        self._order[entry.key, index] = None
        self._order.move_to_end((entry.key, index))

    def left(self, entry: Light, index: int) -> None:
        self._order.pop((entry.key, index), None)
