"""Frames of one track by number: the packets of the groups that hold them go to a decoder in order, and nothing else does.

A packet goes in under the number of its frame as its time, and the frame comes out under it, whatever order the decoder gives frames in and
whatever times the container has. At the end of each group the decoder is emptied, so it needs no packet behind the last that is wanted.

Of H.264, frames that no other needs and nobody wants are not decoded (its decoder sees that by ``nal_ref_idc``). Not of HEVC: there "no
reference" holds within one temporal layer, and a higher one may need the frame after all.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence, Tuple, Union

import av
from av.error import FFmpegError

from forebay_loader.base.counters import COUNTS
from forebay_loader.video.decode.clip_timer import ClipTimer
from forebay_loader.video.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.video.mp4.track import DecodeGroup, Track

__all__ = ["Buffer", "ReadPart", "decoded", "decoder_of", "packet_of"]

Buffer = Union[bytes, memoryview]
ReadPart = Callable[[int, int], Buffer]  # (offset, size): these bytes, fewer only at the end

_SOFTWARE = {"av1": "libdav1d"}  # FFmpeg's own of that name only steers hardware
_LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
_MOST_PIXELS = str(1 << 27)
_MOST_DELAYED = 16  # frames that H.264 may hold back: its decoder guesses fewer, and drops those that then come too late


def decoded(track: Track, groups: Sequence[DecodeGroup], read: ReadPart, timer: ClipTimer, threads: int = 1) -> Iterator[Tuple[int, Any]]:
    """(number, ``av.VideoFrame``) of every frame that ``groups`` want, group by group, in the order the decoder gives them.

    Raises ``CorruptVideo`` where a frame cannot be decoded, or only with parts made up; ``VideoTimeout``; ``UnsupportedVideo`` where no
    decoder is there; and what ``read`` raises.
    """
    context = decoder_of(track, threads)
    number_of = {sample: number for number, sample in enumerate(track.order.tolist())}
    skips = context.codec.name == "h264"
    for group in groups:
        wanted = set(group.frames)
        if skips:
            context.reorder_depth = _MOST_DELAYED
        places = zip(track.offsets[group.first : group.end].tolist(), track.sizes[group.first : group.end].tolist())  # noqa: B905
        for sample, (offset, size) in enumerate(places, group.first):
            timer.check()
            number = number_of.get(sample, -1 - sample)  # hidden by the edit list: decoded, and no frame
            if skips:
                context.skip_frame = "DEFAULT" if number in wanted else "NONREF"
            packet = packet_of(_part(read, offset, size, number), number, sample)
            for frame in _given(context, packet, number):
                if frame.pts in wanted:
                    wanted.remove(frame.pts)
                    yield frame.pts, _whole(frame)
        for frame in _given(context, None, -1):
            if frame.pts in wanted:
                wanted.remove(frame.pts)
                yield frame.pts, _whole(frame)
        if wanted:
            raise CorruptVideo(f"no picture came of frame {min(wanted)}" + (f" and {len(wanted) - 1} others" if len(wanted) > 1 else ""))
        context.flush_buffers()


def decoder_of(track: Track, threads: int = 1) -> Any:
    """A new ``av.CodecContext`` for packets of ``track``. Raises ``UnsupportedVideo``."""
    try:
        context: Any = av.CodecContext.create(_SOFTWARE.get(track.decoder, track.decoder), "r")
        context.extradata = track.extradata or None
        context.thread_count = threads
        if context.type == "video":
            context.options = {"max_pixels": _MOST_PIXELS}
        elif track.rate_hz and track.channels in _LAYOUTS:  # uncompressed sound says neither itself
            context.sample_rate, context.layout = track.rate_hz, _LAYOUTS[track.channels]
    except (FFmpegError, ValueError, TypeError):
        raise UnsupportedVideo(f"no decoder for {track.codec!r}") from None
    return context


def packet_of(data: Buffer, pts: int, dts: int) -> Any:
    """A packet with a copy of ``data``: decoders read a few bytes further than its end, which only a packet's own memory has."""
    packet: Any = av.Packet(len(data))
    packet.update(data)
    packet.pts, packet.dts = pts, dts
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


def _whole(frame: Any) -> Any:
    """``frame``. Raises ``CorruptVideo`` where its decoder made up parts of it."""
    if frame.is_corrupt:
        raise CorruptVideo(f"frame {frame.pts} is damaged: its decoder made up parts of it")
    return frame
