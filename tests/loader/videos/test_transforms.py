"""Differences of frames, optical flow and the mel spectrogram, beside plain loops and sums."""

from __future__ import annotations

import math
import os
import sys
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

with mock.patch.dict(os.environ):  # its import sets LD_LIBRARY_PATH, and this process starts programs of other tests
    cv2 = pytest.importorskip("cv2", reason="optical flow is the extra `flow`: opencv-python-headless is not installed")

from forebay_loader.videos.transforms import frame_difference, mel_spectrogram, optical_flow

SIDE = 64


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_plain_subtraction_says_the_same(count: int, height: int, width: int, seed: int) -> None:
    """Number by number, in Python's integers; torch like numpy."""
    frames = numpy.random.default_rng(seed).integers(0, 256, (count, height, width, 3), numpy.uint8)
    found = frame_difference(frames)
    assert found.dtype == numpy.int16
    assert found.shape == (max(count - 1, 0), height, width, 3)
    for place, change in numpy.ndenumerate(found):
        assert change == int(frames[(place[0] + 1, *place[1:])]) - int(frames[place])
    other = frame_difference(torch.from_numpy(frames))
    assert other.dtype == torch.int16
    assert numpy.array_equal(other.numpy(), found)


@pytest.mark.parametrize("frames", [numpy.zeros((2, 2), numpy.float32), torch.zeros(2, 2), numpy.zeros((), numpy.uint8)])
def test_other_frames_are_refused(frames: Any) -> None:
    """By their type, which is named."""
    with pytest.raises(TypeError, match="frames are T x H x W x C uint8; got"):
        frame_difference(frames)


def textured(seed: int = 0) -> Any:
    """Smooth and different everywhere, as pictures are."""
    noise = numpy.random.default_rng(seed).integers(0, 256, (SIDE + 32, SIDE + 32), numpy.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 2.0)


def moved(picture: Any, right: int, down: int) -> Any:
    """A window on ``picture`` in which all moved so far."""
    return picture[16 - down : 16 - down + SIDE, 16 - right : 16 - right + SIDE]


@settings(max_examples=15, deadline=None)
@given(st.integers(-4, 4), st.integers(-4, 4), st.sampled_from(["dis", "farneback"]), st.integers(0, 9))
def test_flow_is_what_a_picture_was_moved_by(right: int, down: int, method: str, seed: int) -> None:
    """To half a pixel, in the middle of the picture."""
    before, behind = moved(textured(seed), 0, 0), moved(textured(seed), right, down)
    flow = optical_flow(numpy.stack([before, behind]), method)
    assert flow.shape == (1, SIDE, SIDE, 2)
    assert flow.dtype == numpy.float32
    assert numpy.median(flow[0, 16:48, 16:48], axis=(0, 1)) == pytest.approx((right, down), abs=0.5)


def test_colours_are_made_grey() -> None:
    """As OpenCV does it."""
    frames = numpy.stack([moved(textured(), 0, 0), moved(textured(), 2, 0)])
    assert numpy.array_equal(optical_flow(numpy.repeat(frames[..., None], 3, axis=3)), optical_flow(frames))


@pytest.mark.parametrize("count", [0, 1])
def test_no_pair_no_flow(count: int) -> None:
    """An empty array of the right shape."""
    assert optical_flow(numpy.zeros((count, 20, 30, 3), numpy.uint8)).shape == (0, 20, 30, 2)


def test_each_pair_once() -> None:
    """A frame that is repeated moved nowhere; a pair that comes again has the same flow."""
    picture = textured()
    first, second = moved(picture, 0, 0), moved(picture, 3, 1)
    frames, numbers = numpy.stack([first, second, second, first, second]), [7, 9, 9, 7, 9]
    calls = []
    real = cv2.calcOpticalFlowFarneback
    with mock.patch.object(cv2, "calcOpticalFlowFarneback", lambda *how: calls.append(1) or real(*how)):
        found = optical_flow(frames, "farneback", numbers=numbers)
        assert len(calls) == 2
        plain = optical_flow(frames, "farneback")
    assert not found[1].any()
    assert numpy.array_equal(found[3], found[0])
    assert numpy.array_equal(found[[0, 2, 3]], plain[[0, 2, 3]])


def test_frames_that_lie_apart_in_memory() -> None:
    """A view of every other column is a picture too."""
    wide = numpy.random.default_rng(1).integers(0, 256, (2, 20, 40, 3), numpy.uint8)
    assert numpy.array_equal(optical_flow(wide[:, :, ::2]), optical_flow(wide[:, :, ::2].copy()))


def test_threads_are_as_before() -> None:
    """OpenCV's number is the program's."""
    cv2.setNumThreads(3)
    try:
        optical_flow(numpy.zeros((2, 20, 20), numpy.uint8))
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(-1)


@pytest.mark.parametrize(
    ("frames", "how", "error", "told"),
    [
        (numpy.zeros((2, 20, 20), numpy.float32), {}, TypeError, "float32"),
        ([[1]], {}, TypeError, "list"),
        (numpy.zeros((2, 20, 20, 4), numpy.uint8), {}, ValueError, "got shape"),
        (numpy.zeros((2, 8, 20, 3), numpy.uint8), {}, ValueError, "from 16"),
        (numpy.zeros((2, 20, 20), numpy.uint8), {"method": "raft"}, ValueError, "dis, farneback; got 'raft'"),
        (numpy.zeros((2, 20, 20), numpy.uint8), {"numbers": [1]}, ValueError, "1 of 2"),
    ],
)
def test_other_frames_have_no_flow(frames: Any, how: dict[str, Any], error: type[Exception], told: str) -> None:
    """With what would be right."""
    with pytest.raises(error, match=told):
        optical_flow(frames, **how)


def test_without_opencv_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is asked for, and not before."""
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ModuleNotFoundError, match=r"install forebay\[flow\]"):
        optical_flow(numpy.zeros((2, 20, 20), numpy.uint8))


def plain(sound: list[float], rate_hz: int, window: int, hop: int, mels: int, low_hz: float, high_hz: float) -> list[list[float]]:
    """Window by window, bin by bin, band by band: the sums of the definition. mels x frames, power."""
    padded = [0.0] * (window // 2) + sound + [0.0] * (window // 2)
    found = []
    for start in range(0, len(sound) + 1, hop):
        part = [padded[start + k] * (0.5 - 0.5 * math.cos(2 * math.pi * k / window)) for k in range(window)]
        power = []
        for number in range(window // 2 + 1):
            real = sum(one * math.cos(2 * math.pi * number * k / window) for k, one in enumerate(part))
            imaginary = sum(one * math.sin(2 * math.pi * number * k / window) for k, one in enumerate(part))
            power.append(real**2 + imaginary**2)
        bands = [[triangle(number * rate_hz / window, band, mels, low_hz, high_hz) for number in range(len(power))] for band in range(mels)]
        found.append([sum(weight * one for weight, one in zip(weights, power, strict=True)) for weights in bands])
    return [list(row) for row in zip(*found, strict=True)]


def triangle(hz: float, band: int, mels: int, low_hz: float, high_hz: float) -> float:
    """What a frequency counts in a band."""
    low, high = 2595 * math.log10(1 + low_hz / 700), 2595 * math.log10(1 + high_hz / 700)
    below, middle, above = (700 * (10 ** ((low + (high - low) * (band + k) / (mels + 1)) / 2595) - 1) for k in range(3))
    if hz <= below or hz >= above:
        return 0.0
    return (hz - below) / (middle - below) if hz <= middle else (above - hz) / (above - middle)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=60),
    st.sampled_from([(16, 8), (16, 5), (10, 10), (12, 4)]),
    st.integers(1, 5),
    st.sampled_from([(0.0, 500.0), (50.0, 400.0)]),
)
def test_sums_written_out_say_the_same(sound: list[float], sizes: tuple[int, int], mels: int, band: tuple[float, float]) -> None:
    """Windows longer than the sound too."""
    window, hop = sizes
    expected = plain(sound, 1000, window, hop, mels, *band)
    how = {"mels": mels, "window_s": window / 1000, "hop_s": hop / 1000, "low_hz": band[0], "high_hz": band[1]}
    found = mel_spectrogram(numpy.array(sound, numpy.float32), 1000, log=False, **how)
    assert found.shape == (mels, len(sound) // hop + 1)
    assert found.numpy() == pytest.approx(numpy.array(expected), abs=1e-3, rel=1e-3)
    logarithm = mel_spectrogram(torch.tensor(sound), 1000, **how)
    assert torch.allclose(logarithm, found.clamp(min=1e-10).log())


@pytest.mark.parametrize("audio", [numpy.zeros((2, 0), numpy.float32), torch.zeros(2, 0)])
def test_no_sound_is_a_window_of_silence(audio: Any) -> None:
    """Both channels."""
    found = mel_spectrogram(audio, 16_000)
    assert found.shape == (2, 80, 1)
    assert torch.equal(found, torch.full_like(found, math.log(1e-10)))


def test_no_channel_is_none() -> None:
    """What ``fb.video`` gives of a clip without sound."""
    assert mel_spectrogram(numpy.zeros((0, 0), numpy.float32), 16_000).shape == (0, 80, 1)


@pytest.mark.parametrize(
    ("audio", "how", "error"),
    [
        (numpy.zeros(9, numpy.int16), {}, TypeError),
        (torch.zeros(1, 1, 9), {}, TypeError),
        (torch.zeros(9), {"mels": 0}, ValueError),
        (torch.zeros(9), {"hop_s": 0.0}, ValueError),
        (torch.zeros(9), {"window_s": 0.00001}, ValueError),
        (torch.zeros(9), {"high_hz": 9000.0}, ValueError),
        (torch.zeros(9), {"low_hz": 8000.0}, ValueError),
    ],
)
def test_other_sound_is_refused(audio: Any, how: dict[str, Any], error: type[Exception]) -> None:
    """With the values that do not fit together."""
    with pytest.raises(error, match=r"audio is channels|no mel spectrogram"):
        mel_spectrogram(audio, 16_000, **how)
