"""From a decoder's frame to an array of the wanted size, upright: libswscale does size and colours in one pass, in the thread that asks.

Pixels are those of ``frame.to_ndarray(format="rgb24")``. High dynamic range comes out in 8 bits with the matrix of its colour space and
no tone mapping: a curve that is applied unasked would be ours, and not what other readers of the same clip give.
"""

from __future__ import annotations

from typing import Any, Tuple

import numpy
from av.video.reformatter import VideoReformatter

from forebay_loader.videos.decode.frame_size import Size, sized
from forebay_loader.videos.errors import UnsupportedVideo

__all__ = ["Pictures"]

CHANNELS = 3
MOST_PIXELS = 1 << 27  # of one frame: four times 8k


class Pictures:
    """Makes ``height x width x 3`` uint8 (RGB) of frames of one track.

    ``width``, ``height`` are the track's, coded, in pixels; ``rotation_deg`` is the clockwise turn that shows it upright, and ``mirrored``
    whether it is mirrored top to bottom before that turn. ``size`` is of the upright picture. A track's frames may change their size on the
    way: all are brought to the one size. Raises ``UnsupportedVideo`` for a size that is none, ``into`` for pixels that cannot be converted.
    """

    def __init__(self, width: int, height: int, rotation_deg: int = 0, size: Size = None, mirrored: bool = False) -> None:
        self._quarters = rotation_deg // 90 % 4
        self._mirrored = mirrored
        self._lies = self._quarters % 2 == 1
        self.height, self.width = sized(*((width, height) if self._lies else (height, width)), size)
        if min(width, height) <= 0 or max(width * height, self.width * self.height) > MOST_PIXELS:
            raise UnsupportedVideo(f"its frames have {width} x {height} pixels, as its header says")
        self._reformatter: Any = VideoReformatter()

    @property
    def shape(self) -> Tuple[int, int, int]:
        """Height, width, channels."""
        return self.height, self.width, CHANNELS

    def into(self, frame: Any, room: Any) -> None:
        """Write ``frame`` into ``room``, an array of ``shape``."""
        pixels = self._as_coded(frame)[:: -1 if self._mirrored else 1]
        room[:] = numpy.rot90(pixels, -self._quarters) if self._quarters else pixels

    def _as_coded(self, frame: Any) -> Any:
        height, width = (self.width, self.height) if self._lies else (self.height, self.width)
        try:
            # One thread: it would take one for each processor, in each worker.
            found = self._reformatter.reformat(frame, width=width, height=height, format="rgb24", threads=1)
        except (OSError, ValueError) as error:
            raise UnsupportedVideo(f"pixels of the format {frame.format.name} cannot be converted: {error}") from None
        plane = found.planes[0]
        rows = numpy.frombuffer(plane, numpy.uint8)[: plane.line_size * height].reshape(height, plane.line_size)
        return rows[:, : width * CHANNELS].reshape(height, width, CHANNELS)
