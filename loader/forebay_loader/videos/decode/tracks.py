"""The tracks of a clip, whatever its container: an MP4 by its boxes, others through PyAV's demuxer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional, Sequence, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.byte_spans import SpanReader
from forebay_loader.videos.decode.demux import demuxed
from forebay_loader.videos.decode.frames import Buffer, ClipTimer, ReadPart
from forebay_loader.videos.decode.sound import DemuxedSound, sound_between, sound_group
from forebay_loader.videos.errors import CorruptVideo, LeftToDemuxer, UnsupportedVideo
from forebay_loader.videos.mp4.index import FIRST_KINDS, check_boxes, read_index
from forebay_loader.videos.mp4.track import Track

__all__ = ["GAP_BYTES", "ClipTracks", "tracks_of"]

_COUNTED = "fb.counters()['video_cut'] counts such clips"
GAP_BYTES = 2 << 10  # between two parts that are wanted, mostly a packet of sound: they cost less than another request

Expect = Callable[[Sequence[Tuple[int, int]]], int]
Sound = Callable[[float, float, ClipTimer], Tuple[Any, int]]


def _unheard(spans: Sequence[Tuple[int, int]]) -> int:
    """What is in memory has come already."""
    return 1


@dataclass(frozen=True)
class ClipTracks:
    """The first video track, None without one, and what reads its packets; what is told the spans that are read next, and says how many
    of them to ask for at a time; what gives sound
    between two seconds, if there is any: sound that cannot be read raises ``UnsupportedVideo`` there, and ``info`` knows of none."""

    info: ClipInfo
    video: Optional[Track]
    read: ReadPart
    expect: Expect
    sound: Optional[Sound]


def tracks_of(read: ReadPart, length: int, name: str, timer: ClipTimer, expect: Expect = _unheard) -> ClipTracks:
    """The tracks of a clip of ``length`` bytes, within ``timer``. ``expect`` is told which spans of it are read next, and says
    how many to ask for at a time.

    Raises ``CorruptVideo``, ``UnsupportedVideo``, ``VideoTimeout``, and what ``read`` raises.
    """
    if not length:
        raise CorruptVideo("it has no byte")

    def timed(at: int, size: int) -> Buffer:
        timer.check()
        return read(at, size)

    if bytes(timed(4, 4)) in FIRST_KINDS:
        try:
            index = read_index(lambda at, size: bytes(timed(at, size)), length, name)
            if not index.video.decoder:
                raise LeftToDemuxer(f"no decoder for {index.video.codec!r}")
        except LeftToDemuxer as error:
            return _left(timed(0, length), timer, error, name)
        timer.check()
        sound = partial(_sound, index.audio, read, expect) if index.audio is not None else _refusing(index.audio_fault)
        return ClipTracks(index.to_info(), index.video, read, expect, sound)
    return _demuxed(timed(0, length), timer, name)


def _left(data: Buffer, timer: ClipTimer, why: LeftToDemuxer, name: str) -> ClipTracks:
    """Of an MP4 that its own reader leaves alone; ``why`` is what is told where the demuxer does not read it either."""
    check_boxes(lambda at, size: bytes(data[at : at + size]), len(data))
    try:
        found = _demuxed(data, timer, name)
    except (CorruptVideo, UnsupportedVideo) as error:
        raise UnsupportedVideo(f"{why.what}, and FFmpeg's demuxer says: {error.what}") from error
    COUNTS.add("video_demuxed")
    return found


def _demuxed(data: Buffer, timer: ClipTimer, name: str) -> ClipTracks:
    found = demuxed(data, timer)
    if found.early_end:
        COUNTS.add("video_cut")
        notice_once("video-cut", f"{name or 'a clip in memory'} may have been cut: {found.early_end}; what is there is given ({_COUNTED})")
    heard = DemuxedSound(data, found.origin_s) if found.info.audio_rate_hz else _refusing(found.sound_fault)
    return ClipTracks(found.info, found.video, found.read, _unheard, heard)


def _sound(track: Track, read: ReadPart, expect: Expect, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    group = sound_group(track, begin_s, end_s)
    spans = track.byte_spans([group], GAP_BYTES) if group.first < group.end else []
    with SpanReader(read, spans, expect(spans)) as parts:
        return sound_between(track, parts, begin_s, end_s, timer)


def _refusing(fault: str) -> Optional[Sound]:
    return partial(_refused, fault) if fault else None


def _refused(fault: str, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    raise UnsupportedVideo(f"its sound cannot be read: {fault}")
