"""What PyAV itself gives of a clip, decoded from its begin to its end: what ours is compared with."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import av
import numpy

__all__ = ["pictures_of", "sound_of", "sound_only"]


@lru_cache(maxsize=32)
def pictures_of(data: bytes) -> list[Any]:
    """Every frame as ``height x width x 3`` uint8, as coded."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@lru_cache(maxsize=32)
def sound_of(data: bytes) -> tuple[Any, int]:
    """(``channels x samples``, samples a second), in the decoder's own numbers where it is planar."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    parts = [
        frame.to_ndarray() if frame.format.is_planar else frame.to_ndarray().reshape(-1, len(frame.layout.channels)).T for frame in frames
    ]
    return numpy.concatenate(parts, axis=1), frames[0].sample_rate


def sound_only() -> bytes:
    """A clip without a picture: Opus in Ogg."""
    made = io.BytesIO()
    with av.open(made, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="mono")
        frame = av.AudioFrame(format="flt", layout="mono", samples=960)
        frame.sample_rate = 48_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return made.getvalue()
