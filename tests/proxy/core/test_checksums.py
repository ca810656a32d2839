"""A sparse table is what a dict is, and costs by what it holds."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.checksums import Checksums

TABLES = st.dictionaries(st.integers(0, 30) | st.integers(0, 2**40), st.integers(1, 2**64 - 1))


def table_of(known: dict[int, int]) -> Checksums:
    table = Checksums()
    for index, value in known.items():
        table[index] = value
    return table


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3))), st.integers(0, 14))
def test_it_agrees_with_a_dict(steps: list[tuple[int, int]], end: int) -> None:
    """Whatever comes and leaves (0), in any order."""
    table, known = Checksums(), dict[int, int]()
    for index, value in steps:
        table[index] = value
        known[index] = value
        known = {index: value for index, value in known.items() if value}
        assert (list(table), len(table)) == (sorted(known), len(known))
        assert [index in table for index in range(-1, 14)] == [index in known for index in range(-1, 14)]
        assert [table[index] for index in range(14)] == [known.get(index, 0) for index in range(14)]
        assert (table.first, table.last) == (min(known, default=-1), max(known, default=-1))
        assert [table.count_within(first, end) for first in range(14)] == [sum(first <= at < end for at in known) for first in range(14)]
        assert list(table.below(end)) == sorted((index for index in known if index < end), reverse=True)
    other = table.copy()
    other.cut(end)
    assert list(other) == [index for index in sorted(known) if index < end]
    assert (table == other) == (list(table) == list(other))


@given(TABLES)
def test_its_runs_make_it_anew(known: dict[int, int]) -> None:
    """No run borders on the next one, and together they are the table."""
    table, again = table_of(known), Checksums()
    behind = -1
    for first, values in table.runs():
        assert first > behind
        behind = first + len(values)
        again.extend(first, values)
    assert again == table == table_of(known)


@given(st.sets(st.integers(0, 12), min_size=1), st.data())
def test_it_may_change_while_it_is_walked(here: set[int], data: st.DataObject) -> None:
    """What leaves ahead of the walk is not met, and everything else once."""
    table, met = table_of(dict.fromkeys(here, 1)), list[int]()
    for index in table.below(13):
        met.append(index)
        gone = data.draw(st.sets(st.sampled_from(sorted(here))))
        for other in gone:
            table[other] = 0
        here = here - gone | {index}
    assert met == sorted(met, reverse=True)
    assert set(table) <= set(met)


@pytest.mark.parametrize(("first", "values"), [(6, []), (5, [1]), (4, [1]), (6, [1, 0])])
def test_a_run_that_does_not_follow_is_refused(first: int, values: list[int]) -> None:
    """An empty one, one that is not behind the others, one with a 0."""
    with pytest.raises(ValueError, match="run"):
        Checksums([0] * 5 + [9]).extend(first, array("Q", values))
