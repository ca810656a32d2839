"""Windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import steady

from forebay_loader.videos.sampling import TooFewFrames, clip, clips


def test_from_a_time_on() -> None:
    """Half a second into 24 frames a second, every other one."""
    assert clip(0.5, 4, 2)(steady(48), 0) == ((12, 14, 16, 18), (True,) * 4)


def test_past_the_end_the_window_repeats() -> None:
    """From its own first frame, by ``wrap``."""
    assert clip(1.75, 8, policy="wrap")(steady(48), 0).frames == (42, 43, 44, 45, 46, 47, 42, 43)


def test_a_begin_past_the_end() -> None:
    """Says both times."""
    with pytest.raises(TooFewFrames, match=r"clip\(2.0, 4\): the clip ends at 2.000 s"):
        clip(2.0, 4)(steady(48), 0)


def test_a_late_first_frame() -> None:
    """Second 0 is before it, and gives it."""
    assert clip(0.0, 2)(steady(48, begin_s=0.5), 0).frames == (0, 1)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 9), st.integers())
def test_a_random_window_lies_in_the_clip(frames: int, length: int, stride: int, seed: int) -> None:
    """Where it fits; else it begins at the first."""
    found, mask = clip("random", length, stride)(steady(frames), seed)
    if stride * (length - 1) < frames:
        assert found == tuple(range(found[0], found[0] + stride * length, stride))
        assert all(mask)
    else:
        assert found[0] == 0
        assert sum(mask) == len(range(0, frames, stride))


def test_it_begins_everywhere() -> None:
    """At each of the five places, over many seeds."""
    assert {clip("random", 4, 2)(steady(11), seed).frames[0] for seed in range(100)} == {0, 1, 2, 3, 4}


def test_windows_stand_one_behind_the_other() -> None:
    """The first from the first frame, the last to the last."""
    assert clips(3, 2)(steady(11), 0).frames == (0, 1, 4, 5, 9, 10)


@pytest.mark.parametrize(("arguments", "error"), [(("begin", 4), TypeError), ((0.0, 0), ValueError), ((0.0, 4, 0), ValueError)])
def test_wrong_arguments_are_named_at_once(arguments: tuple[float, int], error: type[Exception]) -> None:
    """Where they are given, not in a worker."""
    with pytest.raises(error, match=r"^(start_s|length|stride)"):
        clip(*arguments)
