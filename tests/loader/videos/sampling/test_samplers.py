"""Evenly spread frames, keyframes, frames at a rate, and windows."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import Sampler, SamplingError, TooFewFrames, clip, clips, fps, keyframes, uniform


def at(duration_s: float, *times_s: float) -> ClipInfo:
    """A clip without a keyframe whose frames are shown at these times."""
    return ClipInfo(len(times_s), array("d", times_s), duration_s, 1, 1)


@pytest.mark.parametrize(
    ("sampler", "info", "frames", "filled"),
    [
        (uniform(3), steady(101), (0, 50, 100), 0),
        (keyframes(3), steady(120, gop=12), (0, 48, 108), 0),
        (keyframes(5, policy="wrap"), steady(36, gop=12), (0, 12, 24, 0, 12), 2),
        (keyframes(2), at(3.0, 0, 1, 2), (0, 0), 1),  # the first stands for a keyframe: it decodes with least
        (fps(1), at(5.0, 0.0, 1.0, 4.0), (0, 1, 1, 1, 2), 0),  # what is shown for three seconds is real each time
        (fps(10, 7, 0.5, policy="wrap"), steady(10, 10.0), (5, 6, 7, 8, 9, 5, 6), 2),
        (fps(2, 3), steady(48, 24.0, begin_s=0.1), (0, 12, 24), 0),  # counted from the first frame
        (fps(4, 2), at(0.0, 0.0), (0, 0), 1),
        (clip(0.5, 4, 2), steady(48), (12, 14, 16, 18), 0),
        (clip(1.75, 8, policy="wrap"), steady(48), (42, 43, 44, 45, 46, 47, 42, 43), 2),
        (clip(0.0, 2), steady(48, begin_s=0.5), (0, 1), 0),
        (clips(3, 2), steady(11), (0, 1, 4, 5, 9, 10), 0),
    ],
)
def test_which_frames(sampler: Sampler, info: ClipInfo, frames: tuple[int, ...], filled: int) -> None:
    """And how many of the last places only fill."""
    assert sampler(info, 0) == (frames, (True,) * (len(frames) - filled) + (False,) * filled)


def test_fewer_frames_come_twice_and_are_marked() -> None:
    """As torchcodec spreads them."""
    assert uniform(4)(steady(2), 0) == ((0, 0, 0, 1), (True, False, False, True))


@pytest.mark.parametrize(
    ("sampler", "info", "error", "told"),
    [
        (keyframes(5, policy="error"), steady(36, gop=12), TooFewFrames, "3 of the 5"),
        (fps(10, 2, 9.0), steady(10, 10.0), TooFewFrames, "0 of the 2"),  # nothing to repeat, by no policy
        (fps(30), at(1e9, 0.0), SamplingError, "more than 1048576"),  # a broken duration makes no endless list
        (clip(2.0, 4), steady(48), TooFewFrames, r"clip\(2.0, 4\): the clip ends at 2.000 s"),
    ],
)
def test_what_is_refused(sampler: Sampler, info: ClipInfo, error: type[Exception], told: str) -> None:
    """With the numbers."""
    with pytest.raises(error, match=told):
        sampler(info, 0)


@pytest.mark.parametrize(
    ("sampler", "arguments", "error"),
    [
        (uniform, (0,), ValueError), (uniform, ("8",), TypeError), (uniform, (8, "any"), ValueError),
        (fps, (0,), ValueError), (fps, ("4",), TypeError), (fps, (True,), TypeError), (fps, (float("nan"),), ValueError),
        (fps, (4, 0), ValueError), (fps, (4, 2, -1.0), ValueError), (fps, (4, 2, "begin"), TypeError),
        (fps, (4, None, "random"), ValueError),
        (fps, (4, 2, 0.0, "stop"), ValueError), (clip, ("begin", 4), TypeError), (clip, (0.0, 0), ValueError),
        (clip, (0.0, 4, 0), ValueError),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_at_once(sampler: Callable[..., Sampler], arguments: tuple[object], error: type[Exception]) -> None:
    """Where they are given, not in a worker."""
    with pytest.raises(error, match=r"^(rate|n|start_s|policy|length|stride|choice)"):
        sampler(*arguments)


@pytest.mark.parametrize("sampler", [uniform(8, choice="random"), keyframes(100, choice="random"), clip("random", 4)])
def test_other_seeds_other_frames(sampler: Sampler) -> None:
    """Or nothing would be random."""
    assert len({sampler(steady(12_000, gop=12), seed).frames for seed in range(20)}) == 20


@given(st.integers(1, 400), st.integers(1, 400), st.integers())
def test_one_of_each_span(frames: int, n: int, seed: int) -> None:
    """At random, in its own span, ascending."""
    found = uniform(n, choice="random")(steady(frames), seed).frames
    assert all(frames * k // n <= found[k] < max(frames * (k + 1) // n, frames * k // n + 1) for k in range(n))


@given(clip_infos(), st.integers(1, 20), st.integers(), st.sampled_from(["regular", "random"]))
def test_nothing_else(info: ClipInfo, n: int, seed: int, choice: str) -> None:
    """Keyframes, ascending where they are real, and different ones as long as there are any."""
    frames, mask = keyframes(n, choice=choice)(info, seed)
    real = [frame for frame, is_real in zip(frames, mask, strict=True) if is_real]
    assert set(frames) <= set(info.keyframes)
    assert real == sorted(set(real))
    assert len(real) == min(n, len(info.keyframes))


@pytest.mark.parametrize("rate", [24, 25, 30, 24000 / 1001])
def test_its_own_rate_is_every_frame(rate: float) -> None:
    """Once, the last included, and none beyond."""
    assert fps(rate)(steady(500, rate), 0) == (tuple(range(500)), (True,) * 500)


def test_random_begins_leave_room() -> None:
    """All frames real, wherever it begins, and it begins everywhere."""
    found = [fps(12, 12, "random")(steady(48), seed) for seed in range(200)]
    assert all(all(one.mask) for one in found)
    assert {one.frames[0] for one in found} == set(range(26))
    assert {clip("random", 4, 2)(steady(11), seed).frames[0] for seed in range(100)} == {0, 1, 2, 3, 4}


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
