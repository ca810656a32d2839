"""Keyframes only."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import TooFewFrames, keyframes


@given(clip_infos(), st.integers(1, 20), st.integers(), st.sampled_from(["regular", "random"]))
def test_nothing_else(info: ClipInfo, n: int, seed: int, choice: str) -> None:
    """Keyframes, ascending where they are real, and different ones as long as there are any."""
    frames, mask = keyframes(n, choice=choice)(info, seed)
    real = [frame for frame, is_real in zip(frames, mask, strict=True) if is_real]
    assert set(frames) <= set(info.keyframes)
    assert real == sorted(set(real))
    assert len(real) == min(n, len(info.keyframes))


def test_spread_among_them() -> None:
    """By their number, from the first to the last."""
    assert keyframes(3)(steady(120, gop=12), 0).frames == (0, 48, 108)


def test_all_of_few() -> None:
    """And then the policy."""
    assert keyframes(5, policy="wrap")(steady(36, gop=12), 0) == ((0, 12, 24, 0, 12), (True, True, True, False, False))


def test_too_few_by_policy_error() -> None:
    """Three of five."""
    with pytest.raises(TooFewFrames, match="3 of the 5"):
        keyframes(5, policy="error")(steady(36, gop=12), 0)


def test_a_hundred_at_random() -> None:
    """Different ones, by the seed."""
    info = steady(12_000, gop=12)
    assert len(set(keyframes(100, choice="random")(info, 1).frames)) == 100
    assert keyframes(100, choice="random")(info, 1) != keyframes(100, choice="random")(info, 2)


def test_a_clip_that_shows_no_keyframe() -> None:
    """Its first frame stands for one: it decodes with least."""
    assert keyframes(2)(ClipInfo(3, array("d", [0, 1, 2]), 3.0, 1, 1), 0) == ((0, 0), (True, False))
