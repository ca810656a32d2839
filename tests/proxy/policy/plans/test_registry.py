"""What is opened next, what is fetched first, who leaves."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import FakeClock, need_at, reader, shard_of
from support.lengths import examples
from support.replays import nearest

from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.plan_storage import SLICE
from forebay_proxy.policy.plans.registry import CUT_FROM, SILENCE_S, START_RATE, NextUseChanged, PlanRegistry, Rank

GROUP = "https://o/set/"
NAMES = [f"{GROUP}{number}.tar" for number in range(40)]
SHARDS = [shard_of(name) for name in NAMES]
R, S = reader(0), reader(1)


def plans_of(clock: FakeClock | None = None) -> tuple[PlanRegistry, FakeClock]:
    clock = clock or FakeClock()
    return PlanRegistry(clock), clock


def rank(plans: PlanRegistry, index: int) -> Rank:
    return plans.next_use(NAMES[index], GROUP).rank


def ahead(plans: PlanRegistry) -> list[str]:
    """What is fetched first, names only."""
    return [shard.name for _, _, shard in nearest(plans)]


def test_a_repeat_far_behind_is_found() -> None:
    """More than any look-ahead later."""
    plans, _ = plans_of()
    plans.replace(R, [SHARDS[0], *SHARDS[1:3] * 3000, SHARDS[0]])
    assert plans.opened(SHARDS[0], R) == "planned"
    assert need_at(plans, NAMES[0]) is not None


def test_a_plan_appended_to_for_long_stays_right() -> None:
    """Past 4,096 openings what is behind is dropped, also where shards repeat."""
    plans, chance = plans_of()[0], random.Random(3)
    order = [chance.choice(SHARDS) for _ in range(9000)]
    plans.append(R, order[:50])
    for index, shard in enumerate(order):
        if index % 50 == 0:
            plans.append(R, order[index + 50 : index + 100])
        assert plans.opened(shard, R) == "planned"
    assert len(plans.all()[0]) < 6000
    assert ahead(plans) == []


def test_replacing_keeps_the_measured_rate() -> None:
    """A new epoch's reader is no slower than the old one's."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:3])
    for shard in SHARDS[:3]:
        plans.opened(shard, R)
        clock.advance(0.5)
    rate = plans.all()[0].pace.rate
    assert rate > START_RATE
    plans.replace(R, SHARDS[:2])
    assert plans.all()[0].pace.rate == rate


def test_a_silent_reader_is_forgotten() -> None:
    """After 60 s, unless it is inside a shard."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:2])
    plans.replace(S, SHARDS[:2])
    clock.advance(SILENCE_S + 1)
    plans.expire(lambda who: who == S)
    assert [plan.reader for plan in plans.all()] == [S]


def test_who_was_heard_stays() -> None:
    """Any sign of life will do."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS[:2])
    clock.advance(SILENCE_S - 1)
    plans.heard(R)
    clock.advance(2)
    plans.expire(lambda who: False)
    assert len(plans) == 1


@settings(max_examples=examples(50))
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
        if plan is not None and plan.position < len(plan):
            assert plans.opened(plans.shard_at(plan, plan.position), plan.reader) == "planned"
    left = [(plan.need_at(index), plans.shard_at(plan, index).name) for plan in plans.all() for index in range(plan.position, len(plan))]
    assert [need for need, _, _ in nearest(plans)] == sorted(need for need, _ in left)
    for name in NAMES:
        assert need_at(plans, name) == min((need for need, owner in left if owner == name), default=None)


def test_announced_farther_leaves_sooner() -> None:
    """And announced at all stays longer than unread without an announcement of a job that plans."""
    plans, _ = plans_of()
    plans.opened(SHARDS[9], R)
    plans.replace(R, SHARDS[:3])
    assert [rank(plans, index) for index in (0, 2, 5)] == [Rank.AHEAD, Rank.AHEAD, Rank.LATER]
    assert plans.next_use(NAMES[5], GROUP) < plans.next_use(NAMES[2], GROUP) < plans.next_use(NAMES[0], GROUP)


def test_a_reader_inside_outweighs_everything() -> None:
    """Whatever else is said of the shard."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:3])
    assert plans.inside(NAMES[5]) > plans.next_use(NAMES[0], GROUP)


def test_whoever_listens_hears_which_shards_moved() -> None:
    """Announced, opened, passed over, withdrawn."""
    plans, _ = plans_of()
    heard: list[set[str]] = []
    plans._events.on(NextUseChanged, lambda fact: heard.append(set(fact.names)))
    for name in NAMES[:3]:  # who has not asked is not told
        plans.next_use(name, GROUP)
    plans.replace(R, SHARDS[:4])
    plans.opened(SHARDS[1], R)
    plans.withdraw(R)
    assert heard == [set(NAMES[:3]), set(NAMES[:2]), {NAMES[2]}]
    plans.forget(NAMES[0])
    plans.replace(R, SHARDS[:1])
    assert len(heard) == 3


# Said twice, said by liars


def test_the_same_plan_again_changes_nothing() -> None:
    """But when its reader was last heard: no shard moves, and nobody is told that a plan was replaced."""
    plans, clock = plans_of()
    plans.next_use(NAMES[0], GROUP)
    plans.replace(R, SHARDS[:3], 1)
    plan, told = plans.get(R), list[object]()
    plans._events.listen(told.append)
    clock.advance(SILENCE_S - 1)
    plans.replace(R, SHARDS[:3], 1)
    assert (plans.get(R), told) == (plan, [])
    clock.advance(2)
    plans.expire(lambda who: False)
    assert len(plans) == 1


def test_a_plan_sent_again_late_keeps_the_position() -> None:
    """What is ahead, or the whole of this epoch once more; the next epoch in the same order begins at its first shard."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:4], 1)
    plans.opened(SHARDS[0], R)
    for again in (SHARDS[1:4], SHARDS[:4]):
        plans.replace(R, again, 1)
        assert ahead(plans) == NAMES[1:4]
    plans.replace(R, SHARDS[:4], 2)
    assert ahead(plans) == NAMES[:4]


def test_a_plan_read_to_its_end_may_begin_anew() -> None:
    """The same list without an epoch is the next pass over an unshuffled set."""
    plans, _ = plans_of()
    for _ in range(2):
        plans.replace(R, SHARDS[:2])
        assert [plans.opened(shard, R) for shard in SHARDS[:2]] == ["planned"] * 2


def test_a_skip_is_one_opening() -> None:
    """A reader that leaps over a thousand shards does not read a thousand a second from then on."""
    plans, clock = plans_of()
    plans.replace(R, SHARDS)
    plans.opened(SHARDS[0], R)
    clock.advance(1)
    plans.opened(SHARDS[39], R)
    assert plans.all()[0].pace.rate <= 1


def test_a_leap_over_many_is_cleared_away_in_slices() -> None:
    """What was passed is ahead of nobody at once, however much of it is still written down."""
    plans, _ = plans_of()
    many = [shard_of(f"{GROUP}{number}.tar") for number in range(10_000)]
    plans.replace(R, many)
    assert plans.opened(many[9000], R) == "skipped"
    assert need_at(plans, many[8999].name) is None
    assert list(plans.mentions(many[8999].name)) == []
    assert plans.opened(many[8999], R) == "repeated"
    plans.storage.tidy()
    assert plans.opened(many[9001], R) == "planned"


def test_two_readers_of_one_name_take_turns_at_being_wrong() -> None:
    """The later plan counts; openings of the other are repeats, skips or unplanned, and nothing breaks."""
    plans, _ = plans_of()
    plans.replace(R, SHARDS[:4])
    plans.replace(R, SHARDS[2:6])
    said = [plans.opened(SHARDS[index], R) for index in (0, 2, 1, 4, 3, 5, 5)]
    assert said == ["unplanned", "planned", "unplanned", "skipped", "repeated", "planned", "repeated"]


# In slices


def test_a_plan_half_taken_is_nobodys() -> None:
    """Until its last slice the old one counts; given up, it leaves nothing behind."""
    plans, _ = plans_of()
    many = [shard_of(f"{GROUP}new{number}.tar") for number in range(16 * SLICE)]
    plans.replace(R, SHARDS[:2])
    taking = plans.replacing(R, many)
    for _ in range(9):
        next(taking)
        assert ahead(plans) == NAMES[:2]
        assert need_at(plans, many[0].name) is None
        assert list(plans.mentions(many[0].name)) == []
    taking.close()  # type: ignore[attr-defined]
    plans.storage.tidy()
    assert (len(plans.storage.mentions), plans.storage.entries_held) == (2, 2)
    for _ in plans.replacing(R, many):
        pass
    assert len(ahead(plans)) == 16 * SLICE


def test_two_plans_taken_at_once_do_not_mix() -> None:
    """A slice of the one, a slice of the other: both are whole in the end, and the third's openings between count."""
    plans, _ = plans_of()
    first, second = ([shard_of(f"{GROUP}{letter}{number}.tar") for number in range(12 * SLICE)] for letter in "ab")
    plans.replace(reader(2), SHARDS[:9])
    for number, _ in enumerate(zip(plans.replacing(R, first), plans.replacing(S, second), strict=True)):
        if number < 9:
            assert plans.opened(SHARDS[number], reader(2)) == "planned"
    assert Counter(ahead(plans)) == Counter(shard.name for shard in (*first, *second))


# Templates and credentials

TEXT = "https://o/set/{0..39}.tar"


def test_indices_and_lists_name_the_same_shards() -> None:
    """One number for a shard, whoever mentions it and how."""
    plans, _ = plans_of()
    plans.replace(R, Entries([], pattern=TEXT, indices=[3, 1, 3]))
    plans.replace(S, [SHARDS[1]])
    assert len(plans.storage.mentions) == 2
    assert sorted(plan.reader.rank for plan, _ in plans.mentions(NAMES[1])) == sorted([R.rank, S.rank])
    assert [plans.opened(SHARDS[index], R) for index in (3, 1, 3)] == ["planned"] * 3


def test_each_plan_asks_with_its_own_credential() -> None:
    """Two jobs with a token each, as lists and as indices, and one without: nobody is asked with another's."""
    plans, _ = plans_of()
    tokens = {reader(number): (("Authorization", f"Bearer {number}"),) for number in range(4)}
    for number, (who, headers) in enumerate(tokens.items()):
        listed = [shard_of(NAMES[7], credential=f"Bearer {number}")]
        plans.replace(who, Entries([], headers, pattern=TEXT, indices=[7]) if number % 2 else listed)
    plans.replace(reader(9), [SHARDS[7]])
    plans.replace(reader(8), Entries([], pattern=TEXT, indices=[7]))
    asked = {plan.reader: plans.shard_at(plan, 0).credential.headers for plan in plans.all()}
    assert asked == {**tokens, reader(9): (), reader(8): ()}
    assert len(plans.storage.mentions) == 1


def test_credentials_announced_anew_while_a_plan_is_cut_are_asked_with() -> None:
    """The beginning of a long plan is dropped in slices; the reader says the same again between two of them, with a fresher token."""
    plans, _ = plans_of()
    old, new = ([shard_of(SHARDS[number % 7].name, credential=token) for number in range(CUT_FROM + 300)] for token in ("old", "new"))
    plans.replace(R, old)
    for shard in old[:CUT_FROM]:
        plans.opened(shard, R)
    appending = plans.appending(R, new[:1])
    next(appending)  # it is being copied
    plans.replace(R, new[CUT_FROM:])
    for _ in appending:
        pass
    plan = plans.all()[0]
    asked = {plans.shard_at(plan, index).credential for index in range(plan.position, len(plan))}
    assert asked == {new[0].credential}
    assert len(plan) - plan.position == 301


# Against a naive model

WHO = [reader(number) for number in range(3)]
steps = st.one_of(
    st.tuples(st.just("replace"), st.integers(0, 2), st.lists(st.integers(0, 9), max_size=8)),
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.integers(0, 9), max_size=5)),
    st.tuples(st.just("indices"), st.integers(0, 2), st.lists(st.integers(0, 9), max_size=8)),
    st.tuples(st.just("withdraw"), st.integers(0, 2), st.just([0])),
    st.tuples(st.just("opened"), st.integers(0, 2), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(steps, max_size=25))
def test_plans_agree_with_lists(script: list[tuple[str, int, list[int]]]) -> None:
    """What is ahead of whom, what an opening is called, and in the end nothing is left."""
    plans, clock = plans_of()
    model: dict[int, tuple[list[int], list[int]]] = {}  # (passed, ahead)
    for what, who, shards in script:
        clock.advance(1)
        if what in ("replace", "indices"):
            if model.get(who, ([], [-1]))[1] != shards:
                model[who] = ([], shards)
            picked = Entries([], pattern=TEXT, indices=shards) if what == "indices" else [SHARDS[index] for index in shards]
            plans.replace(WHO[who], picked)
        elif what == "append":
            passed, left = model.get(who, ([], []))
            model[who] = (passed, left + shards)
            plans.append(WHO[who], [SHARDS[index] for index in shards])
        elif what == "withdraw":
            assert plans.withdraw(WHO[who]) == (model.pop(who, None) is not None)
        else:
            for index in shards:
                passed, left = model.get(who, ([], []))
                place = left.index(index) if index in left else None
                said = "no-plan" if who not in model else "repeated" if index in passed else "unplanned"
                if place is not None:
                    said = "skipped" if place else "planned"
                    model[who] = (passed + left[: place + 1], left[place + 1 :])
                assert plans.opened(SHARDS[index], WHO[who]) == said
        for name, index in zip(NAMES[:10], range(10), strict=True):
            mentioned = Counter((plan.reader, index) for plan, _ in plans.mentions(name))
            assert mentioned == Counter((WHO[who], index) for who, (_, left) in model.items() for shard in left if shard == index)
    for who in WHO:
        plans.withdraw(who)
    plans.storage.tidy()
    assert (len(plans.storage.mentions), plans.storage.entries_held, plans.storage.name_bytes) == (0, 0, 0)


def test_a_job_that_vanished_is_waited_for_by_nobody() -> None:
    """What only it has not read is as good as read, once it has been silent for as long as a plan lives."""
    plans, clock = plans_of()
    for shard in SHARDS[:2]:
        plans.opened(shard, replace(R, job="gone"))
    plans.opened(SHARDS[2], replace(R, job="here"))
    assert plans.next_use(SHARDS[2].name, SHARDS[2].group).rank is Rank.SOON
    clock.now += SILENCE_S + 1
    plans.opened(SHARDS[1], replace(R, job="here"))
    assert plans.next_use(SHARDS[2].name, SHARDS[2].group).rank is Rank.READ
