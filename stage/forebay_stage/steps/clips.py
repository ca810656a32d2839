"""A video cut into clips whose packets are copied, none encoded again. Needs PyAV and numpy."""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
from av.error import FFmpegError

from forebay_loader.videos.sources.clip_bytes import MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_stage.steps.checks import Sample
from forebay_stage.steps.fields import VIDEOS, video_field

__all__ = ["clips_of"]

# By the extension. FFmpeg is told what to read it as: left to guess, it would take a playlist for a video and open what that names.
_CONTAINERS = {"mp4": "mp4", "m4v": "mp4", "mov": "mov", "webm": "webm", "mkv": "matroska"}
_ROUNDING_S = Fraction(1, 100)  # containers round the times of their packets
_LOOK = 16  # pixels of the shorter side of what is decoded to see that a clip can be


def clips_of(sample: Sample, *, seconds: float, field: str) -> Iterator[Sample]:
    """Samples of one clip each, as ``ready.clips`` says. Its packets are in memory twice while it is cut."""
    name = video_field(sample, field)
    if name is None:
        yield sample
        return
    container = _CONTAINERS.get(name.rpartition(".")[2])
    if container is None:
        raise ValueError(f"{name}: clips can be cut of {', '.join(sorted(VIDEOS))}")
    try:
        with av.open(io.BytesIO(sample[name]), format=container, metadata_errors="replace") as source:
            if not source.streams.video:
                raise ValueError(f"{name}: there is no picture in it")
            streams = [source.streams.video[0], *source.streams.audio[:1]]
            for number, packets in enumerate(_parts(source, streams, seconds)):
                clip = _muxed(packets, streams, container)
                with ClipSource(MemoryClip(clip, f"clip {number} of {name}"), size=_LOOK, time_limit_s=None) as made:
                    made.frames([0])
                yield {**sample, "__key__": f"{sample['__key__']}_{number:05d}", name: clip}
    except FFmpegError as error:
        raise ValueError(f"{name}: it cannot be cut: {error.strerror}") from error


def _parts(source: Any, streams: Sequence[Any], seconds: float) -> list[list[Any]]:
    """The packets of each clip, their times from its begin on."""
    packets = [packet for packet in source.demux(streams) if packet.size]
    if any(packet.pts is None for packet in packets):
        raise ValueError("some of its packets do not say when they are shown")
    pictures = _shown([packet for packet in packets if packet.stream.index == streams[0].index])
    begins = _begins(pictures, Fraction(seconds))
    found: list[list[Any]] = [[] for _ in begins]
    kept = {id(packet) for packet in pictures}
    for packet in packets:
        if packet.stream.index == streams[0].index and id(packet) not in kept:
            continue
        number = max(0, bisect.bisect_right(begins, packet.pts * packet.time_base) - 1)
        found[number].append(packet)
        begin = round(begins[number] / packet.time_base) if number else 0  # the first keeps its times, a late begin of the sound too
        packet.pts -= begin
        if packet.dts is not None:
            packet.dts -= begin
    return found


def _shown(pictures: list[Any]) -> list[Any]:
    """Without those at the end that an edit list hides; those at the begin stay, as others may depend on them, and stay hidden."""
    while pictures and pictures[-1].is_discard:
        pictures.pop()
    if not pictures:
        raise ValueError("there is no picture in it")
    first = min(packet.pts for packet in pictures if not packet.is_discard)
    if any(packet.is_discard and packet.pts > first for packet in pictures):
        raise ValueError("its edit list hides pictures among those that it shows")
    return pictures


def _begins(pictures: Sequence[Any], seconds: Fraction) -> list[Fraction]:
    """When each clip begins, in seconds. A keyframe counts where what comes before it is shown before it, and what comes after it later."""
    base = pictures[0].time_base
    times = [packet.pts for packet in pictures]
    later = list(times)  # the earliest time from each packet on
    for number in range(len(times) - 2, -1, -1):
        later[number] = min(later[number], later[number + 1])
    begins, latest = [max(min(times) * base, Fraction(0))], times[0]  # below 0 lies what an edit list hides
    for number in range(1, len(pictures)):
        closed = pictures[number].is_keyframe and times[number] == later[number] > latest
        if closed and times[number] * base - begins[-1] >= seconds - _ROUNDING_S:
            begins.append(times[number] * base)
        latest = max(latest, times[number])
    return begins


def _muxed(packets: Sequence[Any], streams: Sequence[Any], container: str) -> bytes:
    room = io.BytesIO()
    # Exact bits: no time of day and no number drawn at random in the file.
    with av.open(room, "w", format=container, container_options={"fflags": "+bitexact"}) as out:
        made = {stream.index: out.add_stream_from_template(stream, opaque=True) for stream in streams}
        for packet in packets:
            packet.stream = made[packet.stream.index]
            out.mux(packet)
    return room.getvalue()
