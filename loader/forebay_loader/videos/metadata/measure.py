"""One clip, looked at and listened to once."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any, Protocol, Sequence

import numpy

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.motion import SPANS, looked_at, loudness_peaks, mean_differences, per_span

__all__ = ["LOOK", "Measurable", "measured"]

LOOK = (32, 32)  # pixels; a source that is measured gives frames of this size
_CHUNK_S = 60.0  # of sound in memory at a time: 23 MB of stereo at 48 kHz


class Measurable(Protocol):
    """What of a ``VideoSource`` is needed here."""

    def open(self) -> ClipInfo: ...
    def frames(self, indices: Sequence[int]) -> Any: ...
    def audio(self, begin_s: float, end_s: float) -> "tuple[Any, int]": ...


def measured(source: Measurable, *, audio: bool = True, spans: int = SPANS) -> ClipInfo:
    """What ``source`` says of its clip, with ``motion`` and ``audio_energy``: ``spans`` values each, as ``ClipInfo`` says.

    - ``source``: gives frames of any one size; small ones cost least (``LOOK``).
    - ``audio``: False leaves the sound unread, and ``audio_energy`` None where there is any.

    Raises what ``source`` raises: ``VideoError``, and what reading does.
    """
    info = source.open()
    heard = _peaks(source, info, spans) if info.audio_rate_hz and audio else None
    return replace(info, motion=_motion(source, info, spans) if info.frames else None, audio_energy=heard)


def _motion(source: Measurable, info: ClipInfo, spans: int) -> "array[float]":
    numbers = looked_at(info, spans)
    if len(numbers) < 2:
        return array("f", bytes(4 * spans))
    values = mean_differences(source.frames(numbers))
    return per_span([info.times_s[number] for number in numbers], values, info.duration_s, spans)


def _peaks(source: Measurable, info: ClipInfo, spans: int) -> "array[float]":
    peaks = numpy.zeros(spans, numpy.float32)
    begin_s = 0.0
    while begin_s < info.duration_s:
        samples, rate_hz = source.audio(begin_s, min(begin_s + _CHUNK_S, info.duration_s))
        if not samples.size:
            break
        peaks = numpy.maximum(peaks, loudness_peaks(samples, rate_hz, begin_s, info.duration_s, spans))
        begin_s += _CHUNK_S
    return array("f", peaks.tolist())
