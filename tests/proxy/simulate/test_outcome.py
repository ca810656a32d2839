"""Whole simulations: what the policies make of the same readers."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from support.replays import LINE, shards, small

from forebay_proxy.background import prefetcher
from forebay_proxy.core.segments import FIRST_BREADTH, SEGMENT_BYTES
from forebay_proxy.policy.schedule import scheduler
from forebay_proxy.simulate import ahead as replay_ahead
from forebay_proxy.simulate.origin import SimulatedLine
from forebay_proxy.simulate.outcome import EpochEnded, SimulatedRun, replay
from forebay_proxy.simulate.policies import POLICIES, Light
from forebay_proxy.simulate.workload import shuffled
from forebay_proxy.wire.protocol.plan import ReaderName

MIB = 2**20


def test_a_cache_that_holds_all_is_fetched_once() -> None:
    """By any policy; later epochs hit everything and wait for nothing."""
    for outcome in replay(small([[range(6)] * 3], segments=2), LINE, 12 * SEGMENT_BYTES):
        assert outcome.origin_bytes == outcome.dataset_bytes == outcome.peak_bytes == 12 * SEGMENT_BYTES
        assert [epoch.origin_bytes for epoch in outcome.epochs[1:]] == [0, 0]
        assert outcome.epochs[2].waited_s == 0.0
        assert outcome.hit_ratio == pytest.approx(2 / 3)


def test_the_orders_of_a_fresh_shuffle() -> None:
    """Never-evict hits C of D, LRU f + (1 - f) ln(1 - f); ours comes near the one and far above the other. The bound holds for all."""
    listed = shards(64)
    workload = shuffled(listed, {shard.name: 4 * SEGMENT_BYTES for shard in listed}, epochs=4, seed=3, rate=200e6, ahead=0)
    capacity = workload.dataset_bytes // 2
    ours, lru, never = replay(workload, LINE, capacity)
    later = [sum(epoch.origin_bytes for epoch in outcome.epochs[1:]) / 3 / workload.dataset_bytes for outcome in (ours, lru, never)]
    assert later[2] == pytest.approx(0.5, abs=0.001)
    assert later[1] == pytest.approx(0.847, abs=0.04)
    assert 0.5 <= later[0] <= 0.55
    assert all(outcome.peak_bytes <= capacity for outcome in (ours, lru, never))
    assert ours.waited_s < lru.waited_s < never.waited_s


def test_reading_alone_takes_what_the_line_takes() -> None:
    """One segment, unlimited reader: latency and transfer; its wait is just that."""
    run = SimulatedRun(small([[[0]]], rate=None), SimulatedLine(connection_bytes_s=float(SEGMENT_BYTES), latency_s=0.5), SEGMENT_BYTES)
    outcome = run.finish()
    assert (outcome.seconds, outcome.waited_s) == (pytest.approx(1.5), pytest.approx(1.5))


def test_a_reader_slower_than_the_line_waits_for_the_first_byte_only() -> None:
    """It reads behind the watermark, at its own rate."""
    outcome = SimulatedRun(
        small([[[0]]], rate=float(SEGMENT_BYTES)), SimulatedLine(connection_bytes_s=4.0 * SEGMENT_BYTES, latency_s=0.5), SEGMENT_BYTES
    ).finish()
    assert (outcome.seconds, outcome.waited_s) == (pytest.approx(1.5), pytest.approx(0.5))


@pytest.mark.parametrize(("readers", "ratio"), [(1, 0.2), (2, 0.3), (4, 0.7), (8, 0.9)])
def test_what_readers_wait_for_by_themselves_does_not_hold_back_prefetch(readers: int, ratio: float) -> None:
    """Each connection adds to this line, and each reader asks for a segment at a time: cold, plans use all slots, readers alone do not."""
    listed = shards(48)
    workload = shuffled(listed, {shard.name: SEGMENT_BYTES for shard in listed}, readers=readers)
    line = SimulatedLine(connection_bytes_s=20e6, latency_s=0.05)
    ours, alone = replay(workload, line, workload.dataset_bytes, ("ours", "lru"))
    assert ours.seconds < ratio * alone.seconds


def test_two_readers_share_one_fetch() -> None:
    """Of the same shard at the same moment; the second boards."""
    outcome = SimulatedRun(small([[[0]], [[0]]], jobs=True), LINE, SEGMENT_BYTES).finish()
    assert (outcome.origin_bytes, outcome.read_bytes) == (SEGMENT_BYTES, 2 * SEGMENT_BYTES)


def test_a_cache_without_room_bypasses() -> None:
    """Everything is served all the same."""
    outcome = SimulatedRun(small([[[0, 1]]], segments=3), LINE, 0).finish()
    assert (outcome.origin_bytes, outcome.peak_bytes, outcome.bypassed_segments) == (6 * SEGMENT_BYTES, 0, 6)


def test_plans_hide_latency() -> None:
    """With an order announced the reader waits once, for its first byte; without, at every shard."""
    slow = SimulatedLine(connection_bytes_s=400e6, latency_s=0.2)
    told, untold = (
        SimulatedRun(small([[range(8)]], rate=40e6, ahead=ahead), slow, 8 * SEGMENT_BYTES).finish().waited_s for ahead in (16, None)
    )
    assert told < 0.3 < 8 * 0.2 <= untold


def test_an_epoch_is_announced_when_it_begins() -> None:
    """Not when the one before was read: until then nobody knows its order."""
    workload = small([[[0], [1]]])
    (script,) = workload.scripts
    run = SimulatedRun(replace(workload, scripts=(replace(script, moments=((0.0,), (60.0,))),)), LINE, 4 * SEGMENT_BYTES)
    while run.clock.now < 60.0:
        assert run.world.origin.sent_bytes <= SEGMENT_BYTES
        run.clock.step()
    assert run.finish().origin_bytes == 2 * SEGMENT_BYTES


def test_a_reader_takes_each_shard_as_long_as_it_was_seen_to() -> None:
    """What was recorded goes before a rate; a shard that took no time comes as fast as it can."""
    workload = small([[[0, 1]]], rate=float(SEGMENT_BYTES))
    (script,) = workload.scripts
    fast = SimulatedLine(connection_bytes_s=10.0 * SEGMENT_BYTES, latency_s=0.5)
    outcome = SimulatedRun(replace(workload, scripts=(replace(script, own_s=((3.0, 0.0),)),)), fast, 4 * SEGMENT_BYTES).finish()
    assert (outcome.seconds, outcome.waited_s) == (pytest.approx(3.5), pytest.approx(0.5))


def test_epochs_are_those_that_were_told() -> None:
    """A worker that is there for the second epoch only, as one of a loader that starts them anew, is counted in that, and waited for."""
    workload = small([[[0], [1]], [[2, 3, 2]]], rate=float(SEGMENT_BYTES))
    first, second = workload.scripts
    scripts = replace(first, numbers=(3, 4)), replace(second, numbers=(4,), moments=((9.0,),))
    outcome = SimulatedRun(replace(workload, scripts=scripts), LINE, 8 * SEGMENT_BYTES).finish()
    assert [epoch.read_bytes // SEGMENT_BYTES for epoch in outcome.epochs] == [1, 4]
    assert outcome.seconds > 12.0


def test_the_rest_of_a_shard_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no room for it when its reader came; there is before it gets there, so it waits for one first byte only."""
    run = SimulatedRun(small([[[0], [1]]], segments=2, rate=float(SEGMENT_BYTES)), SimulatedLine(latency_s=0.5), 4 * SEGMENT_BYTES)
    asked: list[int] = []
    demand_inside = run.world.demand_inside

    def refused_first(entry: Light, index: int, need: float, reader: ReaderName) -> bool:
        asked.append(index)
        return len(asked) > 1 and demand_inside(entry, index, need, reader)

    monkeypatch.setattr(run.world, "demand_inside", refused_first)
    assert run.finish().epochs[0].waited_s == pytest.approx(0.5)
    assert asked[:2] == [1, 1]


def test_overhead_is_no_room() -> None:
    """The index's share of the capacity holds no segment."""
    outcome = SimulatedRun(small([[range(4)] * 2]), LINE, 4 * SEGMENT_BYTES, "never-evict", overhead_bytes=2 * MIB).finish()
    assert outcome.epochs[1].origin_bytes == SEGMENT_BYTES


def test_an_unknown_policy() -> None:
    """The message names the known ones."""
    with pytest.raises(ValueError, match="ours, lru, never-evict"):
        replay(small([[[0]]]), LINE, 0, ["belady"])
    assert POLICIES == ("ours", "lru", "never-evict")


def test_the_models_constants_are_the_sidecars() -> None:
    """What the simulator had to copy from the asynchronous floor."""
    assert replay_ahead.ROUND_S == prefetcher.ROUND_S


def test_more_readers_than_are_looked_at_at_once_are_fetched_for_in_one_round() -> None:
    """The scheduler looks at so many readers before it says anything; the round goes on until it has said all."""
    run = SimulatedRun(small([[[0, 1, 2, 3]]] * (2 * scheduler.LOOKS + 1), segments=4), LINE, 16 * SEGMENT_BYTES)
    while run.clock.now <= replay_ahead.ROUND_S:
        assert run.clock.step()
        if run.clock.now == replay_ahead.ROUND_S and run.world.ahead_in_air:
            return
    raise AssertionError("the first round asked for nothing ahead")


def test_a_round_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left over is said in the next one."""
    monkeypatch.setattr(replay_ahead, "DECISIONS", 1)
    outcome = SimulatedRun(small([[[0, 1, 2, 3]]] * (2 * scheduler.LOOKS + 1)), LINE, 16 * SEGMENT_BYTES).finish()
    assert outcome.origin_bytes == 4 * SEGMENT_BYTES


def test_a_reader_of_a_whole_shard_leases_its_segment_and_the_next() -> None:
    """As the sidecar's, by the same function; in the first epoch it leased what it asked for."""
    run = SimulatedRun(small([[[0]] * 2], segments=8), LINE, 16 * SEGMENT_BYTES)
    most, epochs = [0, 0], [0]
    run.events.on(EpochEnded, lambda _: epochs.append(0))
    while run.clock.step():
        if len(epochs) <= 2:
            most[len(epochs) - 1] = max(most[len(epochs) - 1], run.world.leased)
    assert most[0] > most[1] == FIRST_BREADTH


def after_another(*, ahead: int | None, is_named: bool = True, pause_s: float = 70.0) -> list[int]:
    """Segments fetched for each epoch of a job that reads 64 shards of its own when another one has read as many, in the same folder."""
    rng = random.Random(5)
    first, second = ([rng.sample(range(start, start + 64), 64) for _ in range(epochs)] for start, epochs in ((0, 2), (64, 4)))
    workload = small([first, second], rate=800e6, ahead=ahead, jobs=True)
    scripts = [replace(script, is_named=is_named) for script in workload.scripts]
    scripts[1] = replace(scripts[1], after="job0", begins_at=pause_s)
    run = SimulatedRun(replace(workload, scripts=tuple(scripts)), LINE, 40 * SEGMENT_BYTES)
    sent: list[int] = []
    run.events.on(EpochEnded, lambda _: sent.append(run.world.origin.sent_bytes // SEGMENT_BYTES))
    run.finish()
    return [after - before for before, after in pairwise(sent[1:])]


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("ahead", [16, None])
def test_a_finished_jobs_bytes_leave_first(ahead: int | None, *, is_named: bool) -> None:
    """From its second epoch on the next job has the cache for itself, but for two segments of its reader; one of no name too."""
    assert max(after_another(ahead=ahead, is_named=is_named)[1:]) <= 64 - 40 + 2


def test_a_job_that_has_just_ended_is_still_waited_for() -> None:
    """For a minute after it was last heard of: its bytes are kept from the next one."""
    assert min(after_another(ahead=None, pause_s=0.0)[1:]) > 64 - 40 + 8


def test_a_job_is_live_as_long_as_it_is_there() -> None:
    """Its connections are open while it trains on one shard for an hour: what it has read is kept from a job beside it."""
    workload = small([[range(8), range(8)], [range(8, 32)] * 8], rate=100e6, ahead=None, jobs=True)
    first, second = workload.scripts
    scripts = replace(first, moments=((), (3600.0,))), replace(second, begins_at=3000.0)
    run = SimulatedRun(replace(workload, scripts=scripts), LINE, 16 * SEGMENT_BYTES)
    sent: dict[tuple[str, int], int] = {}
    run.events.on(EpochEnded, lambda fact: sent.update({(fact.job, fact.epoch): run.world.origin.sent_bytes}))
    run.finish()
    assert sent["job0", 1] - sent["job1", 7] <= 4 * SEGMENT_BYTES


@pytest.mark.parametrize(("is_named", "job"), [(True, "job0"), (False, "")])
def test_who_names_no_reader_is_the_anonymous_job(job: str, *, is_named: bool) -> None:
    """And announces nothing, whatever others do."""
    workload = small([[range(4)]], ahead=2)
    run = SimulatedRun(
        replace(workload, scripts=tuple(replace(script, is_named=is_named) for script in workload.scripts)), LINE, 4 * SEGMENT_BYTES
    )
    announced = 0
    while run.clock.step():
        announced = max(announced, len(run.plans))
    assert (list(run.plans.epochs.of(shards(1)[0].group)), announced) == ([job], int(is_named))


def test_a_set_is_told_with_the_plan() -> None:
    """By its pattern, as a loader does."""
    workload = small([[range(4)]], ahead=2)
    pattern = "https://o/set/{0..3}.tar"
    run = SimulatedRun(
        replace(workload, scripts=tuple(replace(script, set_name=pattern) for script in workload.scripts)), LINE, 4 * SEGMENT_BYTES
    )
    run.finish()
    ((_, found),) = run.plans.epochs.of(run.plans.epochs.sets.key(pattern)).items()
    assert found.opened == 4
