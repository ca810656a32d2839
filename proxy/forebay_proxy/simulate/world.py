"""The simulated cache: segments in the air, stored and evicted. The shape of ``cache`` and ``writer``, without a byte. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_proxy.cache.resident.facts import CacheChanged, SegmentGone
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.simulate.clock import SimulatedClock
from forebay_proxy.simulate.origin import SimulatedFlight, SimulatedOrigin
from forebay_proxy.simulate.policies import CachePolicy, Light, Slice
from forebay_proxy.transfer.bandwidth import ConnectionRate
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["SimulatedFetch", "SimulatedWorld"]

Landed = Callable[[], None]


@dataclass(slots=True, eq=False)
class SimulatedFetch:
    """A segment in the air, and its waiting readers."""

    entry: Light
    index: int
    grant: Grant[Slice] | None  # None: it is not stored (bypass)
    request: SimulatedFlight
    demanded: bool  # a reader asked for it, or boarded it
    answered: list[Landed] = field(default_factory=list)
    landed: list[Landed] = field(default_factory=list)


@dataclass(slots=True)
class SimulatedTally:
    """What happened so far. ``counts``: ``bypassed`` segments, ``evicted_unread_bytes``, ``read_bytes``."""

    counts: Counter[str] = field(default_factory=Counter)
    used_log: list[tuple[str, int]] | None = None  # (shard, segment) in the order in which readers came to them, when asked for


class SimulatedWorld:
    """One cache with one policy over one origin."""

    def __init__(
        self,
        clock: SimulatedClock,
        keeping: CachePolicy,
        origin: SimulatedOrigin,
        length_of: Callable[[str], int],
        events: Events,
    ) -> None:
        """``length_of``: bytes of a shard, by its name."""
        self.clock = clock
        self.keeping = keeping
        self.origin = origin
        self.connection_rate = ConnectionRate()
        self.tally = SimulatedTally()
        self.inside = 0  # readers inside a shard
        self.leased = 0  # segments
        self.ahead_in_air = 0
        self._events = events
        self.inside_asks: list[Callable[[], None]] = []  # of each reader: what it needs next of the shard it is in
        self._length_of = length_of
        self._flying: dict[tuple[str, int], SimulatedFetch] = {}

    def __repr__(self) -> str:
        return f"<SimulatedWorld {self.clock!r}, {self.keeping.ledger!r}, {len(self._flying)} in the air>"

    # What is here

    def find(self, name: str) -> Light | None:
        return self.keeping.entries.get(name)

    def entry(self, shard: Shard) -> Light:
        """The shard, made where it is not here."""
        entry = self.keeping.entries.get(shard.name)
        if entry is None:
            entry = self.keeping.entries[shard.name] = Light(shard, self._length_of(shard.name))
        return entry

    def flying(self, entry: Light, index: int) -> SimulatedFetch | None:
        return self._flying.get((entry.key, index))

    def forget(self, entry: Light) -> None:
        """No segment of it is left, and no reader is inside: its length is not known any more either."""
        if entry.in_use.idle and not entry.segments.stored_count and self.keeping.entries.get(entry.key) is entry:
            del self.keeping.entries[entry.key]
            self.keeping.touch(entry)

    def check(self) -> None:
        """The books: the bound holds, and the ledger knows what is here. Raises ``AssertionError``."""
        ledger = self.keeping.ledger
        stored = sum(entry.segments.bytes_of(index) for entry in self.keeping.entries.values() for index in entry.segments.stored())
        promised = sum(flying.grant.bytes for flying in self._flying.values() if flying.grant is not None)
        assert ledger.used_bytes <= ledger.capacity_bytes, ledger
        assert (ledger.stored_bytes, ledger.reserved_bytes, ledger.doomed_bytes) == (stored, promised, 0), (ledger, stored, promised)

    # What comes

    def demand(self, entry: Light, index: int, reader: ReaderName) -> SimulatedFetch:
        """A flight for the segment a reader is in; without room it bypasses."""
        try:
            grant = self.cleared(self.keeping.reserve(entry, index, self.size_of(entry, index), reader))
        except CacheFull:
            grant = None
            self.tally.counts["bypassed"] += 1
        return self.take_off(entry, index, grant, 0.0, demanded=True)

    def demand_inside(self, entry: Light, index: int, need: float, reader: ReaderName) -> bool:
        """The same for a segment that ``reader`` needs after the one it is in; False where there is no room that it may have."""
        try:
            grant = self.keeping.reserve_inside(entry, index, self.size_of(entry, index), reader)
        except CacheFull:
            return False
        self.take_off(entry, index, self.cleared(grant), need, demanded=True)
        return True

    def take_off(self, entry: Light, index: int, grant: Grant[Slice] | None, need: float, *, demanded: bool) -> SimulatedFetch:
        size = entry.segments.span(index)[1]
        key = (entry.key, index)
        request = SimulatedFlight(size, need, lambda: self._answered(key), lambda: self._landed(key))
        flying = self._flying[key] = SimulatedFetch(entry, index, grant, request, demanded)
        entry.in_use.flying += 1
        self.ahead_in_air += not demanded
        self.origin.ask(request)
        return flying

    def hurry(self, flying: SimulatedFetch, need: float) -> None:
        """A reader wants it: from now on it is demand."""
        self.ahead_in_air -= not flying.demanded
        flying.demanded = True
        if need < flying.request.need:
            flying.request.need = need
            if flying.request.began_at is None:
                self.origin.ask(flying.request)

    def size_of(self, entry: Light, index: int) -> int:
        """What is reserved: a whole segment while the origin has not told the length."""
        return entry.segments.bytes_of(index) if entry.known else DEFAULT_LAYOUT.segment_bytes

    def cleared(self, grant: Grant[Slice]) -> Grant[Slice]:
        """Remove the grant's victims at once: a punch takes less than a millisecond."""
        touched: dict[str, Light] = {}
        for victim in grant.victims:
            entry, indices = victim.subject
            touched[entry.key] = entry
            for index in indices:
                self.tally.counts["evicted_unread_bytes"] += entry.segments.bytes_of(index) if index in entry.segments.unread else 0
                entry.segments.leave(index)
                self.keeping.left(entry, index)
                self._events.emit(SegmentGone(entry.name, index))
        self.keeping.ledger.vacated(grant)
        for entry in touched.values():
            self.keeping.touch(entry)
            self.forget(entry)
        return grant

    def _answered(self, key: tuple[str, int]) -> None:
        flying = self._flying[key]
        entry = flying.entry
        entry.known = True
        if flying.grant is not None:
            self.keeping.ledger.shrink(flying.grant, entry.segments.bytes_of(flying.index))
        for happens in flying.answered:
            happens()

    def _landed(self, key: tuple[str, int]) -> None:
        flying = self._flying.pop(key)
        entry, request = flying.entry, flying.request
        entry.in_use.flying -= 1
        self.ahead_in_air -= not flying.demanded
        self._measure(request)
        if flying.grant is not None:
            self.keeping.ledger.commit(flying.grant)
            entry.segments.land(flying.index, 1)
            self.keeping.came(entry, flying.index)
        if flying.landed and flying.grant is not None:  # read behind its watermark
            entry.segments.unread.discard(flying.index)
            self.keeping.used(entry, flying.index)
        for happens in flying.landed:
            happens()
        self.keeping.touch(entry)
        self.forget(entry)
        self._events.emit(CacheChanged())

    def _measure(self, request: SimulatedFlight) -> None:
        assert request.answered_at is not None, "a body ends after its answer"
        self.connection_rate.measured(request.size, self.clock.now - request.answered_at, request.company)

    # What a reader holds

    def breadth(self, *, bypassing: bool) -> int:
        """How many ranges of one reader may be in the air now, as ``ShardCache.breadth`` has it."""
        if bypassing:
            return 1
        segment_bytes = DEFAULT_LAYOUT.segment_bytes
        leased = max(0, self.leased - len(self._flying)) * segment_bytes
        grantable = self.keeping.ledger.grantable_bytes(leased) // segment_bytes
        return max(1, min(self.connection_rate.ranges, grantable // max(1, self.inside)))

    def lease(self, entry: Light, index: int) -> None:
        self.leased += index not in entry.segments.leases
        entry.segments.lease(index)

    def release(self, entry: Light, index: int) -> None:
        entry.segments.release(index)
        if index not in entry.segments.leases:
            self.leased -= 1
            self.keeping.passed(entry, index)
        self.keeping.touch(entry)

    def read(self, entry: Light, index: int) -> None:
        """A reader has begun a segment, stored or in the air."""
        flying = self.flying(entry, index)
        used_log = self.tally.used_log
        if used_log is not None and not (flying and flying.landed):  # who boards what another waits for uses it with that one
            used_log.append((entry.name, index))
        self.tally.counts["read_bytes"] += entry.segments.span(index)[1]
        if entry.segments.has(index):
            entry.segments.unread.discard(index)
            self.keeping.used(entry, index)
            self._events.emit(CacheChanged())
