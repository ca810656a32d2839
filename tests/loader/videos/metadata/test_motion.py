"""Motion and loudness over time, beside slow and plain sums."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady
from support.painted_source import PaintedSource

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.motion import looked_at, loudness_peaks, mean_differences, measured, per_span


@given(clip_infos(), st.integers(1, 40))
def test_what_is_looked_at(info: ClipInfo, spans: int) -> None:
    """Different frames of the clip, ascending, both ends among them, a bounded number."""
    found = looked_at(info, spans)
    assert found == sorted(set(found))
    assert set(found) <= set(range(info.frames))
    assert len(found) <= max(2 * spans + 1, 128)


def test_keyframes_where_they_are_enough() -> None:
    """They decode alone; of very many some."""
    assert looked_at(steady(3000, gop=30), 32) == list(range(0, 3000, 30))
    few = looked_at(steady(300_000, gop=30), 32)
    assert len(few) == 128
    assert all(frame % 30 == 0 for frame in few)


def test_frames_where_keyframes_are_few() -> None:
    """Two in each span."""
    assert looked_at(steady(321, gop=250), 32) == list(range(0, 321, 5))


def test_nothing_to_look_at() -> None:
    """Sound alone."""
    assert looked_at(steady(0)) == []


def test_differences_are_means_of_all_pixels() -> None:
    """Of 255, up and down alike."""
    frames = numpy.zeros((3, 2, 2, 3), numpy.uint8)
    frames[1] = 51
    frames[2, 0, 0] = 255
    expected = [51 / 255, (3 * (255 - 51) + 9 * 51) / 12 / 255]
    assert mean_differences(frames) == pytest.approx(expected)


@given(st.lists(st.integers(0, 400), min_size=2, max_size=12, unique=True).map(sorted), st.integers(1, 400), st.integers(1, 9), st.data())
def test_means_over_spans(times: list[int], duration: int, spans: int, data: st.DataObject) -> None:
    """A sum over fine steps says the same."""
    values = data.draw(st.lists(st.floats(0, 1), min_size=len(times) - 1, max_size=len(times) - 1))
    found = per_span([time / 100 for time in times], values, duration / 100, spans)
    steps = 7 * spans * duration  # each span and each time at a border of them
    for span in range(spans):
        held = []
        for step in range(7 * duration):
            time = (span * 7 * duration + step + 0.5) / steps * duration
            held.append(values[max(0, min(sum(border <= time for border in times[1:-1]), len(values) - 1))])
        assert found[span] == pytest.approx(sum(held) / len(held), abs=0.02)


@pytest.mark.parametrize(("values", "duration_s"), [([], 4.0), ([1.0], 0.0)])
def test_nothing_is_still(values: list[float], duration_s: float) -> None:
    """One frame, or a clip of no time."""
    assert per_span([0.0, 1.0], values, duration_s, 3).tolist() == [0.0, 0.0, 0.0]


@given(
    st.integers(1, 2),
    st.lists(st.sampled_from([0.0, 0.5, -1.0, 1.0]), max_size=60),
    st.sampled_from([50, 100, 175]),
    st.floats(0, 3),
    st.floats(0.01, 3),
    st.integers(1, 7),
)
def test_peaks_by_plain_sums(channels: int, sound: list[float], rate_hz: int, begin_s: float, duration_s: float, spans: int) -> None:
    """Window by window, each in the span of its middle."""
    window = max(round(rate_hz * 0.02), 1)
    plain = [0.0] * spans
    for start in range(0, len(sound), window):
        part = sound[start : start + window]
        middle_s = begin_s + (start + len(part) / 2) / rate_hz
        place = middle_s / duration_s * spans
        assume(abs(place - round(place)) > 1e-6)
        if middle_s < duration_s:
            loudness = math.sqrt(sum(one * one for one in part) / len(part))
            plain[int(place)] = max(plain[int(place)], loudness)
    samples = numpy.tile(numpy.array(sound, numpy.float32), (channels, 1))
    assert loudness_peaks(samples, rate_hz, begin_s, duration_s, spans).tolist() == pytest.approx(plain)


def test_channels_do_not_cancel() -> None:
    """The same sound in opposite phase is as loud."""
    tone = numpy.sin(numpy.arange(8000) * 0.3)
    assert loudness_peaks(numpy.stack([tone, -tone]), 8000, 0.0, 1.0, 1)[0] == pytest.approx(math.sqrt(0.5), rel=0.02)


def test_no_sound_is_silence() -> None:
    """No channel, no sample, no time."""
    for samples, duration_s in (
        (numpy.zeros((0, 0)), 1.0),
        (numpy.zeros((0, 9)), 1.0),
        (numpy.zeros((2, 0)), 1.0),
        (numpy.ones((1, 9)), 0.0),
    ):
        assert not loudness_peaks(samples, 8000, 0.0, duration_s, 3).any()


def test_motion_where_it_flickers() -> None:
    """The third quarter, and a still one elsewhere."""
    source = PaintedSource(steady(640, 10.0), lambda number: number % 20 * 12 if 320 <= number < 480 else 0)
    motion = measured(source).motion
    assert motion is not None
    assert len(motion) == 32
    assert min(motion[17:23]) > 0.05
    assert max([*motion[:15], *motion[25:]]) == 0


def test_sound_where_it_sounds() -> None:
    """From the middle on, over chunks of a minute."""
    source = PaintedSource(steady(1500, 10.0, audio_rate_hz=1000), tone_s=75.0)
    energy = measured(source).audio_energy
    assert energy is not None
    assert energy.tolist() == [0.0] * 16 + [0.5] * 16
    assert source.heard == [(0.0, 60.0), (60.0, 120.0), (120.0, 150.0)]


def test_one_frame_is_still_and_sound_alone_has_no_motion() -> None:
    """There is no neighbour, or no picture; and of no track of sound there is nothing to be known."""
    still, heard = (measured(PaintedSource(info)) for info in (steady(1), ClipInfo(0, steady(0).times_s, 1.0, 0, 0, audio_rate_hz=1000)))
    assert (set(still.motion or ()), still.audio_energy) == ({0.0}, None)
    assert heard.motion is None
    assert heard.audio_energy is not None


def test_sound_that_ends_early_ends_it() -> None:
    """No endless asking behind the end of the track."""

    class Short(PaintedSource):
        def audio(self, begin_s: float, end_s: float) -> tuple[Any, int]:
            samples, rate_hz = super().audio(begin_s, end_s)
            return samples[:, : 0 if begin_s >= 60 else None], rate_hz

    source = Short(steady(10_000, 10.0, audio_rate_hz=1000))
    assert measured(source).audio_energy is not None
    assert len(source.heard) == 2
