"""What to fetch next: cursors that never pass what is missing, and turns that starve nobody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import FakeClock, reader, shard_of
from support.lengths import examples

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.segments import SEGMENT_BYTES as SEGMENT
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanAdvanced, PlanRegistry
from forebay_proxy.policy.schedule import scheduler as scheduler_module
from forebay_proxy.policy.schedule.scheduler import AT_ONCE, CHECKS_AHEAD, FRONT, PrefetchRequest, PrefetchScheduler

SHARDS = [shard_of(f"https://{'ab'[number % 2]}/set/{number}.tar") for number in range(12)]
LONG = [shard_of(f"https://a/set/{number}.tar") for number in range(100, 200)]


@dataclass
class View:
    """A cache that holds what it is told to."""

    layout = DEFAULT_LAYOUT

    lengths: dict[str, int] = field(default_factory=dict)  # of every shard there is
    known: set[str] = field(default_factory=set)
    here: set[tuple[str, int]] = field(default_factory=set)
    stale: set[tuple[str, str]] = field(default_factory=set)  # (shard, job) to be compared first
    stuck: set[str] = field(default_factory=set)  # origins that take no more
    room: int = 1 << 50

    def capacity(self) -> int:
        return self.room

    def length(self, name: str) -> int | None:
        return self.lengths[name] if name in self.known else None

    def has(self, name: str, index: int) -> bool:
        return (name, index) in self.here

    def fresh(self, name: str, job: str) -> bool:
        return (name, job) not in self.stale

    def may_ask(self, origin: str) -> bool:
        return origin not in self.stuck


class Scheduled:
    """Plans, a stock, and the scheduler over them."""

    def __init__(self, shards: list[Shard] | None = None, segments: int = 2, *, known: bool = True) -> None:
        self.clock = FakeClock()
        events = Events()
        self.plans = PlanRegistry(self.clock, events)
        self.view = View()
        self.ahead = PrefetchScheduler(self.plans, self.view)
        events.on(PlanAdvanced, lambda fact: self.ahead.advanced(fact.plan))
        for shard in shards or [*SHARDS, *LONG]:
            self.view.lengths[shard.name] = segments * SEGMENT
            if known:
                self.view.known.add(shard.name)

    def take(self, request: PrefetchRequest) -> None:
        """Fetch it, in no time."""
        name = request.shard.name
        if request.index is not None:
            self.view.here.add((name, request.index))
            return
        if name not in self.view.known:
            self.view.known.add(name)
            if self.view.lengths[name]:
                self.view.here.add((name, 0))
        self.view.stale -= {(name, request.plan.reader.job)}
        self.ahead.opened(name)

    def wishes(self, most: int = 10_000) -> list[tuple[str, int | None]]:
        """Everything wished for until nothing is, taken at once."""
        told: list[tuple[str, int | None]] = []
        while len(told) < most:
            request = self.ahead.next()
            if request is None and not self.ahead.has_more:
                break
            if request is not None:
                told.append((request.shard.name, request.index))
                self.take(request)
                self.ahead.granted(request)
        return told


def names(shards: list[Shard]) -> list[str]:
    return [shard.name for shard in shards]


def test_heads_of_the_next_shards_come_before_tails_of_far_ones() -> None:
    """Two readers of long shards: each segment has its own part of the reading time."""
    scheduled = Scheduled(segments=4)
    scheduled.plans.replace(reader(0), LONG[:2])
    scheduled.clock.advance(0.1)  # the second is needed a little later, by less than a segment takes
    scheduled.plans.replace(reader(1), LONG[2:4])
    order = scheduled.wishes()
    assert order[:4] == [(LONG[0].name, 0), (LONG[2].name, 0), (LONG[0].name, 1), (LONG[2].name, 1)]


def test_a_shard_that_is_not_known_is_opened_first() -> None:
    """Its opening brings the first segment; the others come after, once its length is known."""
    scheduled = Scheduled(known=False)
    scheduled.plans.replace(reader(), LONG[:1])
    assert scheduled.wishes() == [(LONG[0].name, None), (LONG[0].name, 1)]


def test_few_are_opened_while_no_length_is_known() -> None:
    """A quarter of the window each: shards may be of any size."""
    scheduled = Scheduled(known=False)
    scheduled.plans.replace(reader(), LONG)
    opened = [request for _ in range(20) if (request := scheduled.ahead.next()) is not None]
    assert [request.shard.name for request in opened] == names(LONG[:4])
    scheduled.take(opened[0])
    assert len(scheduled.wishes(40)) > 6


def test_a_window_ends_the_look_ahead() -> None:
    """All of them together are at most half the cache; moving on opens them again."""
    scheduled = Scheduled()
    scheduled.view.room = 16 * SEGMENT
    scheduled.plans.replace(reader(0), LONG[:50])
    scheduled.plans.replace(reader(1), LONG[50:])
    assert len(scheduled.wishes()) == 8
    assert scheduled.ahead.ahead_bytes(reader(0)) == 4 * SEGMENT
    scheduled.plans.opened(LONG[0], reader(0))
    assert scheduled.ahead.ahead_bytes(reader(0)) == 2 * SEGMENT
    assert [name for name, _ in scheduled.wishes()] == [LONG[2].name] * 2


def test_an_eviction_brings_the_cursor_back() -> None:
    """Also where the window is full of what lies beyond."""
    scheduled = Scheduled()
    scheduled.view.room = 16 * SEGMENT
    scheduled.plans.replace(reader(), LONG)
    assert len(scheduled.wishes()) == 8
    scheduled.view.here.discard((LONG[1].name, 1))
    scheduled.ahead.missing(LONG[1].name)
    assert scheduled.wishes() == [(LONG[1].name, 1)]


def test_a_stuck_origin_holds_up_its_own_shards_only() -> None:
    """Neither other readers nor the same reader's shards elsewhere; and when it goes on, the nearest are first."""
    scheduled = Scheduled()
    scheduled.plans.replace(reader(0), SHARDS)
    scheduled.view.stuck.add("https://a")
    assert {name for name, _ in scheduled.wishes()} == set(names(SHARDS[1::2]))
    scheduled.view.stuck.clear()
    assert scheduled.wishes() == [(shard.name, index) for shard in SHARDS[::2] for index in (0, 1)]


def test_what_fails_is_looked_past_until_it_is_forgiven() -> None:
    """It takes no place in the window."""
    scheduled = Scheduled()
    scheduled.view.room = 8 * SEGMENT
    scheduled.ahead.failed(LONG[0].name)
    scheduled.plans.replace(reader(), LONG)
    assert [name for name, _ in scheduled.wishes()] == [LONG[1].name] * 2 + [LONG[2].name] * 2
    scheduled.ahead.forgiven(LONG[0].name)
    assert scheduled.wishes() == [(LONG[0].name, 0), (LONG[0].name, 1)]


def test_who_finds_no_room_stands_aside() -> None:
    """The others are asked for; room is tried by the nearest first, and one refusal ends the trying."""
    scheduled = Scheduled()
    for number in range(3):
        scheduled.plans.replace(reader(number), LONG[10 * number : 10 * number + 10])
        scheduled.clock.advance(0.1)
    refused = []
    for _ in range(3):
        request = scheduled.ahead.next()
        assert request is not None
        refused.append(request.shard.name)
        scheduled.ahead.refused(request.plan.reader)
    assert refused == [LONG[0].name, LONG[10].name, LONG[20].name]
    assert scheduled.ahead.next() is None
    scheduled.ahead.room()
    again = scheduled.ahead.next()
    assert again is not None
    assert again.shard.name == LONG[0].name
    scheduled.ahead.refused(again.plan.reader)
    assert scheduled.ahead.next() is None
    scheduled.ahead.caught_up(reader(2))
    mine = scheduled.ahead.next()
    assert mine is not None
    assert mine.plan.reader == reader(2)
    scheduled.ahead.room()
    assert len(scheduled.wishes()) == 59  # and all goes on where it stood


def test_a_wait_lengthens_the_window_but_not_while_there_is_no_room() -> None:
    """Bytes win over lead."""
    scheduled = Scheduled()
    scheduled.plans.replace(reader(), LONG)
    before = scheduled.ahead.readers.window_bytes(reader())
    scheduled.ahead.waited(reader())
    assert scheduled.ahead.readers.window_bytes(reader()) == 2 * before
    assert scheduled.ahead.next() is not None
    scheduled.ahead.refused(reader())
    scheduled.ahead.waited(reader())
    assert scheduled.ahead.readers.window_bytes(reader()) == before


def test_a_reader_that_waits_is_reckoned_at_its_jobs_best_rate() -> None:
    """It is slow because its bytes are missing; else the fast ones would leave it ever further behind."""
    scheduled = Scheduled()
    for number in (0, 1):
        scheduled.plans.replace(reader(number), LONG[40 * number : 40 * number + 40])
    for step in range(6):  # the first opens twice as often
        scheduled.clock.advance(1.0)
        scheduled.plans.opened(LONG[step], reader(0))
        if step % 2:
            scheduled.plans.opened(LONG[40 + step // 2], reader(1))
    first = Counter(name in names(LONG[40:]) for name, _ in scheduled.wishes(12))
    scheduled.ahead.waited(reader(1))
    second = Counter(name in names(LONG[40:]) for name, _ in scheduled.wishes(12))
    assert second[True] > first[True]


def test_jobs_share_an_origin_by_bytes() -> None:
    """Within one segment, however many readers each has and however soon they need what."""
    scheduled = Scheduled()
    for number in range(5):
        scheduled.plans.replace(reader(number, "many"), LONG[10 * number : 10 * number + 10])
    scheduled.clock.advance(100.0)
    scheduled.plans.replace(reader(9, "one"), LONG[50:])
    given_to: Counter[bool] = Counter()
    for name, _ in scheduled.wishes(40):
        given_to[name in names(LONG[50:])] += 1
        assert abs(given_to[True] - given_to[False]) <= 1


def test_who_wants_nothing_saves_up_no_turns() -> None:
    """A job that comes back takes its turn with the others, and no more; who is alone gets all."""
    scheduled = Scheduled()
    scheduled.plans.replace(reader(0, "first"), LONG[:50])
    assert len(scheduled.wishes(24)) == 24
    scheduled.plans.replace(reader(0, "second"), LONG[50:])
    told = Counter(name in names(LONG[50:]) for name, _ in scheduled.wishes(16))
    assert told == {True: 8, False: 8}


def test_what_is_stored_is_compared_ahead_and_in_order() -> None:
    """A few shards ahead of the reader, so many at once, without waiting for room."""
    scheduled = Scheduled()
    for shard in LONG:
        scheduled.view.here |= {(shard.name, 0), (shard.name, 1)}
        scheduled.view.stale.add((shard.name, "job"))
    scheduled.view.room = 4 * SEGMENT
    scheduled.plans.replace(reader(), LONG)
    told = [request for _ in range(20) if (request := scheduled.ahead.next()) is not None]
    assert [(request.shard.name, request.index) for request in told] == [(shard.name, None) for shard in LONG[: min(CHECKS_AHEAD, AT_ONCE)]]
    for request in told:
        scheduled.take(request)
    assert scheduled.wishes() == []
    scheduled.plans.opened(LONG[0], reader())
    assert scheduled.wishes() == [(LONG[CHECKS_AHEAD].name, None)]


def test_a_question_whose_reader_went_is_asked_for_another() -> None:
    """The shard is compared all the same for who still wants it."""
    scheduled = Scheduled()
    scheduled.view.here |= {(LONG[0].name, 0), (LONG[0].name, 1)}
    scheduled.view.stale |= {(LONG[0].name, "job")}
    scheduled.plans.replace(reader(0), LONG[:1])
    scheduled.plans.replace(reader(1), LONG[:1])
    scheduled.plans.withdraw(reader(0))
    request = scheduled.ahead.next()
    assert request is None or request.plan.reader == reader(1)
    assert request is not None or scheduled.ahead.next() is not None


def test_another_plan_keeps_the_window() -> None:
    """How far ahead the reader needs was learnt before."""
    scheduled = Scheduled()
    scheduled.plans.replace(reader(), LONG)
    narrow = scheduled.ahead.readers.window_bytes(reader())
    scheduled.ahead.waited(reader())
    wide = scheduled.ahead.readers.window_bytes(reader())
    scheduled.plans.replace(reader(), LONG[::-1])
    assert narrow < wide == scheduled.ahead.readers.window_bytes(reader())


def test_a_withdrawn_plan_is_forgotten() -> None:
    """Nothing more is wished for it, and its share of the windows is the others'."""
    scheduled = Scheduled()
    scheduled.view.room = 16 * SEGMENT
    scheduled.plans.replace(reader(0), LONG[:50])
    scheduled.plans.replace(reader(1), LONG[50:])
    scheduled.plans.withdraw(reader(0))
    assert len(scheduled.ahead.readers) == 1
    assert {name for name, _ in scheduled.wishes()} == set(names(LONG[50:54]))


def test_a_long_walk_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor that passes thousands of stored shards lets others run in between, and goes on."""
    monkeypatch.setattr(scheduler_module, "STEPS", 10)
    scheduled = Scheduled()
    scheduled.view.here = {(shard.name, index) for shard in LONG[:-1] for index in (0, 1)}
    scheduled.view.room = 1 << 60
    scheduled.plans.replace(reader(), LONG)
    for _ in range(30):
        scheduled.ahead.waited(reader())
    assert scheduled.ahead.next() is None
    assert scheduled.ahead.has_more
    assert scheduled.wishes() == [(LONG[-1].name, 0), (LONG[-1].name, 1)]


def test_many_new_plans_are_looked_at_in_several_turns() -> None:
    """A thousand readers that begin at once do not hold the loop; no turn decides before all of them are seen."""
    scheduled = Scheduled()
    for number in range(2 * scheduler_module.LOOKS + 1):
        scheduled.plans.replace(reader(number), LONG[number % 50 :][:2])
    turns = [(scheduled.ahead.next() is None, scheduled.ahead.has_more) for _ in range(3)]
    assert turns == [(True, True), (True, True), (False, False)]


# Any order of events

KINDS = (
    "next refuse land evict open fail forgive room stick free grant wait next land replace append withdraw forget".split()  # noqa: SIM905
)
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 40))


class Chaos(Scheduled):
    """Readers, an origin and a disk that do anything; wishes are taken, and land when they land."""

    def __init__(self) -> None:
        super().__init__(SHARDS, known=False)
        for number, shard in enumerate(SHARDS):
            self.view.lengths[shard.name] = [0, SEGMENT // 2, SEGMENT, 3 * SEGMENT][number % 4]
        self.view.room = 24 * SEGMENT
        self.pending: list[PrefetchRequest] = []
        self.failed: set[str] = set()
        self.told: list[tuple[str, int | None]] = []

    def step(self, what: str, number: int) -> None:
        shard, who = SHARDS[number % len(SHARDS)], reader(number % 3, f"job{number % 2}")
        self.clock.advance(0.5)
        match what:
            case "next" | "refuse":
                self._next(refuse=what == "refuse")
            case "land" if self.pending:
                self.take(self.pending.pop(number % len(self.pending)))
            case "evict":
                gone = {place for place in self.view.here if place[0] == shard.name and not self._in_air(place)}
                for place in sorted(gone)[:1]:
                    self.view.here.discard(place)
                    self.ahead.missing(place[0])
            case "forget" if not any(request.shard.name == shard.name for request in self.pending):
                self.view.known.discard(shard.name)
                self.view.here = {place for place in self.view.here if place[0] != shard.name}
                self.ahead.missing(shard.name)
            case "open":
                self.plans.opened(shard, who)
            case "fail":
                self.failed.add(shard.name)
                self.pending = [request for request in self.pending if request.shard.name != shard.name]
                self.ahead.failed(shard.name)
            case "forgive":
                self.failed.discard(shard.name)
                self.ahead.forgiven(shard.name)
            case "room":
                self.ahead.room()
            case "stick":
                self.view.stuck.add(shard.origin)
            case "free":
                self.view.stuck.discard(shard.origin)
            case "grant":
                self.ahead.caught_up(who)
            case "wait":
                self.ahead.waited(who)
            case "replace":
                self.plans.replace(who, SHARDS[number % 7 :] + SHARDS[: number % 5])
            case "append":
                self.plans.append(who, SHARDS[number % 9 : number % 9 + 3])
            case "withdraw":
                self.plans.withdraw(who)

    def _in_air(self, place: tuple[str, int]) -> bool:
        return any((request.shard.name, request.index) == place for request in self.pending)

    def _next(self, *, refuse: bool) -> None:
        request = self.ahead.next()
        if request is None:
            return
        self.told.append((request.shard.name, request.index))
        if refuse:
            self.ahead.refused(request.plan.reader)
            return
        assert not any((other.shard.name, other.index) == (request.shard.name, request.index) for other in self.pending), request
        assert request.shard.name not in self.failed
        assert self.view.may_ask(request.shard.origin)
        if request.index is None:
            assert request.shard.name not in self.view.known
        else:
            assert not self.view.has(request.shard.name, request.index)
            self.view.here.add((request.shard.name, request.index))  # in the air
        self.pending.append(request)
        self.ahead.granted(request)

    def check(self) -> None:
        """No cursor has passed anything that is missing."""
        for cursors in self.ahead.readers.all():
            waiting = {index for lane in cursors.lanes.values() for index in lane.indices}
            assert cursors.lead.bytes == sum(cursors.lead.passed.values())
            assert all(index >= cursors.plan.position for index in cursors.lead.passed)
            for index in set(range(cursors.plan.position, cursors.front)) - waiting:
                shard = self.plans.shard_at(cursors.plan, index)
                opening = any(request.shard.name == shard.name and request.index is None for request in self.pending)
                if shard.name in self.failed or opening:
                    continue
                length = self.view.length(shard.name)
                assert length is not None, shard
                assert all(self.view.has(shard.name, segment) for segment in range(DEFAULT_LAYOUT.count(length))), shard


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEP, max_size=80))
def test_no_order_of_events_loses_anything(steps: list[tuple[str, int]]) -> None:
    """Never two wishes for one segment; no cursor beyond what is missing; and in the end everything announced comes."""
    scheduled, twin = Chaos(), Chaos()
    for what, number in steps:
        for each in (scheduled, twin):
            each.step(what, number)
        scheduled.check()
    assert scheduled.told == twin.told  # same plans, same clock, same decisions
    for name in sorted(scheduled.failed):
        scheduled.ahead.forgiven(name)
    scheduled.failed.clear()
    scheduled.view.stuck.clear()
    scheduled.view.room = 1 << 50
    for _ in range(200):
        scheduled.ahead.room()
        for request in scheduled.pending:
            scheduled.take(request)
        scheduled.pending.clear()
        for plan in scheduled.plans.all():
            scheduled.ahead.waited(plan.reader)
        scheduled.wishes()
    for plan in scheduled.plans.all():
        for index in range(plan.position, len(plan)):
            name = scheduled.plans.shard_at(plan, index).name
            assert name in scheduled.view.known
            assert all(scheduled.view.has(name, segment) for segment in range(DEFAULT_LAYOUT.count(scheduled.view.lengths[name])))


def test_the_lead_of_a_reader_of_many_origins() -> None:
    """Looking at it sorts more of its plan into lanes, also of an origin that has none yet."""
    elsewhere = shard_of("https://c/set/0.tar")
    shards = [*LONG[: FRONT + 4], elsewhere]
    scheduled = Scheduled(shards, segments=1)
    scheduled.view.here = {(shard.name, 0) for shard in shards}
    scheduled.plans.replace(reader(), shards)
    assert scheduled.ahead.ahead_bytes(reader()) == len(shards) * SEGMENT


def test_what_readers_leave_is_used_by_those_who_stay() -> None:
    """A second later, though nothing of theirs has changed."""
    scheduled = Scheduled(LONG, segments=4)
    scheduled.view.room = 64 * SEGMENT
    scheduled.plans.replace(reader(0), LONG)
    for number in range(1, 4):
        scheduled.plans.replace(reader(number), [])
    assert len(scheduled.wishes()) == 8
    for number in range(1, 4):
        scheduled.plans.withdraw(reader(number))
    scheduled.ahead.look_again()
    assert len(scheduled.wishes()) == 24
    scheduled.ahead.look_again()
    assert scheduled.wishes() == []
