"""What changed from each frame to the next."""

from __future__ import annotations

from typing import Any

import numpy

__all__ = ["frame_difference"]


def frame_difference(frames: Any) -> Any:
    """Of frames 1 to T - 1 each less the one before it, pixel by pixel.

    - ``frames``: T x H x W x C uint8, numpy or torch; any shape behind T.

    Returns T - 1 x H x W x C int16, -255 to 255, of the same kind; for T of 0 or 1 none. Raises ``TypeError`` for frames that are not
    uint8: of others the difference may have no room.
    """
    if str(frames.dtype).rpartition(".")[2] != "uint8" or frames.ndim < 1:
        raise TypeError(f"frames are T x H x W x C uint8; got {frames.dtype}, shape {tuple(frames.shape)}")
    if isinstance(frames, numpy.ndarray):
        return numpy.subtract(frames[1:], frames[:-1], dtype=numpy.int16)
    wide = frames.short()
    return wide[1:] - wide[:-1]
