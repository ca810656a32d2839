"""What is opened next, what is fetched first, who leaves."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import FakeClock, reader, shard_of

from forebay_proxy.passes import GROUP_LIFE_S
from forebay_proxy.plan import SILENCE_S, START_RATE, Plans
from forebay_proxy.shard import Shard
from forebay_proxy.use import Rank

GROUP = "https://o/set/"
NAMES = [f"{GROUP}{number}.tar" for number in range(40)]
SHARDS = [shard_of(name) for name in NAMES]
R, S = reader(0), reader(1)


def plans_of(clock: FakeClock | None = None) -> tuple[Plans, FakeClock]:
    clock = clock or FakeClock()
    return Plans(clock), clock


def rank(plans: Plans, index: int) -> Rank:
    return plans.next_use(NAMES[index], GROUP).rank


def ahead(plans: Plans) -> list[str]:
    """What is fetched first, names only."""
    return [shard.name for _, _, shard in plans.nearest()]


def test_opening_in_order_advances() -> None:
    """Each planned opening moves the position by one."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:3])
    assert [plans.opened(shard, R) for shard in SHARDS[:3]] == ["planned"] * 3
    assert ahead(plans) == []


def test_what_is_passed_over_is_skipped() -> None:
    """Opening a later one moves there; what lies between is announced no more."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:4])
    assert plans.opened(SHARDS[2], R) == "skipped"
    assert ahead(plans) == NAMES[3:4]
    assert plans.need_at(NAMES[1]) is None


def test_a_deviation_moves_nothing() -> None:
    """A shard that is not in what is left."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:3])
    plans.opened(SHARDS[0], R)
    assert plans.opened(SHARDS[9], R) == "unplanned"
    assert plans.opened(SHARDS[0], R) == "unplanned"
    assert ahead(plans) == NAMES[1:3]


def test_without_a_plan_nothing_is_moved() -> None:
    """Nor for somebody anonymous."""
    plans, _ = plans_of()
    assert (plans.opened(SHARDS[0], R), plans.opened(SHARDS[0], None)) == ("no-plan", "no-plan")


def test_a_shard_announced_twice_is_opened_twice() -> None:
    """A resampled plan: the second mention counts once the first is passed."""
    plans, _ = plans_of()
    plans.replace(R, [SHARDS[0], SHARDS[1], SHARDS[0], SHARDS[2]])
    assert [plans.opened(SHARDS[index], R) for index in (0, 1)] == ["planned"] * 2
    assert plans.need_at(NAMES[0]) is not None
    assert [plans.opened(SHARDS[index], R) for index in (0, 2)] == ["planned"] * 2
    assert plans.need_at(NAMES[0]) is None


def test_a_repeat_far_behind_is_found() -> None:
    """More than any look-ahead later."""
    plans, _ = plans_of()
    plans.replace(R, [SHARDS[0], *SHARDS[1:3] * 3000, SHARDS[0]])
    assert plans.opened(SHARDS[0], R) == "planned"
    assert plans.need_at(NAMES[0]) is not None


def test_a_plan_appended_to_for_long_stays_right() -> None:
    """Past 4,096 openings what is behind is dropped, also where shards repeat."""
    plans, chance = plans_of()[0], random.Random(3)
    order = [chance.choice(SHARDS) for _ in range(9000)]
    plans.append(R, order[:50])
    for index, shard in enumerate(order):
        if index % 50 == 0:
            plans.append(R, order[index + 50 : index + 100])
        assert plans.opened(shard, R) == "planned"
    assert len(plans.all()[0].shards) < 6000
    assert ahead(plans) == []


def test_withdrawing_forgets_what_is_unread() -> None:
    """Once; the second time there is nothing."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:3])
    plans.replace(S, SHARDS[2:4])
    assert plans.withdraw(R)
    assert not plans.withdraw(R)
    assert plans.need_at(NAMES[0]) is None
    assert plans.need_at(NAMES[2]) is not None


def test_replacing_keeps_the_measured_rate() -> None:
    """A new epoch's reader is no slower than the old one's."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:3])
    for shard in SHARDS[:3]:
        plans.opened(shard, R)
        clock.advance(0.5)
    rate = plans.all()[0].rate
    assert rate > START_RATE
    plans.replace(R, SHARDS[:2])
    assert plans.all()[0].rate == rate


def test_a_silent_reader_is_forgotten() -> None:
    """After 60 s, unless it is inside a shard."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:2])
    plans.replace(S, SHARDS[:2])
    clock.advance(SILENCE_S + 1)
    assert plans.expire(lambda who: who == S) == [R]
    assert len(plans) == 1


def test_who_was_heard_stays() -> None:
    """Any sign of life will do."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:2])
    clock.advance(SILENCE_S - 1)
    plans.heard(R)
    clock.advance(2)
    assert plans.expire(lambda who: False) == []


def test_the_nearest_need_over_two_readers_comes_first() -> None:
    """By position and measured rate, not by who announced first."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:6])
    plans.replace(S, SHARDS[10:16])
    for index in range(3):
        plans.opened(SHARDS[10 + index], S)  # fast
        clock.advance(0.1)
    assert ahead(plans)[:4] == [NAMES[0], *NAMES[13:16]]


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 39), max_size=12), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 30)), max_size=20),
)
def test_nearest_agrees_with_sorting_everything(orders: list[list[int]], steps: list[tuple[int, float]]) -> None:
    """Brute force over all that is left; also ``need_at`` is the smallest over all readers."""
    plans, clock = plans_of()
    for number, order in enumerate(orders):
        plans.replace(reader(number), [SHARDS[index] for index in order])
    for number, seconds in steps:
        clock.advance(seconds)
        plan = next((plan for plan in plans.all() if plan.reader == reader(number)), None)
        if plan is not None and plan.position < len(plan.shards):
            assert plans.opened(plan.shards[plan.position], plan.reader) == "planned"
    left = [(plan.need_at(index), plan.shards[index].name) for plan in plans.all() for index in range(plan.position, len(plan.shards))]
    assert [need for need, _, _ in plans.nearest()] == sorted(need for need, _ in left)
    for name in NAMES:
        assert plans.need_at(name) == min((need for need, owner in left if owner == name), default=None)


def test_the_unread_of_a_job_without_plans_stay() -> None:
    """Opened last leaves first, unread stays longest."""
    plans, clock = plans_of()
    plans.opened(SHARDS[0], R)
    clock.advance(1)
    plans.opened(SHARDS[1], R)
    assert [rank(plans, index) for index in (0, 1, 2)] == [Rank.READ, Rank.READ, Rank.SOON]
    assert plans.next_use(NAMES[1], GROUP) < plans.next_use(NAMES[0], GROUP)


def test_announced_farther_leaves_sooner() -> None:
    """And announced at all stays longer than unread without an announcement of a job that plans."""
    plans, _ = plans_of()
    plans.opened(SHARDS[9], R)
    plans.replace(R, SHARDS[:3])
    assert [rank(plans, index) for index in (0, 2, 5)] == [Rank.AHEAD, Rank.AHEAD, Rank.LATER]
    assert plans.next_use(NAMES[5], GROUP) < plans.next_use(NAMES[2], GROUP) < plans.next_use(NAMES[0], GROUP)


def test_a_second_job_that_has_not_read_it_keeps_it() -> None:
    """Read means read by every live job."""
    plans, _ = plans_of()
    plans.opened(SHARDS[0], reader(job="one"))
    plans.opened(SHARDS[1], reader(job="two"))
    assert rank(plans, 0) is Rank.SOON
    plans.opened(SHARDS[0], reader(job="two"))
    assert rank(plans, 0) is Rank.READ


def test_a_pass_begins_again_with_the_first_repeat() -> None:
    """Then everything else is unread once more."""
    plans, _ = plans_of()
    for index in (0, 1, 0):
        plans.opened(SHARDS[index], None)
    assert [rank(plans, index) for index in (0, 1)] == [Rank.READ, Rank.SOON]


def test_a_group_nobody_opens_is_dead() -> None:
    """After six hours; and forgotten with the next look."""
    plans, clock = plans_of()
    plans.opened(SHARDS[0], R)
    clock.advance(GROUP_LIFE_S + 1)
    assert rank(plans, 0) is Rank.DEAD
    plans.expire(lambda who: False)
    assert rank(plans, 0) is Rank.DEAD


def test_what_was_asked_for_ahead_counts_as_unread() -> None:
    """Until a job reads its group."""
    plans, _ = plans_of()
    plans.declare(SHARDS[0])
    assert rank(plans, 0) is Rank.SOON
    plans.opened(SHARDS[0], R)
    assert rank(plans, 0) is Rank.READ


def test_a_reader_inside_outweighs_everything() -> None:
    """Whatever else is said of the shard."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:3])
    assert plans.inside(NAMES[5]) > plans.next_use(NAMES[0], GROUP)


def test_whoever_listens_hears_which_shards_moved() -> None:
    """Announced, opened, passed over, withdrawn."""
    plans, _ = plans_of()
    heard: list[set[str]] = []
    plans.changed = lambda names: heard.append(set(names))
    plans.replace(R, SHARDS[:4])
    plans.opened(SHARDS[1], R)
    plans.withdraw(R)
    assert heard == [set(NAMES[:4]), set(NAMES[:2]), set(NAMES[2:4])]


def test_plans_of_many_readers_are_told() -> None:
    """For the status page and three in the morning."""
    plans, _ = plans_of()
    plans.replace(R, list[Shard](SHARDS[:4]), epoch=3, set_name="set")
    assert repr(plans) == "<Plans 1 readers, 4 shards ahead, 0 groups>"
    assert (plans.all()[0].epoch, plans.all()[0].set_name, plans.last_opened(NAMES[0])) == (3, "set", None)
