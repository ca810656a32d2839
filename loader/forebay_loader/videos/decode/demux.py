"""Containers without a table of packets that can be trusted: WebM and Matroska, MPEG-TS, AVI and whatever else FFmpeg's demuxers know.

All of the clip's bytes are gone through once. The pictures' packets become a table as an MP4 has it, so that only the wanted groups are
decoded. The clip begins with its first picture: MPEG-TS starts its clock anywhere, and a recording may begin within a group whose first
pictures nothing can decode, which are none then.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, List, Optional, Tuple

import av
import numpy
from av.error import FFmpegError
from av.sidedata.sidedata import Type
from av.stream import Disposition

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.clip_end import check_end, early_end
from forebay_loader.videos.decode.frames import MOST_DELAYED, Buffer, ClipTimer, ReadPart, packet_of, tell
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.sample_entry import ENCRYPTED
from forebay_loader.videos.mp4.sample_table import starts_of
from forebay_loader.videos.mp4.track import Coded, Track, leading, trusted_keys
from forebay_loader.videos.mp4.trak import turn_of

__all__ = ["ClipFile", "Demuxed", "PacketStore", "demuxed", "opened"]

# Which say when a frame is shown; and which say when one is decoded: Matroska where it holds what AVI held (VFW). Of Ogg's OGM, and of
# pictures without a container, FFmpeg's times are good for nothing: their frames are counted.
_MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
_TIMED = frozenset({"matroska,webm", "mpegts", "mpeg", "flv", "ivf", "nut", "wtv", _MP4})
_TIMED_DECODING = frozenset({"matroska,webm", "asf", "avi"})
_HEAD_BYTES = 64  # of what stands before a packet where its container says it begins: block heads, chunk heads
_FIRST_PACKETS = 64  # in which a first picture comes, to be asked how it is turned


@dataclass(frozen=True)
class Demuxed:
    """What is known of the clip, its video track (None without), what reads that track's packets; when the clip begins, in seconds of its
    container's clock; of sound that cannot be read the reason, "" where it can or there is none; and why it may be a part of a clip."""

    info: ClipInfo
    video: Optional[Track]
    read: ReadPart
    origin_s: float
    sound_fault: str
    early_end: str = ""


def demuxed(data: Buffer, timer: ClipTimer) -> Demuxed:
    """The clip ``data``. Raises ``UnsupportedVideo``, ``CorruptVideo``, ``VideoTimeout``."""
    check_end(data)
    try:
        with opened(data) as container:
            streams, pictures = container.streams, _pictures(container)
            rate_hz, fault = _sound(streams.audio[0]) if streams.audio else (0, "")
            if not pictures:
                heard_s = (container.duration or 0) / av.time_base
                origin_s = _seconds(streams.audio[0]) if streams.audio else 0.0
                return Demuxed(ClipInfo(0, array("d"), heard_s, 0, 0, audio_rate_hz=rate_hz), None, PacketStore(data), origin_s, fault)
            stream = pictures[0]
            if stream.codec_context is None:
                raise UnsupportedVideo("no decoder for its pictures")
            packets = _Packets(stream, container.format.name, data, timer)
            end_s = 0.0
            for packet in container.demux():
                timer.check()
                if packet.stream_index == stream.index:
                    packets.take(packet)
                elif packet.has_sidedata("encryption_info") and streams.audio and packet.stream_index == streams.audio[0].index:
                    rate_hz, fault = 0, "encrypted"
                if packet.dts is not None:
                    end_s = max(end_s, float((packet.dts + (packet.duration or 0)) * packet.time_base))
            track, origin_s = packets.track()
    except FFmpegError as error:
        raise UnsupportedVideo(f"no container that is read here: {error.strerror}") from None
    info = ClipInfo(
        track.frames, array("d", track.times_s.tolist()), track.end_s, track.width, track.height, track.rotation_deg,
        tuple(track.keyframes().tolist()), rate_hz, mirrored=track.mirrored,
    )  # fmt: skip
    return Demuxed(info, track, packets.store, origin_s, fault, early_end(data, end_s))


def opened(data: Buffer) -> Any:
    """The container ``data``. Its texts may be of any encoding: nobody here reads them. It opens nothing else: a list of files (ffconcat)
    would name files of this machine."""
    return av.open(ClipFile(data), metadata_errors="replace", options={"protocol_whitelist": "none"})


def _pictures(container: Any) -> List[Any]:
    """Its streams of pictures, without that on the cover of its sound."""
    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


def _sound(stream: Any) -> Tuple[int, str]:
    """(samples a second, 0 where it cannot be read, and why)."""
    context = stream.codec_context
    if context is None:
        return 0, "no decoder for its sound"
    with suppress(UnicodeDecodeError):  # PyAV reads a tag of ASCII alone, as those of MP4s are
        if context.codec_tag.encode() in ENCRYPTED:
            return 0, f"encrypted ({context.codec_tag})"
    return context.sample_rate, "" if context.sample_rate else "its sound has no rate"


def _seconds(stream: Any) -> float:
    """When it begins on its container's clock."""
    return max(0.0, float((stream.start_time or 0) * stream.time_base))


def _shown_times(container: str, context: Any) -> bool:
    """Whether the packets' times are those at which their pictures are shown: in some containers only of pictures that lie in that order.

    That H.264 mentions no reordering means nothing: its header may keep silent about it.
    """
    if not context.codec.reorder or (context.name != "h264" and not context.reorder_depth):
        return True
    return container in _TIMED and not (container in _TIMED_DECODING and context.codec_tag.strip("\0"))


def _coded(context: Any) -> Coded:
    return Coded(context.name, context.codec_tag.encode("latin-1"), context.bits_per_coded_sample)


class _Packets:
    """The packets of a stream of pictures in ``container``, as they come."""

    def __init__(self, stream: Any, container: str, data: Buffer, timer: ClipTimer) -> None:
        self.store = PacketStore(data)
        self._stream = stream
        self._timed = _shown_times(container, stream.codec_context)
        self._container = container
        self._timer = timer
        self._rows: List[Tuple[Optional[int], Optional[int], int, bool]] = []  # pts, dts, duration, whether decoding can begin there
        self._hidden: List[int] = []  # decoded for others, and shown nowhere
        self._turn: Optional[Tuple[int, bool]] = None  # as ``turn_of`` gives it

    def take(self, packet: Any) -> None:
        """One without bytes ends the stream."""
        if self._turn is None:
            self._turn = self._turned(packet)
        if packet.size:
            self.store.add(packet)
            if packet.has_sidedata("encryption_info"):
                raise UnsupportedVideo("encrypted")
            if self._container == _MP4 and packet.is_corrupt:
                raise CorruptVideo(f"cut short: packet {len(self._rows)} ends beyond the file")
            if packet.has_sidedata("palette") or packet.has_sidedata("new_extradata"):
                raise UnsupportedVideo("its pictures want more than is in their packets: a table of colours, or another description")
            # FFmpeg shows what lies before the edit list of a fragmented MP4: at times below 0.
            if packet.is_discard or (self._container == _MP4 and packet.pts is not None and packet.pts < 0):
                self._hidden.append(len(self._rows))
            self._rows.append((packet.pts, packet.dts, packet.duration or 0, packet.is_keyframe))

    def track(self) -> Tuple[Track, float]:
        """The track, and when its first picture is shown, in seconds. Raises ``CorruptVideo`` without any."""
        if not len(self.store):
            raise CorruptVideo("there is no picture in it")
        times, durations, tick, order = self._times()
        sizes = numpy.array(self.store.sizes(), numpy.int64)
        key = trusted_keys(self._stream.codec_context.name, numpy.array([row[3] for row in self._rows], bool))
        leads = leading(times, key)
        order = self._decodable(order, key, leads)
        order = order[~numpy.isin(order, numpy.array(self._hidden, numpy.int64))]
        if not len(order):
            raise CorruptVideo("no picture in it can be decoded")
        begin = int(times[order[0]]) if self._timed else 0
        context = self._stream.codec_context
        rotation_deg, mirrored = self._turn or (0, False)
        track = Track(
            coded=_coded(context), decoder=context.name, extradata=context.extradata or b"", timescale=tick.denominator,
            width=context.width, height=context.height,
            rotation_deg=rotation_deg, mirrored=mirrored, rate_hz=0, channels=0, offsets=starts_of(sizes), sizes=sizes,
            dts=numpy.array([row[1] or 0 for row in self._rows], numpy.int64), pts=(times - begin) * tick.numerator,
            durations=durations * tick.numerator, key=key.tobytes(), leading=leads.tobytes(), order=order,
        )  # fmt: skip
        return track, float(begin * tick) if self._timed else _seconds(self._stream)

    def _times(self) -> Tuple[Any, Any, Fraction, Any]:
        """(presentation times, durations, the tick of both in seconds, the packet of each frame)."""
        times = [row[0] for row in self._rows]
        decoded_at = [row[1] for row in self._rows]
        keys = numpy.array([row[3] for row in self._rows], bool)
        durations, tick = numpy.array([row[2] for row in self._rows], numpy.int64), Fraction(self._stream.time_base)
        self._timed = self._timed and None not in times
        if self._timed:
            pts = numpy.array(times, numpy.int64)
            shown = numpy.delete(numpy.arange(len(times)), self._hidden)  # what edits leave out has times of its own
            _check_clock(pts[shown], keys[shown], shown)
            return pts, durations, tick, _in_pieces(pts, keys, shown) if self._hidden else numpy.argsort(pts, kind="stable")
        order = numpy.array(self._shown(range(len(times))), numpy.int64)
        pts = numpy.full(len(times), -1, numpy.int64)
        if self._container in _TIMED_DECODING and None not in decoded_at and len(order):
            dts = numpy.array(decoded_at, numpy.int64)
            _check_clock(dts, keys, numpy.arange(len(dts)))
            pts[order] = shown_at(dts, order, self._stream.codec_context.reorder_depth)
            if self._container == "avi":  # its sound cannot wait for the first picture: both are of one time
                pts[order] -= pts[order[0]] - dts[order].min()
            durations[order[:-1]] = numpy.diff(pts[order])
            durations[order[-1:]] = max(int(durations[order[-1]]), int(numpy.median(durations[order])))  # in ASF the last has none
            self._timed = True
            return pts, durations, tick, order
        pts[order] = numpy.arange(len(order))
        return pts, numpy.ones(len(times), numpy.int64), 1 / Fraction(self._stream.average_rate or 25), order

    def _decodable(self, order: Any, key: Any, leads: Any) -> Any:
        """``order`` without what was cut off from the pictures that it is made of: what comes before the first keyframe, or leads it. Which
        of these stand alone only a decoder knows."""
        keys = numpy.flatnonzero(key)
        first, second = (*keys[:2].tolist(), len(key), len(key))[:2]
        doubtful = [sample for sample in range(second) if sample < first or leads[sample]]
        if not self._timed or not doubtful:
            return order
        lost = set(doubtful) - set(self._shown(range(doubtful[-1] + 1), whole=True))
        return order[~numpy.isin(order, numpy.array(sorted(lost), numpy.int64))]

    def _shown(self, samples: range, whole: bool = False) -> List[int]:
        """Those of ``samples`` that give a picture, a ``whole`` one, in the order in which they are shown.

        Raises ``CorruptVideo`` where one cannot be decoded, which ``whole`` passes over.
        """
        there = self._stream.codec_context
        context = av.CodecContext.create(there.name, "r")
        context.extradata = there.extradata
        tell(context, _coded(there), there.width, there.height)
        context.thread_count = 1
        if there.name == "h264":
            context.reorder_depth = MOST_DELAYED
        shown: List[int] = []
        for number in (*samples, None):
            self._timer.check()
            try:
                frames = context.decode(None if number is None else packet_of(self.store.part(number), number, number))
            except FFmpegError as error:
                if whole:
                    continue
                raise CorruptVideo(f"its decoder stops at packet {number}: {error.strerror}") from None
            shown += [frame.pts for frame in frames if frame.pts is not None and not (whole and frame.is_corrupt)]
        return shown

    def _turned(self, packet: Any) -> Optional[Tuple[int, bool]]:
        """How pictures are shown upright, by the first that comes; None while none has."""
        try:
            frame = next(iter(packet.decode()), None)
        except FFmpegError:
            frame = None
        if frame is not None:
            matrix = frame.side_data.get(Type.DISPLAYMATRIX)
            a, b, _, c, d = (0, 0, 0, 0, 0) if matrix is None else struct.unpack("=5i", bytes(matrix)[:20])
            return turn_of(a, b, c, d)
        return (0, False) if len(self.store) >= _FIRST_PACKETS else None


def _check_clock(pts: Any, key: Any, packets: Any) -> None:
    """Raise ``UnsupportedVideo`` where a keyframe is shown before the one before it: of two clips that ``cat`` joined, as transport streams
    can be, two pictures have one time, and would come out mixed."""
    keys = numpy.flatnonzero(key)
    steps = numpy.diff(pts[keys])
    back = numpy.flatnonzero((steps < 0) | (steps == 0) & (numpy.diff(keys) > 1))
    if len(back):
        raise UnsupportedVideo(f"its clock goes back at packet {packets[keys[back[0] + 1]]}: clips that were joined without new times")


def _in_pieces(pts: Any, key: Any, shown: Any) -> Any:
    """The packets in the order in which FFmpeg shows them: piece for piece of an edit list, each by its times. These may reach a picture
    into the next piece, whose first picture then gets the same time in ``pts``. A piece begins with a keyframe whose clock goes back.
    """
    before = numpy.full(len(pts), pts.min(), numpy.int64)
    before[shown] = pts[shown]
    before = numpy.concatenate([before[:1], numpy.maximum.accumulate(before)[:-1]])
    order = numpy.lexsort((pts, numpy.cumsum(key & (pts < before))))
    seen = order[numpy.isin(order, shown)]
    pts[seen] = numpy.maximum.accumulate(pts[seen])
    return order


def shown_at(dts: Any, order: Any, depth: int) -> Any:
    """When each of the packets ``order``, as they are shown, is shown, by when each is decoded: as much later as pictures are held back,
    ``depth`` at least; the last, whose times nobody wrote, go on evenly. What does not ascend are times of showing themselves."""
    given = numpy.sort(order)
    stored = dts[given]
    if (numpy.diff(stored) < 0).any():
        return numpy.sort(stored)
    held = min(max(depth, int((numpy.searchsorted(given, order) - numpy.arange(len(order))).max())), len(order) - 1)
    step = max(1, round(int(stored[-1] - stored[0]) / max(1, len(stored) - 1)))
    return numpy.concatenate([stored[held:], stored[-1] + step * (1 + numpy.arange(held))])


class ClipFile:
    """A clip in memory as PyAV reads files. ``io.BytesIO`` would copy all of a view."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        part = bytes(self._data[self._at :] if size < 0 else self._data[self._at : self._at + size])
        self._at += len(part)
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def tell(self) -> int:
        return self._at


class PacketStore:
    """A ``ReadPart`` over packets of one stream, which lie one after the other from byte 0. Where one lies in one piece in the clip it is a
    view of it, and no copy."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._parts: List[Buffer] = []
        self._ends: List[int] = [0]

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, packet: Any) -> None:
        copy = bytes(packet)
        begin = packet.pos if packet.pos is not None and packet.pos >= 0 else len(self._data)
        at = bytes(self._data[begin : begin + len(copy) + _HEAD_BYTES]).find(copy)
        self._parts.append(copy if at < 0 else self._data[begin + at : begin + at + len(copy)])
        self._ends.append(self._ends[-1] + len(copy))

    def sizes(self) -> List[int]:
        return [len(part) for part in self._parts]

    def part(self, number: int) -> Buffer:
        return self._parts[number]

    def __call__(self, at: int, size: int) -> Buffer:
        place = bisect.bisect_right(self._ends, at) - 1
        end = min(at + size, self._ends[-1])
        if place >= len(self._parts) or end <= at:
            return b""
        if end <= self._ends[place + 1]:
            return memoryview(self._parts[place])[at - self._ends[place] : end - self._ends[place]]
        past = bisect.bisect_left(self._ends, end)
        return b"".join(self._parts[place:past])[at - self._ends[place] : end - self._ends[place]]
