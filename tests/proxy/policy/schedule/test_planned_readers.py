"""The readers that have announced something, and their cursors."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.policy.plans.registry import PlanAdvanced, PlanRegistry
from forebay_proxy.policy.schedule.cursors import ReaderCursors
from forebay_proxy.policy.schedule.planned_readers import LENGTH_WEIGHT, SLOW, START_BYTES_S, JobRates, PlannedReaders, ShardLengths

SHARDS = [shard_of(f"https://o/set/{number}.tar") for number in range(5)]


class View:
    """Every shard is as long as it says."""

    layout = DEFAULT_LAYOUT

    length_bytes: int | None = 100

    def capacity(self) -> int:
        return 2**40

    def length(self, name: str) -> int | None:
        return self.length_bytes

    def has(self, name: str, index: int) -> bool:
        raise AssertionError(name)

    def fresh(self, name: str, job: str) -> bool:
        raise AssertionError(name)

    def may_ask(self, origin: str) -> bool:
        raise AssertionError(origin)


class Scheduled:
    def __init__(self) -> None:
        self.clock = FakeClock()
        events = Events()
        self.plans = PlanRegistry(self.clock, events)
        self.view = View()
        self.readers = PlannedReaders(self.plans, self.view)
        self.heard: list[tuple[ReaderCursors | None, ReaderCursors | None]] = []
        events.on(PlanAdvanced, self.advanced)

    def advanced(self, fact: PlanAdvanced) -> None:
        self.heard.append(self.readers.advanced(fact.plan))


@pytest.fixture
def scheduled() -> Scheduled:
    return Scheduled()


def test_another_plan_begins_anew_with_the_same_window(scheduled: Scheduled) -> None:
    """How far ahead the reader needs was learnt before."""
    scheduled.plans.replace(reader(), SHARDS)
    before = scheduled.readers.get(reader())
    scheduled.plans.replace(reader(), SHARDS[::-1])
    after = scheduled.readers.get(reader())
    assert before is not None
    assert after is not None
    assert (after is not before, after.window is before.window) == (True, True)
    assert before in {over for over, _ in scheduled.heard}


@pytest.mark.parametrize(("length", "known"), [(100, 100), (None, SEGMENT_BYTES)])
def test_the_shard_a_reader_is_in(scheduled: Scheduled, length: int | None, known: int) -> None:
    """Its bytes are lead too; of one that nobody knows, as many as its job's shards have."""
    scheduled.view.length_bytes = length
    scheduled.plans.replace(reader(), SHARDS)
    scheduled.plans.opened(SHARDS[0], reader())
    mine = scheduled.readers.get(reader())
    assert mine is not None
    assert (mine.inside.bytes, mine.position) == (known, 1)


def test_how_long_it_took_is_its_jobs_rate(scheduled: Scheduled) -> None:
    """And that it waited is forgotten with the shard it waited in."""
    scheduled.plans.replace(reader(), SHARDS)
    scheduled.plans.opened(SHARDS[0], reader())
    mine = scheduled.readers.get(reader())
    assert mine is not None
    mine.inside.has_waited = True
    scheduled.clock.advance(4.0)
    scheduled.plans.opened(SHARDS[1], reader())
    assert (scheduled.readers.rates.rate("job"), mine.inside.has_waited) == (25.0, False)


def test_the_newest_count_most() -> None:
    """And the first is all there is to go by."""
    lengths = ShardLengths()
    lengths.learn("a", 100)
    assert lengths.expected("a", 7) == 100
    lengths.learn("a", 200)
    assert lengths.expected("a", 7) == 100 + int(100 * LENGTH_WEIGHT)


def test_each_job_has_its_own() -> None:
    """Of one of which nothing is known, what the asker says; and all are forgotten when nobody reads."""
    lengths = ShardLengths()
    lengths.learn("a", 100)
    assert (lengths.expected("b", 7), "a" in lengths, "b" in lengths) == (7, True, False)
    lengths.clear()
    assert "a" not in lengths


def test_nothing_measured_is_a_usual_rate() -> None:
    """Also with an interval of none."""
    job_rates = JobRates()
    assert job_rates.rate("job") == START_BYTES_S
    job_rates.learn("job", 0.0, 100)
    assert job_rates.rate("job") == START_BYTES_S


def test_an_interval_counts_as_long_as_it_was() -> None:
    """A burst of short ones is no rate: 110 bytes in 10.1 s."""
    job_rates = JobRates()
    job_rates.learn("job", 10.0, 100)
    job_rates.learn("job", 0.1, 10)
    assert 10 < job_rates.rate("job") < 12


def test_only_one_that_is_far_slower_goes_at_its_own_pace() -> None:
    """Shards of unlike lengths alone do not make it so."""
    job_rates = JobRates()
    job_rates.learn("job", 1.0, 100)
    assert job_rates.rate("job", 4.0) == job_rates.rate("job", SLOW) == 100
    assert job_rates.rate("job", SLOW / 2) == 100 * SLOW / 2
    assert job_rates.rate("other") == START_BYTES_S
