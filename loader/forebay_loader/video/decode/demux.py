"""Containers without a table of packets that can be trusted: WebM and Matroska, MPEG-TS, AVI and whatever else FFmpeg's demuxers know.

All of the clip's bytes are gone through once. The pictures' packets become a table as an MP4 has it, so that only the wanted groups are
decoded; sound is decoded from its begin, because such containers round its times.
"""

from __future__ import annotations

import io
from array import array
from fractions import Fraction
from functools import partial
from typing import Any, List, Optional, Tuple

import av
import numpy
from av.error import FFmpegError

from forebay_loader.video.clip_info import ClipInfo
from forebay_loader.video.decode.clip_timer import ClipTimer
from forebay_loader.video.decode.frames import ReadPart, packet_of
from forebay_loader.video.decode.sound import cut, floats
from forebay_loader.video.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.video.mp4.chunks import starts_of
from forebay_loader.video.mp4.track import Track

__all__ = ["demuxed", "demuxed_sound"]

_TIMED = frozenset({"matroska,webm", "mpegts", "mpeg", "ogg", "flv", "asf", "ivf", "nut"})  # which say when a frame is shown; AVI does not


def demuxed(data: bytes) -> Tuple[ClipInfo, Optional[Track], ReadPart]:
    """What is known of the clip ``data``, its video track (None without), and what reads that track's packets.

    Raises ``UnsupportedVideo``, ``CorruptVideo``.
    """
    try:
        with _opened(data) as container:
            streams = container.streams
            rate_hz = streams.audio[0].codec_context.sample_rate if streams.audio else 0
            if not streams.video:
                heard_s = (container.duration or 0) / av.time_base
                return ClipInfo(0, array("d"), heard_s, 0, 0, audio_rate_hz=rate_hz), None, partial(_part, data)
            packets = _Packets(streams.video[0], container.format.name in _TIMED)
            for packet in container.demux(streams.video[0]):
                packets.take(packet)
            track = packets.track()
    except FFmpegError as error:
        raise UnsupportedVideo(f"no container that is read here: {error.strerror}") from None
    store = b"".join(packets.parts)
    keys = tuple(track.keyframes().tolist())
    info = ClipInfo(
        track.frames, array("d", track.times_s.tolist()), track.end_s, track.width, track.height, audio_rate_hz=rate_hz, keyframes=keys
    )
    return info, track, partial(_part, store)


def _opened(data: bytes) -> Any:
    return av.open(io.BytesIO(data))


def _part(store: bytes, at: int, size: int) -> bytes:
    return store[at : at + size]


def demuxed_sound(data: bytes, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    """(``channels x samples`` float32, samples a second) of the clip ``data`` between two times, in seconds.

    Raises ``CorruptVideo``, ``VideoTimeout``.
    """
    parts: List[Tuple[int, Any]] = []
    rate_hz, place = 0, None
    try:
        with _opened(data) as container:
            origin_s = _origin_s(container)
            container.streams.audio[0].codec_context.thread_count = 1
            for frame in container.decode(audio=0):
                timer.check()
                rate_hz = frame.sample_rate
                if place is None:
                    place = round((float((frame.pts or 0) * frame.time_base) - origin_s) * rate_hz)
                parts.append((place, floats(frame)))
                place += frame.samples
                if place > end_s * rate_hz:
                    break
    except FFmpegError as error:
        raise CorruptVideo(f"its sound cannot be decoded: {error.strerror}") from None
    if not parts:
        return numpy.zeros((0, 0), numpy.float32), 0
    return cut(parts, round(max(begin_s, 0.0) * rate_hz), round(end_s * rate_hz)), rate_hz


def _origin_s(container: Any) -> float:
    """When the clip begins on its container's clock: with its first picture; MPEG-TS starts anywhere."""
    first = next((stream for stream in (*container.streams.video, *container.streams.audio)), None)
    return max(0.0, float((first.start_time or 0) * first.time_base)) if first is not None else 0.0


class _Packets:
    """The packets of a stream of pictures, as they come. ``timed``: the container says when each is shown."""

    def __init__(self, stream: Any, timed: bool) -> None:
        self.parts: List[bytes] = []
        self._stream = stream
        self._timed = timed or not stream.codec_context.reorder_depth
        self._rows: List[Tuple[Optional[int], int, int, bool]] = []  # pts, dts, duration, whether decoding can begin there

    def take(self, packet: Any) -> None:
        """One without bytes ends the stream."""
        if packet.size:
            self.parts.append(bytes(packet))
            self._rows.append((packet.pts, packet.dts or 0, packet.duration or 0, packet.is_keyframe))

    def track(self) -> Track:
        """They lie one after the other from byte 0. Raises ``CorruptVideo`` without any."""
        if not self.parts:
            raise CorruptVideo("there is no picture in it")
        pts, durations, tick, order = self._times()
        context = self._stream.codec_context
        sizes = numpy.array([len(part) for part in self.parts], numpy.int64)
        key = numpy.array([row[3] for row in self._rows], bool)
        return Track(
            codec=context.name, decoder=context.name, extradata=context.extradata or b"", timescale=tick.denominator, width=context.width,
            height=context.height, rotation_deg=0, rate_hz=0, channels=0, offsets=starts_of(sizes), sizes=sizes,
            dts=numpy.array([row[1] for row in self._rows], numpy.int64), pts=pts * tick.numerator, durations=durations * tick.numerator,
            key=key.tobytes(), leading=leading(pts, key).tobytes(), order=order,
        )  # fmt: skip

    def _times(self) -> Tuple[Any, Any, Fraction, Any]:
        """(presentation times, durations, the tick of both in seconds, the packet of each frame), the times from 0."""
        times = [row[0] for row in self._rows]
        if self._timed and None not in times:
            pts = numpy.array(times, numpy.int64)
            durations = numpy.array([row[2] for row in self._rows], numpy.int64)
            return pts - max(int(pts.min()), 0), durations, Fraction(self._stream.time_base), numpy.argsort(pts, kind="stable")
        order = numpy.array(self._shown(), numpy.int64)
        pts = numpy.full(len(times), -1, numpy.int64)
        pts[order] = numpy.arange(len(order))
        return pts, numpy.ones(len(times), numpy.int64), 1 / Fraction(self._stream.average_rate or 25), order

    def _shown(self) -> List[int]:
        """The packets in the order in which they are shown. Only a decoder knows, so all is decoded once; what cannot be is no frame."""
        context = av.CodecContext.create(self._stream.codec_context.name, "r")
        context.extradata = self._stream.codec_context.extradata
        context.thread_count = 1
        shown: List[int] = []
        for number, part in (*enumerate(self.parts), (0, None)):
            frames = context.decode(None if part is None else packet_of(part, number, number))
            shown += [frame.pts for frame in frames if frame.pts is not None]
        return shown


def leading(pts: Any, key: Any) -> Any:
    """Which packets are shown before the keyframe that they follow."""
    number = numpy.cumsum(key) - 1
    return (number >= 0) & (pts < pts[numpy.append(numpy.flatnonzero(key), 0)[number]])
