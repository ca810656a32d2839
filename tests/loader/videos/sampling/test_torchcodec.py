"""The same frames as torchcodec's samplers take, which run here beside ours."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady
from support.torchcodec_samplers import FakeDecoder, torchcodec_samplers

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import Sampling, TooFewFrames, clips, fps, uniform
from forebay_loader.videos.sampling.sampler import ROUNDING_S, Draws

samplers = torchcodec_samplers()
policies = st.sampled_from(["repeat_last", "wrap"])


def theirs(sampler: str, info: ClipInfo, **how: Any) -> list[Any]:
    decoder = FakeDecoder(info.frames, info.begin_s, info.duration_s)
    getattr(samplers, sampler)(decoder, **how)
    return decoder.asked


@given(st.integers(1, 5000), st.integers(1, 200))
def test_uniform(frames: int, n: int) -> None:
    """``clips_at_regular_indices`` with clips of one frame, more of them than the clip has included."""
    assert list(uniform(n)(steady(frames), 0).frames) == theirs("clips_at_regular_indices", steady(frames), num_clips=n)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 20), st.integers(1, 9), policies)
def test_regular_windows(frames: int, count: int, length: int, stride: int, policy: str) -> None:
    """``clips_at_regular_indices``, by both policies, windows longer than the clip included."""
    there = theirs(
        "clips_at_regular_indices", steady(frames), num_clips=count, num_frames_per_clip=length, num_indices_between_frames=stride,
        policy=policy,
    )  # fmt: skip
    assert list(clips(count, length, stride, policy=policy)(steady(frames), 0).frames) == there


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 20), st.integers(1, 9), policies, st.integers())
def test_random_windows(frames: int, count: int, length: int, stride: int, policy: str, seed: int) -> None:
    """``clips_at_random_indices``: begins below the same bound, and from the same begins the same frames. The dice are our own."""
    ours = list(clips(count, length, stride, choice="random", policy=policy)(steady(frames), seed).frames)
    with mock.patch.object(torch, "randint", return_value=torch.tensor(ours[::length])) as dice:
        there = theirs(
            "clips_at_random_indices", steady(frames), num_clips=count, num_frames_per_clip=length, num_indices_between_frames=stride,
            policy=policy,
        )  # fmt: skip
    assert ours == there
    assert max(ours[::length]) < dice.call_args.kwargs["high"]


@given(st.integers(1, 30), st.integers(1, 20), st.integers(1, 9))
def test_both_refuse_a_window_past_the_end(frames: int, length: int, stride: int) -> None:
    """The policy ``error`` raises for the same clips."""
    how = {"num_frames_per_clip": length, "num_indices_between_frames": stride, "policy": "error"}
    try:
        theirs("clips_at_regular_indices", steady(frames), **how)
    except ValueError:
        with pytest.raises(TooFewFrames):
            clips(1, length, stride, policy="error")(steady(frames), 0)
    else:
        clips(1, length, stride, policy="error")(steady(frames), 0)


def same_times(info: ClipInfo, ours: Sampling, times_s: list[float]) -> None:
    """Each frame is the one that torchcodec shows at its time, or at a time a rounding later."""
    assert len(ours.frames) == len(times_s)
    for frame, time_s in zip(ours.frames, times_s, strict=True):
        assert frame in {bisect_right(info.times_s, time_s) - 1, bisect_right(info.times_s, time_s + ROUNDING_S) - 1}


def edge(info: ClipInfo, time_s: float) -> bool:
    """Whether a time is so near to the clip's end that a rounding decides whether anything is shown."""
    return abs(time_s - info.duration_s) < 2 * ROUNDING_S


@given(clip_infos(), st.floats(0.1, 60), st.integers(1, 20), st.floats(0, 0.999), policies)
def test_a_rate_from_a_time(info: ClipInfo, rate: float, n: int, part: float, policy: str) -> None:
    """``clips_at_regular_timestamps`` with one clip from that time on, constant rate or not."""
    start_s = info.begin_s + part * (info.duration_s - info.begin_s)
    assume(not any(edge(info, start_s + k / rate) for k in range(n)))
    there = theirs(
        "clips_at_regular_timestamps", info, seconds_between_clip_starts=1e9, num_frames_per_clip=n, seconds_between_frames=1 / rate,
        sampling_range_start=start_s, sampling_range_end=info.duration_s, policy=policy,
    )  # fmt: skip
    same_times(info, fps(rate, n, start_s, policy)(info, 0), there)


@given(clip_infos(), st.floats(0.1, 60), st.integers(1, 20), st.integers())
def test_a_rate_from_a_random_time(info: ClipInfo, rate: float, n: int, seed: int) -> None:
    """``clips_at_random_timestamps``, given our dice, where the clip is long enough; it refuses the others, ours fills."""
    assume(info.begin_s + 2 * ROUNDING_S < info.duration_s - (n - 1) * (1 / rate))
    with mock.patch.object(torch, "rand", return_value=torch.tensor([Draws(seed, "fps").part()], dtype=torch.float64)):
        there = theirs("clips_at_random_timestamps", info, num_frames_per_clip=n, seconds_between_frames=1 / rate)
    assume(not any(edge(info, time_s) for time_s in there))
    same_times(info, fps(rate, n, "random")(info, seed), there)
