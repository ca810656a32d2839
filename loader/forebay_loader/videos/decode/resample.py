"""Sound at another rate, channel by channel: libswresample as PyAV has it."""

from __future__ import annotations

from typing import Any

import av
import numpy

__all__ = ["resampled"]


def resampled(samples: Any, rate_hz: int, wanted_hz: int) -> Any:
    """``channels x samples`` float32 of ``rate_hz`` as as many channels of ``wanted_hz``, as long within one sample."""
    if rate_hz == wanted_hz or not samples.size:
        return samples
    length = round(samples.shape[1] * wanted_hz / rate_hz)
    found = numpy.zeros((len(samples), length), numpy.float32)
    for channel, room in zip(samples, found):  # noqa: B905  # strict= is not of 3.9; as many by construction
        resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted_hz)
        frame = av.AudioFrame.from_ndarray(numpy.ascontiguousarray(channel)[None], format="flt", layout="mono")
        frame.sample_rate = rate_hz
        parts = [part.to_ndarray()[0] for given in (frame, None) for part in resampler.resample(given)]
        tone = numpy.concatenate([room[:0], *parts])[:length]  # of a few samples it may give none
        room[: len(tone)] = tone
    return found
