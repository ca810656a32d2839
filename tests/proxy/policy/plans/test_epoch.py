"""Which shards were read in which of the last epochs."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.plans.epoch import EpochMarks

NAMES = [f"s3://bucket/{number:02d}.tar" for number in range(40)]


@given(st.lists(st.one_of(st.tuples(st.sampled_from(NAMES), st.integers(0, 7)), st.integers(1, 9)), max_size=200))
def test_it_is_a_dict_of_bytes(steps: list[tuple[str, int] | int]) -> None:
    """Whatever is noted in whatever order, the marks are those of a plain dict, and time moves them all."""
    marks, model = EpochMarks(), dict[str, int]()
    for step in steps:
        if isinstance(step, int):
            marks.shift(step)
            model = {name: (mark << step) & 255 for name, mark in model.items()}
            continue
        name, bit = step
        assert marks.add(name, bit) is not bool(model.get(name, 0) & (1 << bit))
        model[name] = model.get(name, 0) | 1 << bit
    assert {name: marks[name] for name in NAMES} == {name: model.get(name, 0) for name in NAMES}
    assert {name for name in NAMES if name in marks} == model.keys()
    assert len(marks) == len(model)


def test_a_large_set_takes_few_bytes() -> None:
    """100,000 shards of long names stay below 16 bytes each."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        marks = EpochMarks()
        for number in range(100_000):
            marks.add(f"https://host.example/some/long/folder/name/of/a/data/set/{number:08d}.tar", 0)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 16 * 100_000, used
    print(f"{used / 100_000:.1f} bytes a shard")


def test_many_small_sets_take_few_bytes() -> None:
    """A folder for every hundred shards: below 16 bytes each."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sets = [EpochMarks() for _ in range(100)]
        for folder, marks in enumerate(sets):
            for number in range(100):
                marks.add(f"s3://bucket/{folder}/{number:08d}.tar", 0)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used < 16 * 10_000, used


def test_a_set_that_grows_large_keeps_its_marks() -> None:
    """Where it is parted, nothing is lost and nothing is counted twice."""
    marks = EpochMarks()
    for number in range(10_000):
        assert marks.add(f"{number}", number % 3)
        assert not marks.add(f"{number}", number % 3)
    assert len(marks) == 10_000
    assert all(marks[f"{number}"] == 1 << number % 3 for number in range(10_000))
