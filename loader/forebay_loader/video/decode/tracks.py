"""The tracks of a clip, whatever its container: an MP4 by its boxes, others through PyAV's demuxer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional, Tuple

from forebay_loader.video.clip_info import ClipInfo
from forebay_loader.video.decode.byte_spans import SpanReader
from forebay_loader.video.decode.clip_timer import ClipTimer
from forebay_loader.video.decode.demux import demuxed, demuxed_sound
from forebay_loader.video.decode.frames import ReadPart
from forebay_loader.video.decode.sound import sound_between, sound_group
from forebay_loader.video.errors import CorruptVideo
from forebay_loader.video.mp4.index import FIRST_KINDS, read_index
from forebay_loader.video.mp4.track import Track

__all__ = ["GAP_BYTES", "ClipTracks", "tracks_of"]

GAP_BYTES = 2 << 10  # between two parts that are wanted, mostly a packet of sound: they cost less than another request

Sound = Callable[[float, float, ClipTimer], Tuple[Any, int]]


@dataclass(frozen=True)
class ClipTracks:
    """The first video track, None without one, and what reads its packets; what gives sound between two seconds, if there is any."""

    info: ClipInfo
    video: Optional[Track]
    read: ReadPart
    sound: Optional[Sound]


def tracks_of(read: ReadPart, length: int, name: str) -> ClipTracks:
    """The tracks of a clip of ``length`` bytes. Raises ``CorruptVideo``, ``UnsupportedVideo``, and what ``read`` raises."""
    if not length:
        raise CorruptVideo("it has no byte")
    if bytes(read(4, 4)) in FIRST_KINDS:
        index = read_index(lambda at, size: bytes(read(at, size)), length, name)
        sound = partial(_sound, index.audio, read) if index.audio is not None else None
        return ClipTracks(index.to_info(), index.video, read, sound)
    data = bytes(read(0, length))
    info, video, store = demuxed(data)
    return ClipTracks(info, video, store, partial(demuxed_sound, data) if info.audio_rate_hz else None)


def _sound(track: Track, read: ReadPart, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    group = sound_group(track, begin_s, end_s)
    spans = track.byte_spans([group], GAP_BYTES) if group.first < group.end else []
    return sound_between(track, SpanReader(read, spans), begin_s, end_s, timer)
