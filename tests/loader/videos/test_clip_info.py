"""What is known of a clip: counts that agree, and the average rate."""

from __future__ import annotations

from array import array
from fractions import Fraction
from typing import Any

import pytest

from forebay_loader.videos.clip_info import ClipInfo


def clip(**changes: Any) -> ClipInfo:
    facts = {"frames": 3, "times_s": array("d", [0.5, 1.0, 1.5]), "duration_s": 2.0, "width": 64, "height": 48, "keyframes": (0, 2)}
    return ClipInfo(**{**facts, **changes})


def test_the_rate_is_counted_from_the_first_frame() -> None:
    """Three frames from 0.5 s to 2.0 s."""
    assert clip().fps == 2.0


@pytest.mark.parametrize("rate", [Fraction(25), Fraction(24), Fraction(60), Fraction(30000, 1001), Fraction(25, 2)])
@pytest.mark.parametrize("begin_s", [0.0, 0.08, 3754 / 90_000])
def test_a_plain_rate_is_exact(rate: Fraction, begin_s: float) -> None:
    """However the seconds of its frames are rounded: 25.0, and not 24.999999999999996, of which ``int`` makes 24."""
    for frames in range(1, 400):
        times_s = array("d", [begin_s + float(number / rate) for number in range(frames)])
        assert clip(frames=frames, times_s=times_s, keyframes=(), duration_s=begin_s + float(frames / rate)).fps == float(rate)


def test_no_frames_or_no_time_have_no_rate() -> None:
    """Sound alone, and a still picture whose duration says nothing: nothing is divided by zero."""
    assert clip(frames=0, times_s=array("d"), keyframes=(), audio_rate_hz=48000).fps == 0.0
    assert clip(frames=1, times_s=array("d", [0.0]), keyframes=(0,), duration_s=0.0).fps == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"frames": 4}, {"frames": -1}, {"keyframes": (0, 3)}, {"keyframes": (-1, 2)}, {"keyframes": (2, 0)}, {"rotation_deg": 45},
        {"duration_s": float("inf")}, {"duration_s": float("nan")}, {"duration_s": -1.0},
    ],
)  # fmt: skip
def test_contradictions_are_refused(changes: dict[str, Any]) -> None:
    """Counts that disagree come from a broken file, and would be an index error somewhere else."""
    with pytest.raises(ValueError, match=r"times for|keyframes|rotation|duration"):
        clip(**changes)
