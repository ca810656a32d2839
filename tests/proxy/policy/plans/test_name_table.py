"""Hashes and their numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.plans.name_table import NameTable


@given(st.lists(st.tuples(st.booleans(), st.one_of(st.integers(-20, 20), st.integers(-(2**63), 2**63 - 1)))))
def test_a_table_is_a_dict(script: list[tuple[bool, int]]) -> None:
    """Whatever comes and goes, hashes that collide in their low bits too; numbers are dense and used again."""
    table, model = NameTable(), dict[int, int]()
    most = 0
    for comes, hashed in [*script, *((True, number << 40) for number in range(40))]:
        if comes and hashed not in model:
            model[hashed] = table.add(hashed)
            most = max(most, len(model))
        elif not comes and hashed in model:
            table.remove(model.pop(hashed))
        assert (table.find(hashed), len(table)) == (model.get(hashed, 0), len(model))
    assert {table.find(hashed): hashed for hashed in model} == {number: hashed for hashed, number in model.items()}
    assert max(model.values()) <= most


def test_an_empty_table_keeps_nothing() -> None:
    """The arrays of half a million names go with the last of them."""
    table = NameTable()
    numbers = [table.add(hashed) for hashed in range(10_000)]
    assert len(table._heads) > 9_000
    for number in numbers:
        table.remove(number)
    assert (len(table._hashes), len(table._heads), table.add(5)) == (1, 8, 1)
