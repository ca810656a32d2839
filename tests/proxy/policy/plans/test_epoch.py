"""Which shards were read in which of the last epochs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.plans.epoch import EpochMarks

NAMES = [f"s3://bucket/{number:02d}.tar" for number in range(40)]


@given(st.lists(st.one_of(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), st.integers(1, 9)), max_size=200))
def test_it_is_a_dict_of_two_bits(steps: list[tuple[str, int] | int]) -> None:
    """Whatever is noted in whatever order, the marks are those of a plain dict, and time moves them all."""
    marks, model = EpochMarks(), dict[str, int]()
    for step in steps:
        if isinstance(step, int):
            marks.shift(step)
            model = {name: (mark << step) & 3 for name, mark in model.items()}
            continue
        name, bit = step
        before = model.get(name, 0)
        model[name] = before | (1 << bit if bit < 2 else 0)
        assert marks.add(name, bit) is (model[name] != before)
    assert {name: marks[name] for name in NAMES} == {name: model.get(name, 0) for name in NAMES}
    assert {name for name in NAMES if name in marks} == model.keys()
    assert len(marks) == len(model)
