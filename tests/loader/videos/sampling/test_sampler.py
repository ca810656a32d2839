"""What all samplers have in common: pure, total, typed errors, and printed as they are written."""

from __future__ import annotations

import pickle
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import VideoError
from forebay_loader.videos.sampling import (
    NoFrames,
    Sampler,
    TooFewFrames,
    by_epoch,
    for_epoch,
    keyframes,
    sampler_of,
    time_warp,
    uniform,
)

SPELLED = (
    "uniform(8)", "uniform(8, choice='random')", "keyframes(8)", "keyframes(8, choice='random', policy='wrap')",
    "fps(4.0, n=16)", "fps(4.0)", "fps(4.0, n=16, start_s='random')", "clip(0.0, 16, stride=2)", "clip('random', 16, policy='wrap')",
    "clips(3, 4, stride=2)",
    "clips(3, 4, choice='random')", "adaptive(8)", "adaptive(8, by='audio', choice='random', floor=0.5)",
    "time_warp(uniform(8))", "frame_drop(clip('random', 8), share=0.5)", "time_warp(frame_drop(fps(4.0, n=16)), strength=1.0)",
)  # fmt: skip
samplers = st.sampled_from(SPELLED).map(sampler_of)


@pytest.mark.parametrize("text", SPELLED)
def test_printed_as_it_is_written(text: str) -> None:
    """What a log shows can be pasted into a configuration; it travels to workers, equal to what was sent."""
    assert repr(sampler_of(text)) == text
    assert pickle.loads(pickle.dumps(sampler_of(text))) == sampler_of(text)


@given(samplers, clip_infos(spans=5), st.integers())
def test_any_clip_with_a_frame_is_sampled(sampler: Sampler, info: ClipInfo, seed: int) -> None:
    """One frame or many, variable rate or not: existing frames, a truth for each, the first of them real, and the same again."""
    found = sampler(info, seed)
    assert found == sampler(info, seed)
    assert len(found.frames) == len(found.mask) > 0
    assert set(found.frames) <= set(range(info.frames))
    assert found.mask[0]
    assert {type(frame) for frame in found.frames} == {int}
    assert {type(real) for real in found.mask} == {bool}


@given(samplers, clip_infos(most=10, spans=5), st.integers())
def test_what_is_not_real_stands_there_already(sampler: Sampler, info: ClipInfo, seed: int) -> None:
    """A masked frame brings nothing new: a model that leaves it out loses nothing."""
    found = sampler(info, seed)
    real = {frame for frame, is_real in zip(found.frames, found.mask, strict=True) if is_real}
    assert set(found.frames) == real


@pytest.mark.parametrize("text", [text for text in SPELLED if "n=" in text or "fps" not in text])
@pytest.mark.parametrize("frames", [1, 2, 500])
def test_every_clip_gives_as_many(text: str, frames: int) -> None:
    """A batch is made of equal shapes, however long its clips are."""
    facts = {"motion": array("f", [0, 1]), "audio_energy": array("f", [0, 1]), "audio_rate_hz": 48_000}
    assert len(sampler_of(text)(steady(frames, **facts), 1).frames) == len(sampler_of(text)(steady(100, **facts), 2).frames)


@pytest.mark.parametrize("text", SPELLED)
@pytest.mark.parametrize(("audio_rate_hz", "told"), [(48_000, "sound and no picture"), (0, "no frame")])
def test_no_frame_is_an_error_of_its_own(text: str, audio_rate_hz: int, told: str) -> None:
    """Sound alone, or nothing at all."""
    with pytest.raises(NoFrames, match=told):
        sampler_of(text)(ClipInfo(0, array("d"), 2.0, 0, 0, audio_rate_hz=audio_rate_hz), 0)


def test_errors_are_of_the_video_family() -> None:
    """Who catches what is wrong with a clip catches these, and adds the names that a sampler does not know."""
    with pytest.raises(VideoError) as caught:
        sampler_of("clip(99, 4)")(steady(10), 0)
    error = type(caught.value)(caught.value.what, "a.mp4", "s3://b/1.tar")
    assert isinstance(error, TooFewFrames)
    assert str(error).startswith("a.mp4 in s3://b/1.tar: clip(99.0, 4)")


PHASES = by_epoch({0: uniform(8), 10: keyframes(8), 20: uniform(16)})


@pytest.mark.parametrize(
    ("asked", "epoch", "sampler"),
    [
        *((PHASES, epoch, uniform(8)) for epoch in (0, 9)),
        *((PHASES, epoch, keyframes(8)) for epoch in (10, 19)),
        (PHASES, 99, uniform(16)),
        (uniform(8), 3, uniform(8)),
        (len, 3, len),  # a function of a user's
        (time_warp(PHASES), 10, time_warp(keyframes(8))),
        (by_epoch({0: PHASES}), 12, keyframes(8)),
    ],
)
def test_the_phase_of_an_epoch(asked: Any, epoch: int, sampler: object) -> None:
    """The last that has begun, inside an augmentation and in phases of phases; others are of every epoch."""
    assert for_epoch(asked, epoch) == sampler


def test_without_an_epoch_it_says_so() -> None:
    """Any answer would be right in one phase only."""
    with pytest.raises(TypeError, match="asked without an epoch"):
        PHASES(steady(10), 0)


def test_it_is_text() -> None:
    """Printed, and read again; and it travels."""
    assert sampler_of(repr(PHASES)) == PHASES
    assert pickle.loads(pickle.dumps(PHASES)) == PHASES


@pytest.mark.parametrize(
    ("phases", "error", "told"),
    [
        ({1: uniform(8)}, ValueError, "from epoch 0"),
        ({0: 8}, TypeError, "for epoch 0"),
        ({"0": uniform(8)}, TypeError, "epochs from 0"),
        ({-1: len}, ValueError, "epochs from 0"),
    ],
)
def test_wrong_phases_are_named_at_once(phases: dict[int, object], error: type[Exception], told: str) -> None:
    """Where they are given, not in epoch 10."""
    with pytest.raises(error, match=told):
        by_epoch(phases)
