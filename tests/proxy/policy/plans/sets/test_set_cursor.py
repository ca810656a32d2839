"""In which order a declared set is fetched."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.plans.sets.set_cursor import STRANGERS, SetCursor
from forebay_proxy.policy.plans.sets.shard_sets import PatternSet


def cursor_of(count: int) -> SetCursor:
    return SetCursor(PatternSet.of(f"s3://b/{{0..{count - 1}}}.tar"))


def rest(cursor: SetCursor, read: set[int]) -> list[int]:
    """What it wishes for, to its end, of what was not ``read``."""
    found = []
    while not cursor.ended:
        index = cursor.next(lambda index: index not in read and index not in found, 7)
        if index is not None:
            found.append(index)
    return found


def test_the_listing_comes_first() -> None:
    """Before anything is known of an order, and without what was read."""
    cursor = cursor_of(6)
    cursor.opened(4, "job", 0)
    assert rest(cursor, {4}) == [0, 1, 2, 3, 5]
    assert cursor.ended


def test_an_order_that_readers_keep_is_followed() -> None:
    """Once a dozen openings have shown it, the rest comes as it was read in the epoch before."""
    order = random.Random(1).sample(range(100), 100)
    cursor = cursor_of(100)
    for index in order:
        cursor.opened(index, "job", 0)
    for index in order[:20]:
        cursor.opened(index, "job", 1)
    assert rest(cursor, set(order[:20])) == order[20:]


def test_an_order_that_readers_do_not_keep_is_dropped() -> None:
    """A fresh shuffle each epoch: the listing is as good as any."""
    chance, cursor = random.Random(2), cursor_of(2000)
    for index in chance.sample(range(2000), 2000):
        cursor.opened(index, "job", 0)
    now = chance.sample(range(2000), 40)
    for index in now:
        cursor.opened(index, "job", 1)
    assert rest(cursor, set(now)) == [index for index in range(2000) if index not in now]


def test_what_the_last_epoch_left_out_comes_behind_it() -> None:
    """A part of the set that nobody opened is not forgotten."""
    cursor = cursor_of(60)
    for epoch in (0, 1):
        for index in range(40, 0, -1) if epoch == 0 else range(40, 20, -1):
            cursor.opened(index, "job", epoch)
    assert rest(cursor, set(range(21, 41))) == [*range(20, 0, -1), 0, *range(41, 60)]


def test_a_second_job_does_not_mix_up_the_first_ones_order() -> None:
    """Until it is the only one that still reads."""
    cursor = cursor_of(100)
    for epoch in (0, 1):
        for index in range(99, -1 if epoch == 0 else 79, -1):
            cursor.opened(index, "one", epoch)
            if epoch == 0 and index % 2:
                cursor.opened(index * 7 % 100, "two", 5)
    assert rest(cursor, set(range(80, 100)))[:3] == [79, 78, 77]
    for index in range(STRANGERS + 2):
        cursor.opened(index % 100, "two", 6)
    assert rest(cursor, set())[:3] == [0, 1, 2]


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 3), st.sampled_from("ab")), max_size=120), st.data())
def test_every_wanted_shard_is_wished_for_once(count: int, resolver: list[tuple[int, int, str]], data: st.DataObject) -> None:
    """Whatever was opened in whatever order: to its end a tour names each shard that is wanted exactly once."""
    cursor, epoch = cursor_of(count), dict[str, int]()
    for index, step, job in resolver:
        epoch[job] = epoch.get(job, 0) + step // 3
        cursor.opened(index % count, job, epoch[job])
    cursor.rewind()
    wanted = data.draw(st.sets(st.integers(0, count - 1)))
    if cursor._following:
        cursor._now = cursor._now[:0]
    assert sorted(rest(cursor, set(range(count)) - wanted)) == sorted(wanted)
