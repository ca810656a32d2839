"""Sound between two times, sample by sample: what decoding from the start gives there, from a few packets before."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Tuple

import av
import numpy
from av.codec.context import Flags2
from av.error import FFmpegError

from forebay_loader.videos.decode.clip_timer import ClipTimer
from forebay_loader.videos.decode.frames import ReadPart, decoder_of, packet_of
from forebay_loader.videos.decode.sound_parts import SoundParts, silence
from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.track import DecodeGroup, Track

__all__ = ["resampled", "sound_between", "sound_group"]


# Decoded before the first that is wanted: AAC needs the packet before, Opus 80 ms, MP3 what its reservoir holds, 11 packets at most.
PREROLL_S = 0.3


def sound_group(track: Track, begin_s: float, end_s: float) -> DecodeGroup:
    """The packets that sound from ``begin_s`` to ``end_s`` needs."""
    return track.between(max(begin_s, 0.0) - PREROLL_S, min(end_s, _end_s(track)))


def sound_between(track: Track, read: ReadPart, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    """(``channels x samples`` float32 from -1 to 1, samples a second). It ends where the track's sound does, and is silent before that
    begins; a ``begin_s`` of minus infinity is where it begins.

    Raises ``CorruptVideo``, ``UnsupportedVideo``, ``VideoTimeout``, and what ``read`` raises.
    """
    parts = _decoded(track, sound_group(track, begin_s, end_s), read, timer)
    if begin_s == float("-inf"):
        begin_s = max(0.0, int(track.pts[track.order].min()) / track.timescale)
    begin_s, end_s = max(begin_s, 0.0), min(end_s, _end_s(track))
    if not parts.rate_hz:
        return silence(track.channels, round((end_s - begin_s) * track.rate_hz), track.rate_hz), track.rate_hz
    return parts.between(begin_s, end_s), parts.rate_hz


def _end_s(track: Track) -> float:
    """When its sound ends; what a last packet holds beyond is not heard."""
    return int((track.pts + track.durations).max()) / track.timescale


def _decoded(track: Track, group: DecodeGroup, read: ReadPart, timer: ClipTimer) -> SoundParts:
    # A timescale coarser than the samples' rounds each time: sound goes on where it stopped unless there is a true gap.
    parts = SoundParts(1 / track.timescale, exact=True)
    context = decoder_of(track)
    context.flags2 |= Flags2.skip_manual  # else Opus leaves out what its header says of the clip's begin, wherever decoding begins
    for number in (*range(group.first, group.end), None) if group.first < group.end else ():
        timer.check()
        try:
            frames = context.decode(None if number is None else _packet(track, number, read))
        except FFmpegError as error:
            raise CorruptVideo(f"its sound cannot be decoded at packet {number}: {error.strerror}") from None
        for frame in frames:
            parts.take(frame, None if frame.pts is None else frame.pts / track.timescale)
    return parts


def _packet(track: Track, number: int, read: ReadPart) -> Any:
    offset, size = int(track.offsets[number]), int(track.sizes[number])
    data = read(offset, size)
    if len(data) < size:
        raise CorruptVideo(f"ends within its sound: the {size} bytes of packet {number} lie at byte {offset}")
    packet = packet_of(data, int(track.pts[number]), int(track.dts[number]))
    packet.time_base = Fraction(1, track.timescale)
    return packet


# Sound at another rate, channel by channel: libswresample as PyAV has it.
def resampled(samples: Any, rate_hz: int, wanted_hz: int) -> Any:
    """``channels x samples`` float32 of ``rate_hz`` as as many channels of ``wanted_hz``, as long within one sample."""
    if rate_hz == wanted_hz or not samples.size:
        return samples
    length = round(samples.shape[1] * wanted_hz / rate_hz)
    found = numpy.zeros((len(samples), length), numpy.float32)
    for channel, room in zip(samples, found):  # noqa: B905  # strict= is not of 3.9; as many by construction
        resampler = av.AudioResampler(format="flt", layout="mono", rate=wanted_hz)
        frame = av.AudioFrame.from_ndarray(numpy.ascontiguousarray(channel)[None], format="flt", layout="mono")
        frame.sample_rate = rate_hz
        parts = [part.to_ndarray()[0] for given in (frame, None) for part in resampler.resample(given)]
        tone = numpy.concatenate([room[:0], *parts])[:length]  # of a few samples it may give none
        room[: len(tone)] = tone
    return found
