"""What our policy, and LRU, make of the same openings."""

from __future__ import annotations

import pytest
from support.replays import shards, small

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.schedule import scheduler
from forebay_proxy.simulate.replay import Replay, lru, replay
from forebay_proxy.simulate.workload import ReaderEpoch, Workload, shuffled
from forebay_proxy.wire.protocol.plan import ReaderName

MIB = 2**20


def test_a_cache_that_holds_all_is_fetched_once() -> None:
    """By either policy; later epochs hit everything."""
    for outcome in replay(small([[range(6)] * 3], segments=2), 12 * SEGMENT_BYTES):
        assert outcome.origin_bytes == outcome.dataset_bytes == outcome.peak_bytes == 12 * SEGMENT_BYTES
        assert [outcome.epochs[number].origin_bytes for number in (1, 2)] == [0, 0]
        assert outcome.hit_ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize("readers", [1, 8])
def test_the_orders_of_a_fresh_shuffle(readers: int) -> None:
    """No policy hits more than C of D; LRU hits f + (1 - f) ln(1 - f), ours comes near the bound. The disk bound holds for both."""
    listed = shards(64)
    workload = shuffled(listed, {shard.name: 4 * SEGMENT_BYTES for shard in listed}, epochs=4, seed=3, readers=readers, ahead=16)
    ours, rival = replay(workload, workload.dataset_bytes // 2)
    later = [sum(outcome.epochs[number].origin_bytes for number in (1, 2, 3)) / 3 / workload.dataset_bytes for outcome in (ours, rival)]
    assert later[1] == pytest.approx(0.847, abs=0.04)
    assert 0.5 <= later[0] <= 0.5 + 3 * readers / 256 + 0.01
    assert max(ours.peak_bytes, rival.peak_bytes) <= workload.dataset_bytes // 2


def test_readers_of_one_shard_share_one_fetch() -> None:
    """The second one hits."""
    ours, rival = replay(small([[[0]], [[0]]], jobs=True), SEGMENT_BYTES)
    assert (ours.origin_bytes, ours.read_bytes) == (rival.origin_bytes, rival.read_bytes) == (SEGMENT_BYTES, 2 * SEGMENT_BYTES)


def test_a_cache_without_room_bypasses() -> None:
    """Everything is served all the same."""
    for outcome in replay(small([[[0, 1]]], segments=3), 0):
        assert (outcome.origin_bytes, outcome.peak_bytes, outcome.bypassed_segments) == (6 * SEGMENT_BYTES, 0, 6)


def test_overhead_is_no_room() -> None:
    """The index's share of the capacity holds no segment."""
    for outcome in replay(small([[range(4)] * 2]), 4 * SEGMENT_BYTES, overhead_bytes=2 * MIB):
        assert outcome.epochs[1].origin_bytes >= SEGMENT_BYTES


def test_lru_finds_nothing_in_a_fixed_order() -> None:
    """That does not fit by a single segment; ours keeps a part."""
    workload = small([[range(8)] * 3])
    assert lru(workload, 7 * SEGMENT_BYTES).hit_bytes == 0
    assert Replay(workload, 7 * SEGMENT_BYTES).run().hit_bytes > 0


def test_turns_as_recorded() -> None:
    """A log says who opened a shard when; else readers take turns, and nobody begins an epoch while others are in the one before."""
    one, other = (ReaderName("j", "0", str(number), "1.0") for number in range(2))
    listed = shards(3)
    orders = {one: [ReaderEpoch(4, listed[:2]), ReaderEpoch(5, listed[2:])], other: [ReaderEpoch(4, listed[:1])]}
    workload = Workload(orders, {shard.name: 10 for shard in listed})
    turns = [(opening.reader, opening.is_last) for opening in workload.openings()]
    assert turns == [(one, False), (other, True), (one, False), (one, True)]
    logged = Workload(orders, workload.lengths, turns=[one, one, one, other])
    assert [opening.reader for opening in logged.openings()] == [one, one, one, other]
    assert sorted(Replay(logged, SEGMENT_BYTES).run().epochs) == [4, 5]


def test_more_readers_than_are_looked_at_at_once() -> None:
    """The scheduler looks at so many readers before it says anything; all are served, and all is fetched once."""
    workload = small([[[0, 1, 2, 3]]] * (2 * scheduler.LOOKS + 1), segments=4)
    assert Replay(workload, 16 * SEGMENT_BYTES).run().origin_bytes == 16 * SEGMENT_BYTES
