"""The mel spectrogram, beside one that is written out as sums."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_loader.videos.transforms import mel_spectrogram
from forebay_loader.videos.transforms.mel import mel_filters


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


def test_a_tone_is_in_its_band() -> None:
    """1000 Hz is 1000 mel, very nearly; and its power is what the docstring says."""
    tone = torch.sin(2 * math.pi * 1000 * torch.arange(16_000) / 16_000)
    found = mel_spectrogram(tone[None], 16_000, mels=40, log=False)
    assert found.shape == (1, 40, 101)
    middle = found[0, :, 50]
    width = 2595 * math.log10(1 + 8000 / 700) / 41
    assert int(middle.argmax()) in (math.floor(1000 / width) - 1, math.ceil(1000 / width) - 1)
    assert mel_spectrogram(tone, 16_000, mels=1, low_hz=0.0, high_hz=8000.0, log=False)[0, 50] > 0
    spectrum = torch.stft(tone, 400, 160, window=torch.hann_window(400), return_complex=True).abs() ** 2
    assert float(spectrum[25, 50]) == pytest.approx(100**2, rel=1e-3)


def test_bands_overlap_to_one() -> None:
    """Between the middles of the first and the last, what one loses the next one has."""
    filters = mel_filters(16_000, 1024, 20, 0.0, 8000.0)
    inner = filters.sum(dim=0)[50:450]
    assert torch.allclose(inner, torch.ones_like(inner), atol=1e-5)


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
def test_others_are_refused(audio: Any, how: dict[str, Any], error: type[Exception]) -> None:
    """With the values that do not fit together."""
    with pytest.raises(error, match=r"audio is channels|no mel spectrogram"):
        mel_spectrogram(audio, 16_000, **how)
