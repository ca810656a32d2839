"""Sound of containers that go through PyAV's demuxer: decoded from its begin, because such containers round their times.

Calls that go forwards go on where the last one stopped, so that all of a film's sound, a minute at a time, is decoded once.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

from av.error import FFmpegError

from forebay_loader.videos.decode.clip_timer import ClipTimer
from forebay_loader.videos.decode.demux import opened
from forebay_loader.videos.decode.frames import Buffer
from forebay_loader.videos.decode.sound_parts import SoundParts
from forebay_loader.videos.errors import CorruptVideo

__all__ = ["DemuxedSound"]


class DemuxedSound:
    """The sound of the clip ``data``; times are seconds from ``origin_s`` of its container's clock."""

    def __init__(self, data: Buffer, origin_s: float) -> None:
        self._data, self._origin_s = data, origin_s
        self._parts: Optional[SoundParts] = None
        self._coming: Iterator[Any] = iter(())
        self._told_s = float("-inf")  # up to where the last call asked

    def __call__(self, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
        """(``channels x samples`` float32, samples a second) between two times; a ``begin_s`` of minus infinity is where its sound begins.

        Raises ``CorruptVideo``, ``UnsupportedVideo``, ``VideoTimeout``.
        """
        parts, self._parts = self._parts, None  # what fails on the way begins anew
        try:
            if parts is None or not self._told_s <= begin_s:
                parts = self._begun()
            else:
                parts.forget(begin_s)
            while not parts.end_s > end_s:
                timer.check()
                frame = next(self._coming, None)
                if frame is None:
                    break
                parts.take(frame, None if frame.pts is None else float(frame.pts * frame.time_base) - self._origin_s)
        except FFmpegError as error:
            raise CorruptVideo(f"its sound cannot be decoded: {error.strerror}") from None
        self._parts, self._told_s = parts, end_s
        return parts.between(begin_s if begin_s == float("-inf") else max(begin_s, 0.0), end_s), parts.rate_hz

    def _begun(self) -> SoundParts:
        container = opened(self._data)
        stream = container.streams.audio[0]
        stream.codec_context.thread_count = 1
        self._coming = container.decode(stream)
        return SoundParts(float(stream.time_base), exact=False)
