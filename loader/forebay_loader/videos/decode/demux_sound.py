"""Sound of containers that go through PyAV's demuxer: decoded from its begin, because such containers round their times."""

from __future__ import annotations

from typing import Any, Tuple

from av.error import FFmpegError

from forebay_loader.videos.decode.clip_timer import ClipTimer
from forebay_loader.videos.decode.demux import opened
from forebay_loader.videos.decode.frames import Buffer
from forebay_loader.videos.decode.sound_parts import SoundParts
from forebay_loader.videos.errors import CorruptVideo

__all__ = ["demuxed_sound"]


def demuxed_sound(data: Buffer, origin_s: float, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    """(``channels x samples`` float32, samples a second) of the clip ``data`` between two times, in seconds from ``origin_s`` of the
    container's clock; a ``begin_s`` of minus infinity is where its sound begins.

    Raises ``CorruptVideo``, ``UnsupportedVideo``, ``VideoTimeout``.
    """
    try:
        with opened(data) as container:
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            parts = SoundParts(float(stream.time_base), exact=False)
            for frame in container.decode(stream):
                timer.check()
                parts.take(frame, None if frame.pts is None else float(frame.pts * frame.time_base) - origin_s)
                if parts.end_s > end_s:
                    break
    except FFmpegError as error:
        raise CorruptVideo(f"its sound cannot be decoded: {error.strerror}") from None
    return parts.between(begin_s if begin_s == float("-inf") else max(begin_s, 0.0), end_s), parts.rate_hz
