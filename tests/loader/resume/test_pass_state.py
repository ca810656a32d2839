"""Numbers in a state: there and back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_loader.resume.pass_state import packed, unpacked


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50))
@settings(max_examples=examples(100))
def test_there_and_back(numbers: list[int]) -> None:
    """Each number, in its order."""
    assert list(unpacked(packed(numbers))) == numbers


def test_little_endian_whatever_the_machine() -> None:
    """A state travels between machines: its bytes are part of the format."""
    assert packed([1, 256]) == "AQAAAAABAAA="


def test_a_count_beyond_int32() -> None:
    """An error in words, not a number that wraps around."""
    with pytest.raises(ValueError, match="up to 2,147,483,647 in each worker's pass"):
        packed([2**31])
