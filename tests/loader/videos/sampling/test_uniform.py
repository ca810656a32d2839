"""Evenly spread frames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import steady

from forebay_loader.videos.sampling import uniform


def test_first_and_last_are_among_them() -> None:
    """Both ends of the clip, and the middle."""
    assert uniform(3)(steady(101), 0).frames == (0, 50, 100)


def test_fewer_frames_come_twice_and_are_marked() -> None:
    """As torchcodec spreads them."""
    assert uniform(4)(steady(2), 0) == ((0, 0, 0, 1), (True, False, False, True))


@given(st.integers(1, 400), st.integers(1, 400), st.integers())
def test_one_of_each_span(frames: int, n: int, seed: int) -> None:
    """At random, in its own span, ascending."""
    found = uniform(n, choice="random")(steady(frames), seed).frames
    assert all(frames * k // n <= found[k] < max(frames * (k + 1) // n, frames * k // n + 1) for k in range(n))


def test_other_seeds_other_frames() -> None:
    """Or nothing would be random."""
    assert len({uniform(8, choice="random")(steady(800), seed).frames for seed in range(20)}) == 20


@pytest.mark.parametrize(("arguments", "error"), [((0,), ValueError), (("8",), TypeError), ((8, "any"), ValueError)])
def test_wrong_arguments_are_named_at_once(arguments: tuple[int], error: type[Exception]) -> None:
    """Where they are given, not in a worker."""
    with pytest.raises(error, match=r"^(n takes|choice is)"):
        uniform(*arguments)
