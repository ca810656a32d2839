"""Sound between two times, sample by sample: what decoding from the start gives there, from a few packets before."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Iterator, Sequence, Tuple

import numpy
from av.codec.context import Flags2
from av.error import FFmpegError

from forebay_loader.video.decode.clip_timer import ClipTimer
from forebay_loader.video.decode.frames import ReadPart, decoder_of, packet_of
from forebay_loader.video.errors import CorruptVideo
from forebay_loader.video.mp4.track import DecodeGroup, Track

__all__ = ["cut", "floats", "sound_between", "sound_group"]

# Decoded before the first that is wanted: AAC needs the packet before, Opus 80 ms, MP3 what its reservoir holds, 11 packets at most.
PREROLL_S = 0.3


def sound_group(track: Track, begin_s: float, end_s: float) -> DecodeGroup:
    """The packets that sound from ``begin_s`` to ``end_s`` needs."""
    return track.between(begin_s - PREROLL_S, end_s)


def sound_between(track: Track, read: ReadPart, begin_s: float, end_s: float, timer: ClipTimer) -> Tuple[Any, int]:
    """(``channels x samples`` float32 from -1 to 1, samples a second). It ends where the track's sound does.

    Raises ``CorruptVideo``, ``UnsupportedVideo``, ``VideoTimeout``, and what ``read`` raises.
    """
    decoded = list(_decoded(track, sound_group(track, begin_s, end_s), read, timer))
    if not decoded:
        return numpy.zeros((track.channels, 0), numpy.float32), track.rate_hz
    parts, rate_hz = [(begin, samples) for begin, samples, _ in decoded], decoded[0][2]
    return cut(parts, round(max(begin_s, 0.0) * rate_hz), round(min(end_s, _end_s(track)) * rate_hz)), rate_hz


def _end_s(track: Track) -> float:
    """When its sound ends; what a last packet holds beyond is not heard."""
    return int((track.pts + track.durations).max()) / track.timescale


def _decoded(track: Track, group: DecodeGroup, read: ReadPart, timer: ClipTimer) -> Iterator[Tuple[int, Any, int]]:
    """(place of its first sample on the clip's clock, ``channels x samples``, samples a second) of each decoded frame."""
    context = decoder_of(track)
    context.flags2 |= Flags2.skip_manual  # else Opus leaves out what its header says of the clip's begin, wherever decoding begins
    place = None
    for number in (*range(group.first, group.end), None):
        timer.check()
        try:
            frames = context.decode(None if number is None else _packet(track, number, read))
        except FFmpegError as error:
            raise CorruptVideo(f"its sound cannot be decoded at packet {number}: {error.strerror}") from None
        for frame in frames:
            said = round(frame.pts * frame.sample_rate / track.timescale) if frame.pts is not None else place or 0
            # A timescale coarser than the samples' rounds each time: sound goes on where it stopped unless there is a true gap.
            place = said if place is None or abs(said - place) > _slack(track, frame) else place
            samples = floats(frame)
            yield place, samples, frame.sample_rate
            place += samples.shape[1]


def _slack(track: Track, frame: Any) -> int:
    return 2 + int(frame.sample_rate) // track.timescale


def _packet(track: Track, number: int, read: ReadPart) -> Any:
    offset, size = int(track.offsets[number]), int(track.sizes[number])
    data = read(offset, size)
    if len(data) < size:
        raise CorruptVideo(f"ends within its sound: the {size} bytes of packet {number} lie at byte {offset}")
    packet = packet_of(data, int(track.pts[number]), int(track.dts[number]))
    packet.time_base = Fraction(1, track.timescale)
    return packet


def floats(frame: Any) -> Any:
    """``channels x samples`` float32 of what a decoder gave."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    if samples.dtype.kind == "f":
        return samples.astype(numpy.float32, copy=False)
    if samples.dtype == numpy.uint8:
        return (samples.astype(numpy.float32) - 128) / 128
    return samples.astype(numpy.float32) / float(1 << (8 * samples.dtype.itemsize - 1))


def cut(parts: Sequence[Tuple[int, Any]], begin: int, end: int) -> Any:
    """What of ``parts`` lies from sample ``begin`` to ``end``; zeros where none does."""
    end = min(end, max(place + samples.shape[1] for place, samples in parts))
    found = numpy.zeros((len(parts[0][1]), max(end - begin, 0)), numpy.float32)
    for place, samples in parts:
        first, past = max(place, begin), min(place + samples.shape[1], end)
        if first < past:
            found[:, first - begin : past - begin] = samples[:, first - place : past - place]
    return found
