"""The least origin bytes of what was really read, against every schedule there is."""

from __future__ import annotations

import random
import time
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import SEGMENT

from forebay_proxy.telemetry.optimum import MOST_RUNS, LeastFree, OptimumMeter

Reading = tuple[int, int, int]  # shard, first segment, last segment
LENGTH = 3 * SEGMENT  # of every shard


def counted(readings: list[Reading], capacities: list[int], *, found: dict[int, list[int]] | None = None, window: int = 1 << 10) -> int:
    """Segments that ``OptimumMeter`` says had to be fetched; ``capacities`` in segments, one a reading."""
    room = iter(capacities)
    optimum = OptimumMeter(lambda: next(room) * SEGMENT, SEGMENT, window=window)
    for shard, indices in (found or {}).items():
        optimum.found(str(shard), indices)
    for shard, first, last in readings:
        optimum.read(str(shard), first, last, LENGTH, optimum.moment)
    assert optimum.bytes % SEGMENT == 0
    return optimum.bytes // SEGMENT


def brute(readings: list[Reading], capacities: list[int], found: frozenset[tuple[int, int]] = frozenset()) -> int:
    """The fewest segments fetched by any schedule that may keep nothing, anything or all of what it has, up to the capacity."""
    least = {found: 0}
    for (shard, first, last), capacity in zip(readings, capacities, strict=True):
        needed = frozenset((shard, index) for index in range(first, last + 1))
        after = dict[frozenset[tuple[int, int]], int]()
        for have, cost in least.items():
            for count in range(min(capacity, len(have)) + 1):  # what is kept from the reading before until this one
                for kept in map(frozenset, combinations(sorted(have), count)):
                    now = kept | needed
                    after[now] = min(after.get(now, 1 << 30), cost + len(needed - kept))
        least = after
    return min(least.values())


_shard_readings = st.lists(st.tuples(st.integers(0, 4), st.just(0), st.just(0)), min_size=1, max_size=9)
_piece = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)).map(lambda it: (it[0], min(it[1:]), max(it[1:])))
_pieces = st.lists(_piece, min_size=1, max_size=6)


@given(_shard_readings, st.integers(0, 3))
def test_no_schedule_fetches_less_and_one_fetches_as_little(readings: list[Reading], capacity: int) -> None:
    """Exactly the brute-force optimum, shards of one segment."""
    capacities = [capacity] * len(readings)
    assert counted(readings, capacities) == brute(readings, capacities)


@given(_pieces, st.data())
def test_neither_with_pieces_nor_with_a_capacity_that_changes(readings: list[Reading], data: st.DataObject) -> None:
    """The same for readings of several segments and of parts of shards, at another capacity each time."""
    capacities = data.draw(st.lists(st.integers(0, 5), min_size=len(readings), max_size=len(readings)))
    assert counted(readings, capacities) == brute(readings, capacities)


@given(_pieces, st.integers(0, 4), st.sets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4))
def test_what_was_found_costs_room_only(readings: list[Reading], capacity: int, found: set[tuple[int, int]]) -> None:
    """What an earlier process stored is free, as far as it could stay until it was read."""
    shards = {shard: sorted(index for of, index in found if of == shard) for shard in range(3)}
    capacities = [capacity] * len(readings)
    assert counted(readings, capacities, found=shards) == brute(readings, capacities, frozenset(found))


@given(_pieces, st.integers(0, 5), st.sampled_from([1, 2, 4]))
def test_a_short_memory_only_makes_it_higher(readings: list[Reading], capacity: int, window: int) -> None:
    """Never less than the optimum, and never more than everything."""
    capacities = [capacity] * len(readings)
    least = counted(readings, capacities, window=window)
    assert brute(readings, capacities) <= least <= sum(last - first + 1 for _, first, last in readings)


def belady(names: list[int], capacity: int) -> int:
    """Misses of farthest next use with bypass, the plain way."""
    following = dict[int, int]()
    next_use = [0] * len(names)
    for place in range(len(names) - 1, -1, -1):
        next_use[place] = following.get(names[place], 1 << 30)
        following[names[place]] = place
    held, misses = dict[int, int](), 0
    for place, name in enumerate(names):
        misses += name not in held
        held[name] = next_use[place]
        if len(held) > capacity:
            del held[max(held, key=lambda kept: held[kept])]
    return misses


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 0.9])
def test_epochs_in_a_fresh_order_cost_what_belady_does(share: float) -> None:
    """Five passes of 200 shards, each in an order of its own: D first, then D - C a pass, as Belady's rule has it."""
    chance, shards = random.Random(7), 200
    names = [shard for _ in range(5) for shard in chance.sample(range(shards), shards)]
    capacity = int(shards * share)
    least = counted([(name, 0, 0) for name in names], [capacity] * len(names))
    assert least == belady(names, capacity)
    assert shards + 4 * (shards - capacity) <= least <= shards + 4 * (shards - capacity) + 4


def test_readings_that_overlap_are_fetched_once() -> None:
    """The second began while the first was inside: no room is needed for that, none is taken."""
    optimum = OptimumMeter(lambda: 0, SEGMENT)
    first, second = optimum.moment, optimum.moment
    assert optimum.read("a", 0, 2, LENGTH, first) == LENGTH
    assert optimum.read("a", 0, 2, LENGTH, second) == 0
    assert optimum.read("a", 0, 2, LENGTH, optimum.moment) == LENGTH


def test_the_last_segment_counts_its_own_bytes() -> None:
    """A shard of ten bytes costs ten, one of unknown length whole segments."""
    optimum = OptimumMeter(lambda: 0, SEGMENT)
    assert optimum.read("a", 0, 0, 10, 0) == 10
    assert optimum.read("b", 1, 1, SEGMENT + 7, 0) == 7
    assert optimum.read("c", 0, 1, None, 0) == 2 * SEGMENT


def test_a_shard_in_too_many_pieces_forgets_the_oldest() -> None:
    """What a client reads in disorder stays bounded; a whole reading makes one piece of it again."""
    optimum, length = OptimumMeter(lambda: 1 << 40, SEGMENT), 4 * MOST_RUNS * SEGMENT
    for index in range(0, 4 * MOST_RUNS, 2):
        optimum.read("a", index, index, length, optimum.moment)
    assert optimum.read("a", 0, 0, length, optimum.moment) == SEGMENT
    last = 4 * MOST_RUNS - 2
    assert optimum.read("a", last, last, length, optimum.moment) == 0
    optimum.read("a", 0, 4 * MOST_RUNS - 1, length, optimum.moment)
    assert optimum.read("a", 0, 0, length, optimum.moment) == 0
    assert "1 shards known" in repr(optimum)


def test_who_can_never_be_kept_is_forgotten() -> None:
    """A stream of shards read once each leaves nothing behind once the room is spoken for; with room, the window bounds it."""
    full, roomy = OptimumMeter(lambda: 0, SEGMENT, window=64), OptimumMeter(lambda: 1 << 40, SEGMENT, window=64)
    for number in range(1000):
        for optimum in (full, roomy):
            optimum.read(str(number), 0, 0, LENGTH, optimum.moment)
    assert len(full) == 1
    assert len(roomy) == 65  # the moments looked back, and the one that comes next


def test_what_was_found_is_forgotten_too() -> None:
    """Nobody reads what an earlier process stored: it does not stay for ever, and holds nobody up."""
    optimum = OptimumMeter(lambda: 1 << 40, SEGMENT, window=64)
    for number in range(1000):
        optimum.found(f"old {number}", [0, 1, 5])
    for number in range(1000):
        optimum.read(str(number), 0, 0, LENGTH, optimum.moment)
    assert len(optimum) == 65


def test_a_million_readings_cost_little_each() -> None:
    """Four passes of 25,000 shards in orders of their own at half the room: about 20 us each; ten times that is a fault."""
    chance, shards = random.Random(1), 25_000
    optimum = OptimumMeter(lambda: shards // 2 * LENGTH, SEGMENT)
    start = time.process_time()
    for _ in range(4):
        for name in chance.sample(range(shards), shards):
            optimum.read(str(name), 0, 2, LENGTH, optimum.moment)
    assert (time.process_time() - start) / (4 * shards) < 200e-6


# Room over time, as far as it can still be had, against a plain list

_step = st.one_of(st.integers(0, 9), st.tuples(st.integers(0, 40), st.integers(1, 9)))
_steps = st.one_of(st.lists(_step, max_size=20), st.lists(_step, min_size=20, max_size=120))  # hypothesis' lists are short by themselves


@given(_steps, st.sampled_from([1, 2, 8, 16, 1024]))
def test_it_is_the_least_of_every_suffix(steps: list[int | tuple[int, int]], window: int) -> None:
    """After any moments and any takings, for every moment of the window, also when the ring has gone round."""
    free, naive = LeastFree(window), list[int]()
    for step in steps:
        if isinstance(step, int):
            free.append(step)
            naive.append(step)
        elif naive:
            moment = max(free.oldest, len(naive) - 1 - step[0])
            room = min(step[1], *naive[moment:])
            free.take(moment, room)
            naive[moment:] = [left - room for left in naive[moment:]]
        assert len(free) == len(naive)
        assert free.oldest == max(0, len(naive) - window)
        for moment in range(free.oldest, len(naive)):
            assert free.since(moment) == min(naive[moment:])


def test_it_grows_with_its_moments() -> None:
    """Beyond what it began with nothing is lost, and only the window bounds how far it looks back."""
    free = LeastFree(4096)
    for moment in range(5000):
        free.append(moment)
    assert [free.since(moment) for moment in range(free.oldest, 5000)] == list(range(904, 5000))


@pytest.mark.parametrize("window", [0, -4, 3, 1000])
def test_a_window_is_a_power_of_two(window: int) -> None:
    """Another one is a mistake of ours, said at once."""
    with pytest.raises(ValueError, match="powers of two"):
        LeastFree(window)
