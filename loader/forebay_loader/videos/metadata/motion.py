"""How much the picture changes, and how loud the sound is, over a clip's time. Pure, on arrays.

Of the pictures only a few are looked at, 32 x 32 pixels each: the keyframes where there are enough of them, which decode alone; else so
many frames evenly spread that each span has two. Rejected: the sizes of packets. They need no decoding at all, but they tell what the
encoder's rate control did.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any, Sequence

import numpy

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import even_places

__all__ = ["LOOK", "SPANS", "looked_at", "loudness_peaks", "mean_differences", "measured", "per_span"]


SPANS = 32  # of a clip's time; a sampler takes few frames, and cannot follow finer ones
_MOST_LOOKED_AT = 4 * SPANS
_WINDOW_S = 0.02  # of sound: as short as a syllable's onset


def looked_at(info: ClipInfo, spans: int = SPANS) -> list[int]:
    """The numbers of the frames that motion is told from, ascending; fewer than two tell nothing."""
    keyframes = info.keyframes
    if len(keyframes) > 2 * spans:
        places = even_places(0, len(keyframes) - 1, min(len(keyframes), _MOST_LOOKED_AT))
        return [keyframes[place] for place in places]
    return sorted(set(even_places(0, info.frames - 1, 2 * spans + 1))) if info.frames else []


def mean_differences(frames: Any) -> list[float]:
    """Of T x H x W x C uint8 the T - 1 mean absolute differences of neighbours, 0 to 1."""
    pictures = frames.astype(numpy.int16)
    return [float(value) for value in numpy.abs(numpy.diff(pictures, axis=0)).mean(axis=(1, 2, 3)) / 255]


def per_span(times_s: Sequence[float], values: Sequence[float], duration_s: float, spans: int = SPANS) -> array[float]:
    """Means over ``spans`` equal parts of the time from 0 to ``duration_s`` of what is ``values[k]`` from ``times_s[k]`` to the next.

    One value fewer than times. Before the first time the first value holds, after the last the last. Zeros without a value, or a duration.
    """
    if not values or duration_s <= 0:
        return array("f", bytes(4 * spans))
    edges = numpy.linspace(0.0, duration_s, spans + 1)
    steps = numpy.asarray(values, float)
    inner = numpy.asarray(times_s, float)[1:-1]
    cuts = numpy.unique(numpy.concatenate([edges, inner[(inner > 0) & (inner < duration_s)]]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    held = steps[numpy.searchsorted(inner, middles, side="right")]
    sums = numpy.bincount(numpy.minimum((middles / duration_s * spans).astype(int), spans - 1), held * numpy.diff(cuts), spans)
    return array("f", (sums / (duration_s / spans)).tolist())


def loudness_peaks(samples: Any, rate_hz: int, begin_s: float, duration_s: float, spans: int = SPANS) -> Any:
    """The greatest RMS of any 20 ms in each of ``spans`` equal parts of the time from 0 to ``duration_s``, as float32.

    ``samples`` are channels x samples float from ``begin_s`` on, -1 to 1; the channels are taken together. Windows are counted from there;
    one belongs to the part that its middle lies in.
    """
    peaks = numpy.zeros(spans, numpy.float32)
    length = max(round(rate_hz * _WINDOW_S), 1)
    count = -(-samples.shape[1] // length)
    if not samples.size or duration_s <= 0:
        return peaks
    starts = numpy.arange(count) * length
    power = numpy.add.reduceat((samples.astype(numpy.float64) ** 2).mean(axis=0), starts)
    sizes = numpy.minimum(starts + length, samples.shape[1]) - starts
    middles_s = begin_s + (starts + sizes / 2) / rate_hz
    inside = middles_s < duration_s
    at = (middles_s[inside] / duration_s * spans).astype(int)
    numpy.maximum.at(peaks, at, numpy.sqrt(power / sizes)[inside].astype(numpy.float32))
    return numpy.minimum(peaks, 1.0)


# One clip, looked at and listened to once.
LOOK = (32, 32)  # pixels; a source that is measured gives frames of this size
_CHUNK_S = 60.0  # of sound in memory at a time: 23 MB of stereo at 48 kHz


def measured(source: Any, *, audio: bool = True, spans: int = SPANS) -> ClipInfo:
    """What ``source`` says of its clip, with ``motion`` and ``audio_energy``: ``spans`` values each, as ``ClipInfo`` says.

    - ``source``: a ``VideoSource``; gives frames of any one size; small ones cost least (``LOOK``).
    - ``audio``: False leaves the sound unread, and ``audio_energy`` None where there is any.

    Raises what ``source`` raises: ``VideoError``, and what reading does.
    """
    info: ClipInfo = source.open()
    heard = _peaks(source, info, spans) if info.audio_rate_hz and audio else None
    return replace(info, motion=_motion(source, info, spans) if info.frames else None, audio_energy=heard)


def _motion(source: Any, info: ClipInfo, spans: int) -> "array[float]":
    numbers = looked_at(info, spans)
    if len(numbers) < 2:
        return array("f", bytes(4 * spans))
    values = mean_differences(source.frames(numbers))
    return per_span([info.times_s[number] for number in numbers], values, info.duration_s, spans)


def _peaks(source: Any, info: ClipInfo, spans: int) -> "array[float]":
    peaks = numpy.zeros(spans, numpy.float32)
    begin_s = 0.0
    while begin_s < info.duration_s:
        samples, rate_hz = source.audio(begin_s, min(begin_s + _CHUNK_S, info.duration_s))
        if not samples.size:
            break
        peaks = numpy.maximum(peaks, loudness_peaks(samples, rate_hz, begin_s, info.duration_s, spans))
        begin_s += _CHUNK_S
    return array("f", peaks.tolist())
