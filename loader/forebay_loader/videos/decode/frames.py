"""Frames of one track by number: the packets of the groups that hold them go to a decoder in order, and nothing else does.

A packet goes in under the number of its frame as its time, and the frame comes out under it, whatever order the decoder gives frames in and
whatever times the container has. At the end of each group the decoder is emptied, so it needs no packet behind the last that is wanted.

Of H.264, frames that no other needs and nobody wants are not decoded (its decoder sees that by ``nal_ref_idc``). Not of HEVC: there "no
reference" holds within one temporal layer, and a higher one may need the frame after all. Nor where frames are not evenly spaced in time:
some may have been left out, and what a decoder makes up for them depends on all that it decoded before.

Damage is what a decoder says of any frame of a group, wanted or not: the wanted ones may be made of it. A decoder does not notice all: HEVC
has no redundancy but hashes that few encoders write, and of VP9 libvpx notices most where FFmpeg's own notices nothing.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Set, Tuple, Union

import av
from av.error import FFmpegError

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoTimeout
from forebay_loader.videos.mp4.track import Coded, DecodeGroup, Track

__all__ = ["MOST_DELAYED", "Buffer", "ClipTimer", "ReadPart", "decoded", "decoder_of", "packet_of", "tell"]


class ClipTimer:
    """The time that is left for one clip. ``limit_s``: None is for ever; ``clip`` and ``shard`` name it in the error."""

    def __init__(self, limit_s: Optional[float], clip: str, shard: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clip, self._shard = clip, shard
        self._clock = clock
        self._began_s = clock()

    @property
    def left_s(self) -> Optional[float]:
        """Seconds until the time is over, below 0 once it is; None is for ever."""
        return None if self._limit_s is None else self._began_s + self._limit_s - self._clock()

    def check(self) -> None:
        """Raise ``VideoTimeout`` once the time is over."""
        if self._limit_s is not None and self._clock() - self._began_s > self._limit_s:
            raise VideoTimeout(f"took longer than {self._limit_s:g} s (time_limit_s)", self._clip, self._shard)


Buffer = Union[bytes, memoryview]
ReadPart = Callable[[int, int], Buffer]  # (offset, size): these bytes, fewer only at the end

# FFmpeg's own av1 only steers hardware; its own vp9 does not see that a frame's bits are used up, and gives wrong pixels of a damaged one.
_SOFTWARE = {"av1": "libdav1d", "vp9": "libvpx-vp9"}
# What a decoder is told to be strict about where it is silent else: hashes in the stream, and a scan that ends in an error.
_STRICT = {"hevc": "crccheck+explode", "mjpeg": "explode"}
_LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_MOST_PIXELS = str(1 << 27)
MOST_DELAYED = 16  # frames that H.264 may hold back: its decoder guesses fewer, and drops those that then come too late


def decoded(track: Track, groups: Sequence[DecodeGroup], read: ReadPart, timer: ClipTimer, threads: int = 1) -> Iterator[Tuple[int, Any]]:
    """(number, ``av.VideoFrame``) of every frame that ``groups`` want, group by group, in the order the decoder gives them.

    Raises ``CorruptVideo`` where a frame cannot be decoded, or one of its group only with parts made up: of that group nothing that came
    before may be used. ``VideoTimeout``; ``UnsupportedVideo`` where no decoder is there; and what ``read`` raises.
    """
    context = decoder_of(track, threads)
    skips = context.codec.name == "h264" and track.is_even
    number_of = {sample: number for number, sample in enumerate(track.order.tolist())}
    for group in groups:
        first, wanted = group.first, set(group.frames)
        while wanted:
            for frame in _group(context, track, range(first, group.end), number_of, wanted, skips, read, timer):
                if frame.pts in wanted:
                    wanted.remove(frame.pts)
                    yield frame.pts, frame
            context.flush_buffers()
            # Where pictures are refreshed bit by bit, a "keyframe" is where that begins: the first whole picture comes later.
            earlier = track.key_before(first)
            if wanted and earlier is None:
                others = f" and {len(wanted) - 1} others" if len(wanted) > 1 else ""
                raise CorruptVideo(f"no picture came of frame {min(wanted)}{others}")
            first = first if earlier is None else earlier


def _group(
    context: Any, track: Track, samples: range, number_of: Mapping[int, int], wanted: Set[int], skips: bool,
    read: ReadPart, timer: ClipTimer,
) -> Iterator[Any]:  # fmt: skip
    """The frames that come of ``samples``, whole; ``wanted`` may shrink on the way. Raises ``CorruptVideo`` at the first that is not."""
    if context.codec.name == "h264":
        context.reorder_depth = MOST_DELAYED
    for sample in samples:
        timer.check()
        number = number_of.get(sample, -1 - sample)  # hidden by the edit list: decoded, and no frame
        if skips:
            context.skip_frame = "DEFAULT" if number in wanted else "NONREF"
        data = _part(read, int(track.offsets[sample]), int(track.sizes[sample]), number)
        for frame in _given(context, packet_of(data, number, sample, bool(track.key[sample])), number):
            yield _whole(frame, track, samples.start)
    for frame in _given(context, None, -1):
        yield _whole(frame, track, samples.start)


def decoder_of(track: Track, threads: int = 1) -> Any:
    """A new ``av.CodecContext`` for packets of ``track``. Raises ``UnsupportedVideo``."""
    try:
        preferred = _SOFTWARE.get(track.decoder, track.decoder)
        context: Any = av.CodecContext.create(preferred if preferred in av.codecs_available else track.decoder, "r")
        context.extradata = track.extradata or None
        context.thread_count = threads
        if context.type == "video":
            strict = {"err_detect": _STRICT[context.codec.name]} if context.codec.name in _STRICT else {}
            context.options = {"max_pixels": _MOST_PIXELS, **strict}
            tell(context, track.coded, track.width, track.height)
        elif track.rate_hz and track.channels in _LAYOUTS:  # uncompressed sound says neither itself
            context.sample_rate, context.layout = track.rate_hz, _LAYOUTS[track.channels]
    except (FFmpegError, ValueError, TypeError):
        raise UnsupportedVideo(f"no decoder for {track.codec!r}") from None
    return context


def tell(context: Any, coded: Coded, width: int, height: int) -> None:
    """Say to the decoder ``context`` what the container says of its pictures: some have no other word of it."""
    context.width, context.height = width, height
    if coded.tag.isascii() and len(coded.tag.strip(b"\0")) == 4:
        context.codec_tag = coded.tag.decode()
    if coded.depth:
        context.bits_per_coded_sample = coded.depth


def packet_of(data: Buffer, pts: int, dts: int, key: bool = True) -> Any:
    """A packet with a copy of ``data``: decoders read a few bytes further than its end, which only a packet's own memory has. ``key`` is
    whether decoding can begin there: PNG's decoder adds to the picture before it what is none."""
    packet: Any = av.Packet(len(data))
    packet.update(data)
    packet.pts, packet.dts, packet.is_keyframe = pts, dts, key
    return packet


def _part(read: ReadPart, offset: int, size: int, number: int) -> Buffer:
    data = read(offset, size)
    if len(data) < size:
        raise CorruptVideo(f"ends within frame {number}: its {size} bytes lie at byte {offset}")
    COUNTS.add("video_packets")
    return data


def _given(context: Any, packet: Any, number: int) -> Any:
    try:
        return context.decode(packet)
    except FFmpegError as error:
        where = f"frame {number}" if packet is not None else "the end of a group of frames"
        raise CorruptVideo(f"its decoder stops at {where}: {error.strerror}") from None


def _whole(frame: Any, track: Track, first: int) -> Any:
    """``frame``. Raises ``CorruptVideo`` where its decoder made up parts of it; but what is shown before the keyframe ``first`` that it
    follows is made of pictures before that, which were not decoded, and nothing wanted is made of it."""
    if frame.is_corrupt and not track.leads(frame.pts, first):
        raise CorruptVideo(f"{f'frame {frame.pts}' if frame.pts >= 0 else 'a hidden frame'} is damaged: its decoder made up parts of it")
    return frame
