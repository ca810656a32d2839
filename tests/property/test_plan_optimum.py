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

from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.replays import small

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.simulate.replay import Replay, ReplayedShard, Slice
from forebay_proxy.simulate.workload import Workload
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


class Watched(Replay):
    """A replay whose books are looked at with every segment."""

    def __init__(self, workload: Workload, room: int) -> None:
        super().__init__(workload, room * SEGMENT_BYTES)
        self.room = room
        self.used: list[str] = []  # segments in the order in which readers came to them
        self.stores: list[tuple[str, list[str]]] = []  # what came, and what left for it
        self.most_ahead = 0

    def read(self, entry: ReplayedShard, index: int, reader: ReaderName) -> None:
        self.used.append(f"{entry.name} {index}")
        bypassed = self.outcome.bypassed_segments
        super().read(entry, index, reader)
        if self.outcome.bypassed_segments > bypassed:
            loose = [each for each in self.shards.values() for held in each.segments.stored() if not each.segments.is_leased(held)]
            assert not loose, f"{loose} might have left"
        self._look()

    def store(self, entry: ReplayedShard, index: int, grant: Grant[Slice]) -> None:
        self.stores.append((f"{entry.name} {index}", [victim.subject[0].name for victim in grant.victims]))
        super().store(entry, index, grant)
        self._look()

    def _look(self) -> None:
        """The bound holds, and the ledger knows what is here. W: segments leased, or prefetched and unread."""
        ledger, here = self.ledger, self.shards.values()
        stored = sum(entry.segments.bytes_of(index) for entry in here for index in entry.segments.stored())
        assert ledger.used_bytes <= ledger.capacity_bytes, ledger
        assert (ledger.stored_bytes, ledger.reserved_bytes, ledger.doomed_bytes) == (stored, 0, 0), (ledger, stored)
        self.most_ahead = max(self.most_ahead, sum(len({*entry.segments.leases, *entry.segments.unread}) for entry in here))

    @property
    def fetched(self) -> int:
        return self.outcome.origin_bytes // SEGMENT_BYTES

    @property
    def unread(self) -> int:
        """U: segments that left before they were read."""
        return self.outcome.evicted_unread_bytes // SEGMENT_BYTES

    @property
    def fewest(self) -> int:
        return fewest(self.used, self.room)


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
    run.run()
    assert run.fewest <= run.fetched <= run.fewest + (len(epochs) - 1) * run.most_ahead + run.unread


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), count=st.integers(2, 8), readers=st.integers(2, 3), room=st.integers(1, 6), ahead=st.sampled_from([0, 1, 3]))
def test_readers_of_one_job_come_near_the_optimum(data: st.DataObject, count: int, readers: int, room: int, ahead: int) -> None:
    """The same where an epoch is dealt out to several."""
    epochs = [data.draw(st.permutations(range(count))) for _ in range(3)]
    run = Watched(small([[epoch[number::readers] for epoch in epochs] for number in range(readers)], ahead=ahead), room)
    run.run()
    assert run.fewest <= run.fetched <= run.fewest + (len(epochs) - 1) * run.most_ahead + run.unread


@settings(max_examples=examples(60), deadline=None)
@given(
    orders=st.lists(st.lists(st.lists(st.integers(0, 7), max_size=8), min_size=1, max_size=2), min_size=1, max_size=3),
    room=st.integers(1, 6),
    ahead=st.sampled_from([None, 0, 1, 16]),
)
def test_any_readers_end_and_the_books_hold(orders: list[list[list[int]]], room: int, ahead: int | None) -> None:
    """Jobs that repeat, overlap, and read nothing at all: every reader ends, no schedule beats the optimum, and the optimum is no myth."""
    run = Watched(small(orders, ahead=ahead, jobs=True), room)
    run.run()
    assert run.fetched >= run.fewest


@settings(max_examples=examples(40), deadline=None)
@given(epochs=st.lists(st.permutations(range(6)), min_size=2, max_size=2), segments=st.integers(1, 3), room=st.integers(1, 6))
def test_demand_bypasses_only_where_all_is_held(epochs: list[list[int]], segments: int, room: int) -> None:
    """A reader's own segment is stored whenever anything unleased may leave for it."""
    run = Watched(small([[epoch[::2] for epoch in epochs], [epoch[1::2] for epoch in epochs]], segments=segments), room)
    run.run()
    assert run.used


@settings(max_examples=examples(30), deadline=None)
@given(epochs=st.lists(st.permutations(range(8)), min_size=2, max_size=2), room=st.integers(2, 6), ahead=st.sampled_from([0, 2]))
def test_the_same_plans_give_the_same_decisions(epochs: list[list[int]], room: int, ahead: int) -> None:
    """What was read, fetched and evicted, twice."""
    seen = []
    for _ in range(2):
        run = Watched(small([[epoch[::2] for epoch in epochs], [epoch[1::2] for epoch in epochs]], segments=2, ahead=ahead), room)
        seen.append((run.run(), run.used, run.stores))
    assert seen[0] == seen[1]
