"""Sound at another rate."""

from __future__ import annotations

import numpy
import pytest

from forebay_loader.videos.decode.sound import resampled


@pytest.mark.parametrize(("rate", "wanted"), [(48_000, 16_000), (44_100, 16_000), (16_000, 48_000)])
def test_a_tone_stays_a_tone(rate: int, wanted: int) -> None:
    """As long in seconds, the same wave; each channel by itself."""
    seconds = numpy.arange(rate) / rate
    tones = numpy.stack([numpy.sin(2 * numpy.pi * hertz * seconds) for hertz in (440, 880, 1320)]).astype(numpy.float32)
    found = resampled(tones, rate, wanted)
    there = numpy.arange(wanted) / wanted
    assert found.shape == (3, wanted)
    assert numpy.abs(found[:, -8:]).max() > 0.05  # to its end, which a filter holds back
    inner = slice(wanted // 10, -wanted // 10)
    for hertz, tone in zip((440, 880, 1320), found, strict=True):
        assert numpy.abs(tone - numpy.sin(2 * numpy.pi * hertz * there))[inner].max() < 0.01


def test_the_same_rate_is_the_same_sound() -> None:
    """Nothing is done; nor to no sound."""
    tone = numpy.ones((1, 10), numpy.float32)
    assert resampled(tone, 8_000, 8_000) is tone
    assert resampled(tone[:, :0], 8_000, 16_000).shape == (1, 0)


@pytest.mark.parametrize("samples", [1, 2, 5, 40])
def test_a_few_samples(samples: int) -> None:
    """As many as they last, though the filter gives none of them."""
    assert resampled(numpy.ones((1, samples), numpy.float32), 48_000, 16_000).shape == (1, round(samples / 3))
