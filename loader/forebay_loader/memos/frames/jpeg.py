"""Frames as JPEG and back, by FFmpeg's own coder: it needs no other package, and no file's header is believed."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import av
import numpy
from av.error import FFmpegError
from av.video.reformatter import VideoReformatter

from forebay_loader.videos.decode.frames import packet_of
from forebay_loader.videos.decode.pictures import Pictures

__all__ = ["JpegReader", "JpegWriter", "qscale_of"]

_FULL = "yuvj420p"


def qscale_of(quality: int) -> int:
    """FFmpeg's scale, 1 (best) to 31, for a quality of 1 to 100 as libjpeg counts it."""
    percent = 200 - 2 * quality if quality >= 50 else 5000 // quality
    return max(1, min(31, round(percent / 10)))


class JpegWriter:
    """Of frames of one size, for one thread."""

    def __init__(self, quality: int) -> None:
        self._qscale = str(qscale_of(quality))
        self._context: Any = None
        self._reformatter: Any = VideoReformatter()

    def written(self, pixels: Any) -> bytes:
        """``pixels``: height x width x 3 uint8 (RGB)."""
        height, width = pixels.shape[:2]
        if self._context is None:
            context: Any = av.CodecContext.create("mjpeg", "w")
            context.width, context.height, context.pix_fmt = width, height, _FULL
            context.framerate = 25
            context.thread_count = 1
            context.options = {"qmin": self._qscale, "qmax": self._qscale}
            self._context = context
        frame = av.VideoFrame.from_ndarray(numpy.ascontiguousarray(pixels), format="rgb24")
        frame = self._reformatter.reformat(frame, format=_FULL, threads=1)
        return b"".join(bytes(packet) for packet in self._context.encode(frame))


class JpegReader:
    """For one thread: a decoder and a converter that go on from frame to frame."""

    def __init__(self) -> None:
        self._context: Any = None
        self._pictures: Dict[Tuple[int, int], Pictures] = {}

    def into(self, data: Any, room: Any) -> None:
        """Decode ``data`` into ``room``, height x width x 3 uint8. Raises ``ValueError`` for what is no such picture."""
        if self._context is None:
            self._context = av.CodecContext.create("mjpeg", "r")
            self._context.thread_count = 1
        height, width = room.shape[:2]
        try:
            found = self._context.decode(packet_of(bytes(data), 0, 0))
        except FFmpegError as error:
            raise ValueError(f"no JPEG: {error.strerror}") from None
        if len(found) != 1 or (found[0].height, found[0].width) != (height, width):
            raise ValueError(f"no JPEG of {width} x {height} pixels")
        self._pictures.setdefault((height, width), Pictures(width, height)).into(found[0], room)
