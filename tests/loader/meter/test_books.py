"""The time in which a loader was read: told in any order, counted once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.meter.clock.books import StallBooks


def test_a_pass_that_began_before_one_told_of_already() -> None:
    """Two threads make their iterators side by side; the one that called first is told of last."""
    books = StallBooks()
    books.opened("short", 10_000)
    books.opened("long", 8_000)
    assert books.totals(14_000, 0).wall_s == pytest.approx(6e-6)


def test_a_pass_that_began_while_another_was_counted() -> None:
    books = StallBooks()
    books.opened("short", 10_000)
    books.closed("short", 12_000)
    books.opened("long", 9_000)
    assert books.totals(14_000, 0).wall_s == pytest.approx(4e-6)


_PASSES = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 50)), min_size=1, max_size=12)


@given(_PASSES, st.data())
def test_no_moment_is_counted_twice(passes: list[tuple[int, int]], data: st.DataObject) -> None:
    """However late each pass is told of: no more than the time in which one was on, and all of it where each is told of at once."""
    on = set().union(*(range(start, start + length) for start, length in passes))
    late = [data.draw(st.integers(0, length)) for _, length in passes]
    events = [(start + by, 0, number) for number, ((start, _), by) in enumerate(zip(passes, late, strict=True))]
    events += [(start + length, 1, number) for number, (start, length) in enumerate(passes)]
    books = StallBooks()
    for at, is_end, number in sorted(events):
        if is_end:
            books.closed(number, at)
        else:
            books.opened(number, passes[number][0])
    wall_ns = round(books.totals(200, 0).wall_s * 1e9)
    assert wall_ns <= len(on)
    if not any(late):
        assert wall_ns == len(on)
