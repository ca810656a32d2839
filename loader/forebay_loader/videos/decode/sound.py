"""Sound between two times, sample by sample: what decoding from the start gives there, from a few packets before."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Iterator, List, Optional, Tuple

import av
import numpy
from av.codec.context import Flags2
from av.error import FFmpegError

from forebay_loader.videos.decode.demux import opened
from forebay_loader.videos.decode.frames import Buffer, ClipTimer, ReadPart, decoder_of, packet_of
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.track import DecodeGroup, Track

__all__ = ["DemuxedSound", "SoundParts", "floats", "resampled", "silence", "sound_between", "sound_group"]


# Decoded sound, put where it belongs on the clip's clock: gaps are silence, and where two parts overlap the later one is heard.
_MOST_SLACK_S = 0.02  # how far a sloppy time may be off; more is heard beside the picture
_MOST_SILENCE_S = 3600.0  # between what is sound: a damaged time would ask for any amount of memory


class SoundParts:
    """What a decoder gives, frame by frame. ``tick_s``: how exact the container's times are. ``exact``: whether they are meant so; else
    sound goes on where it stopped while a time differs by less than half a frame, as where a recorder wrote down when it was called."""

    def __init__(self, tick_s: float, exact: bool) -> None:
        self.rate_hz = 0
        self._tick_s, self._exact = tick_s, exact
        self._layout: Any = None
        self._parts: List[Tuple[int, Any]] = []
        self._end = 0

    @property
    def end_s(self) -> float:
        """When what was given last ends."""
        return self._end / self.rate_hz if self.rate_hz else 0.0

    def take(self, frame: Any, begin_s: Optional[float]) -> None:
        """``begin_s`` is its time by the container; None where that says none. Raises ``UnsupportedVideo``."""
        if self._layout is None:
            self.rate_hz, self._layout = frame.sample_rate, frame.layout
        if frame.sample_rate != self.rate_hz:
            raise UnsupportedVideo(f"its sound changes from {self.rate_hz} to {frame.sample_rate} Hz at {self.end_s:.3f} s")
        samples = floats(frame if frame.layout.name == self._layout.name else self._as_before(frame))
        said = self._end if begin_s is None else round(begin_s * self.rate_hz)
        place = said if not self._parts or abs(said - self._end) > self._slack(samples.shape[1]) else self._end
        self._parts.append((place, samples))
        self._end = place + samples.shape[1]

    def forget(self, before_s: float) -> None:
        """Let go of what ends before ``before_s``, which nobody will ask for."""
        before = before_s * self.rate_hz
        self._parts = [part for part in self._parts[:-1] if part[0] + part[1].shape[1] > before] + self._parts[-1:]

    def between(self, begin_s: float, end_s: float) -> Any:
        """``channels x samples`` float32: shorter where the sound ends earlier; minus infinity is where it begins. 0 x 0 of nothing."""
        if not self._parts:
            return numpy.zeros((0, 0), numpy.float32)
        first = min(place for place, _ in self._parts)
        begin = first if begin_s == float("-inf") else round(begin_s * self.rate_hz)
        last = max(place + samples.shape[1] for place, samples in self._parts)
        return self._cut(begin, last if end_s == float("inf") else min(round(end_s * self.rate_hz), last))

    def _cut(self, begin: int, end: int) -> Any:
        heard = sum(samples.shape[1] for _, samples in self._parts)
        found = silence(len(self._parts[0][1]), end - begin, self.rate_hz, heard)
        for place, samples in self._parts:
            first, past = max(place, begin), min(place + samples.shape[1], end)
            if first < past:
                found[:, first - begin : past - begin] = samples[:, first - place : past - place]
        return found

    def _slack(self, samples: int) -> float:
        ticks = 2 + int(self.rate_hz * self._tick_s)
        return ticks if self._exact else max(ticks, min(samples / 2, _MOST_SLACK_S * self.rate_hz))

    def _as_before(self, frame: Any) -> Any:
        """With the channels of the first: a broadcast that changes from one to two goes on as it began."""
        resampler = av.AudioResampler(format="fltp", layout=self._layout, rate=self.rate_hz)
        return resampler.resample(frame)[0]


def silence(channels: int, samples: int, rate_hz: int, heard: int = 0) -> Any:
    """``channels x samples`` of zeros, of which ``heard`` will be sound. Raises ``CorruptVideo`` for more silence than any clip has."""
    if samples > heard + _MOST_SILENCE_S * rate_hz:
        raise CorruptVideo(f"its sound has gaps of {(samples - heard) / max(rate_hz, 1):.0f} s")
    return numpy.zeros((channels, max(samples, 0)), numpy.float32)


def floats(frame: Any) -> Any:
    """``channels x samples`` float32 from -1 to 1 of what a decoder gave."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, len(frame.layout.channels)).T
    if samples.dtype.kind == "f":
        return samples.astype(numpy.float32, copy=False)
    if samples.dtype == numpy.uint8:
        return (samples.astype(numpy.float32) - 128) / 128
    return samples.astype(numpy.float32) / float(1 << (8 * samples.dtype.itemsize - 1))


# Sound of containers that go through PyAV's demuxer: decoded from its begin, because such containers round their times.
#
# Calls that go forwards go on where the last one stopped, so that all of a film's sound, a minute at a time, is decoded once.
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
