"""Arithmetic of places, and what fills the places behind the end."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import TooFewFrames, even_places, filled, frame_at, marked_repeats, starts_below


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(2, 300))
def test_even_places_go_from_end_to_end(first: int, width: int, count: int) -> None:
    """Ascending, the first and the last among them, distances that differ by one at most."""
    found = even_places(first, first + width, count)
    assert (found[0], found[-1]) == (first, first + width)
    distances = [behind - before for before, behind in pairwise(found)]
    assert min(distances) >= 0
    assert max(distances) - min(distances) <= 2


def test_one_place_is_the_first() -> None:
    """As ``torch.linspace(3, 9, 1)``."""
    assert even_places(3, 9, 1) == [3]


@given(st.integers(1, 500), st.integers(1, 30), st.integers(1, 9))
def test_the_last_begin_fits_and_no_later_one(frames: int, length: int, stride: int) -> None:
    """Unless not even the first does."""
    end = starts_below(frames, length, stride)
    span = stride * (length - 1) + 1
    assert end == 1 or (end - 1 + span <= frames < end + span)


@given(clip_infos(), st.floats(0, 200))
def test_the_frame_of_a_time_is_the_last_that_began(info: ClipInfo, time_s: float) -> None:
    """A plain search says the same, to a microsecond."""
    began = [number for number, begin_s in enumerate(info.times_s) if begin_s <= time_s + 1e-6]
    assert frame_at(info, time_s) == (began[-1] if began else 0)


@pytest.mark.parametrize("fps", [24, 25, 30, 60, 24000 / 1001])
def test_a_rounding_loses_no_frame(fps: float) -> None:
    """Sampled at its own rate, each frame of a clip comes once: ``k * (1 / 24)`` is less than ``k / 24`` for a third of them."""
    info = steady(1000, fps)
    assert [frame_at(info, k * (1 / fps)) for k in range(1000)] == list(range(1000))


@pytest.mark.parametrize(("policy", "filling"), [("repeat_last", (6, 6, 6, 6)), ("wrap", (4, 5, 6, 4))])
def test_policies_fill(policy: str, filling: tuple[int, ...]) -> None:
    """And the mask tells which are real."""
    assert filled([4, 5, 6], 7, policy) == ((4, 5, 6, *filling), (True,) * 3 + (False,) * 4)


def test_the_policy_error_names_both_numbers() -> None:
    """How many there are, how many were wanted."""
    with pytest.raises(TooFewFrames, match="3 of the 7"):
        filled([4, 5, 6], 7, "error")


def test_enough_is_enough() -> None:
    """Nothing is filled, and nothing raised, where all are there."""
    assert filled([4, 5], 2, "error") == ((4, 5), (True, True))


def test_nothing_fills_nothing() -> None:
    """There is no frame to repeat."""
    with pytest.raises(TooFewFrames, match="0 of the 2"):
        filled([], 2, "repeat_last")


def test_repeats_are_marked() -> None:
    """The first of equal ones counts."""
    assert marked_repeats([0, 0, 1, 1, 2]) == ((0, 0, 1, 1, 2), (True, False, True, False, True))


def test_before_the_first_frame_there_is_the_first() -> None:
    """A picture that comes late is what is shown first."""
    assert frame_at(ClipInfo(1, array("d", [5.0]), 6.0, 1, 1), 0.0) == 0
