"""The cache's own decisions against a brute-force optimum, on instances small enough to try every schedule.

The bound. Let MIN be the fewest fetches any schedule needs for the order in which the readers really came to their segments (bypass
allowed, the whole future known). One job reads each shard once an epoch, and the epochs begin together. Then with e epochs:

    fetched <= MIN + (e - 1) * W + U

W is the most room that was in the air, leased, or prefetched and unread at one moment, U how many segments left before they were read.
Why: MIN is n + (e - 1)(n - c) for n segments and room for c < n of them (T5: a hit was there when the epoch began). A full cache begins an
epoch with c segments, all still needed. One of those, not read yet, leaves only where nothing read in this epoch is left to leave; then
every place but those of the k still needed ones is of the three kinds above, so c - k <= W, and after it k >= c - W less what was read
(which was a hit, and left a place that may be taken). So at most W of the c are lost an epoch, each is one fetch more, and what was
prefetched and left unread is fetched once more too. The first epoch fetches everything once, by any schedule, and U.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.replays import LINE, name_of, small

from forebay_proxy.cache.resident.facts import SegmentGone
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.simulate.outcome import SimulatedRun
from forebay_proxy.simulate.policies import Light, Ours
from forebay_proxy.simulate.workload import Workload
from forebay_proxy.simulate.world import SimulatedFetch, SimulatedWorld
from forebay_proxy.wire.protocol.plan import ReaderName

permutations = st.integers(2, 8).flatmap(lambda count: st.lists(st.permutations(range(count)), min_size=1, max_size=3))


def fewest(order: Sequence[str], room: int) -> int:
    """The fewest fetches for ``order`` in a cache of ``room`` segments, by trying every choice at every step."""
    costs = {frozenset[str](): 0}
    for wanted in order:
        after: dict[frozenset[str], int] = {}
        for cached, before in costs.items():
            cost, choices = before, [cached]
            if wanted not in cached:
                cost += 1
                full = len(cached) >= room
                choices = [cached, *([cached - {gone} | {wanted} for gone in cached] if full else [cached | {wanted}])]
            for choice in choices:
                if len(choice) <= room and cost < after.get(choice, cost + 1):
                    after[choice] = cost
        costs = after
    return min(costs.values())


class Watched(SimulatedRun):
    """A run whose books, and whose waiting readers, are looked at after every event."""

    def __init__(self, workload: Workload, room: int, *, policy: str = "ours", **how: Any) -> None:
        super().__init__(workload, LINE, room * SEGMENT_BYTES, policy, **how)
        self.world.tally.used_log = []
        self.most_ahead = 0
        self.evictions: list[tuple[float, str]] = []
        self.events.on(SegmentGone, lambda fact: self.evictions.append((self.clock.now, fact.name)))

    def watch(self) -> None:
        """To the end, looking."""
        while self.clock.step():
            self.world.check()
            self.most_ahead = max(self.most_ahead, self.ahead())
            for reader in self.readers.values():
                waiting = reader.waiting_for
                assert waiting is None or self.world.flying(waiting.entry, waiting.index) is waiting, f"{reader!r} waits for nothing"
        assert self.ended, [reader for reader in self.readers.values() if not reader.ended]

    def ahead(self) -> int:
        """W: segments in the air, leased, or prefetched and unread."""
        entries = self.keeping.entries.values()
        held = sum(len({*entry.segments.leases, *entry.segments.unread}) for entry in entries)
        return held + sum(self.world.flying(entry, 0) is not None and 0 not in entry.segments.leases for entry in entries)

    @property
    def fetched(self) -> int:
        return self.world.origin.sent_bytes // SEGMENT_BYTES

    @property
    def fewest(self) -> int:
        assert self.world.tally.used_log is not None
        return fewest([name for name, _ in self.world.tally.used_log], self.keeping.ledger.capacity_bytes // SEGMENT_BYTES)


def test_brute_force_knows_belady() -> None:
    """By hand: with room for two, ``a b c a b`` costs three fetches when c is bypassed."""
    assert fewest("abcab", 2) == 3
    assert fewest("abab", 1) == 3


@settings(max_examples=examples(60), deadline=None)
@given(
    epochs=permutations.filter(lambda epochs: len({len(epoch) for epoch in epochs}) == 1),
    room=st.integers(1, 6),
    ahead=st.sampled_from([0, 1, 3]),
)
def test_one_reader_comes_near_the_optimum(epochs: list[list[int]], room: int, ahead: int) -> None:
    """Never more fetches than the bound at the head of this file, and never fewer than the optimum; the ledger holds at every event."""
    run = Watched(small([epochs], ahead=ahead), room)
    run.watch()
    unread = run.world.tally.counts["evicted_unread_bytes"] // SEGMENT_BYTES
    assert run.fewest <= run.fetched <= run.fewest + (len(epochs) - 1) * run.most_ahead + unread
    assert run.most_ahead <= max(3, len(epochs[0]) - room) or room >= 4, "two ahead and the one it is in"


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), count=st.integers(2, 8), readers=st.integers(2, 3), room=st.integers(1, 6), ahead=st.sampled_from([0, 1, 3]))
def test_readers_of_one_job_come_near_the_optimum(data: st.DataObject, count: int, readers: int, room: int, ahead: int) -> None:
    """The same where an epoch is dealt out to several."""
    epochs = [data.draw(st.permutations(range(count))) for _ in range(3)]
    run = Watched(small([[epoch[number::readers] for epoch in epochs] for number in range(readers)], ahead=ahead), room)
    run.watch()
    unread = run.world.tally.counts["evicted_unread_bytes"] // SEGMENT_BYTES
    assert run.fewest <= run.fetched <= run.fewest + (len(epochs) - 1) * run.most_ahead + unread


@settings(max_examples=examples(60), deadline=None)
@given(
    orders=st.lists(st.lists(st.lists(st.integers(0, 7), max_size=8), min_size=1, max_size=2), min_size=1, max_size=3),
    room=st.integers(1, 6),
    ahead=st.sampled_from([None, 0, 1, 16]),
    rate=st.sampled_from([None, 20e6, 500e6]),
)
def test_any_readers_end_and_the_books_hold(orders: list[list[list[int]]], room: int, ahead: int | None, rate: float | None) -> None:
    """Jobs that repeat, overlap, and read nothing at all: every reader ends, no schedule beats the optimum, and the optimum is no myth."""
    run = Watched(small(orders, segments=1, ahead=ahead, rate=rate, jobs=True), room)
    run.watch()
    assert run.fetched >= run.fewest


@settings(max_examples=examples(40), deadline=None)
@given(epochs=st.lists(st.permutations(range(6)), min_size=2, max_size=2), segments=st.integers(1, 3), room=st.integers(1, 6))
def test_demand_bypasses_only_where_all_is_held(epochs: list[list[int]], segments: int, room: int) -> None:
    """A reader's own segment is stored whenever anything unleased may leave for it."""
    run = Watched(small([[epoch[::2] for epoch in epochs], [epoch[1::2] for epoch in epochs]], segments=segments), room)
    demand = SimulatedWorld.demand

    def looked(world: SimulatedWorld, entry: Light, index: int, reader: ReaderName) -> SimulatedFetch:
        flying = demand(world, entry, index, reader)
        if flying.grant is None:
            loose = [each for each in world.keeping.entries.values() for held in each.segments.stored() if held not in each.segments.leases]
            assert not loose, f"{loose} might have left"
        return flying

    try:
        SimulatedWorld.demand = looked  # type: ignore[method-assign]
        run.watch()
    finally:
        SimulatedWorld.demand = demand  # type: ignore[method-assign]


@settings(max_examples=examples(30), deadline=None)
@given(epochs=st.lists(st.permutations(range(8)), min_size=2, max_size=2), room=st.integers(2, 6), ahead=st.sampled_from([0, 2]))
def test_the_same_plans_and_clock_give_the_same_decisions(epochs: list[list[int]], room: int, ahead: int) -> None:
    """What was read, fetched and evicted, and when, twice."""
    seen = []
    for _ in range(2):
        run = Watched(small([[epoch[::2] for epoch in epochs], [epoch[1::2] for epoch in epochs]], segments=2, ahead=ahead), room)
        run.watch()
        seen.append((run.world.tally.used_log, run.evictions, run.outcome()))
    assert seen[0] == seen[1]


def test_ours_is_the_sidecars_own() -> None:
    """The run under test asks the very classes the sidecar asks."""
    run = Watched(small([[[0, 1]]]), 2)
    assert isinstance(run.keeping, Ours)
    assert type(run.keeping.admission).__module__ == "forebay_proxy.policy.eviction.admission"
    assert run.world.find(name_of(0)) is None
