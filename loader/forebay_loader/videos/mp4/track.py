"""A track: where each of its samples lies and when it is shown, and what must be read and decoded for the frames that are wanted.

Samples are numbered in decode order, as they lie in the file; frames are the samples that are shown, numbered in the order in which they
are. Decoding begins at a keyframe. In an open group of pictures some samples follow their keyframe in the file and are shown before it
(*leading* pictures): they may be made of the pictures before too, so for these decoding begins one keyframe earlier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.mp4.boxes import Counts

__all__ = ["Coded", "DecodeGroup", "Track", "leading", "trusted_keys"]

# Decoders of pictures made of others that make up what is not there and say nothing, and whose muxers forget to say what is a keyframe.
_FORGOTTEN = ("h263", "rpza", "qtrle", "svq1", "cinepak")


@dataclass(frozen=True)
class DecodeGroup:
    """Samples ``first`` to ``end - 1`` are decoded from a keyframe on; ``frames`` of them are wanted, ascending."""

    first: int
    end: int
    frames: tuple[int, ...]


class Coded(NamedTuple):
    """A codec as its container has it: its name in errors; its four bytes, b"" where there are none; bits of a pixel, 0 where it does not
    say. Some decoders are told by these alone what they decode."""

    name: str
    tag: bytes = b""
    depth: int = 0


def trusted_keys(decoder: str, key: NDArray[numpy.bool_]) -> NDArray[numpy.bool_]:
    """``key``, which samples decoding can begin at as their container has it. Where it says so of all, and that is mostly not so, only the
    first is one."""
    return numpy.arange(len(key)) == 0 if decoder in _FORGOTTEN and key.all() else key


def leading(times: Counts, key: NDArray[numpy.bool_]) -> NDArray[numpy.bool_]:
    """Which samples are shown before the keyframe that they follow."""
    number = numpy.cumsum(key) - 1
    found: NDArray[numpy.bool_] = (number >= 0) & (times < times[numpy.append(numpy.flatnonzero(key), 0)[number]])
    return found


@dataclass(frozen=True, eq=False)
class Track:
    """One video or audio track.

    - ``coded``: the codec, as its container calls it; ``decoder``: FFmpeg's name of what decodes it, "" if none is known;
      ``extradata``: what that is opened with (the payload of avcC, hvcC, av1C …).
    - ``timescale``: ticks a second of ``dts`` and ``pts``.
    - ``width``, ``height``: pixels as coded; ``rotation_deg``: clockwise turn that shows them upright, 0, 90, 180 or 270;
      ``mirrored``: before that turn they are mirrored top to bottom; ``rate_hz``, ``channels``: of sound. 0 where the track is of the other
      sort.
    - ``offsets``, ``sizes``: int64 arrays, the bytes of each sample in the file.
    - ``dts``, ``pts``: int64 arrays, ticks; the edit list is applied. Samples that it hides have a time that no frame has.
    - ``durations``: int64 array, ticks.
    - ``key``: a byte a sample, 1 where decoding can begin; ``leading``: 1 where it must begin one keyframe earlier.
    - ``order``: int64 array, the sample of each frame.
    """

    coded: Coded
    decoder: str
    extradata: bytes
    timescale: int
    width: int
    height: int
    rotation_deg: int
    rate_hz: int
    channels: int
    offsets: Counts
    sizes: Counts
    dts: Counts
    pts: Counts
    durations: Counts
    key: bytes
    leading: bytes
    order: Counts
    mirrored: bool = False

    def __repr__(self) -> str:
        return f"<Track {self.codec}, {len(self.order)} frames of {len(self.offsets)} samples>"

    @property
    def codec(self) -> str:
        """Its name, as ``avc1``."""
        return self.coded.name

    @property
    def frames(self) -> int:
        """How many samples are shown."""
        return len(self.order)

    @property
    def times_s(self) -> NDArray[numpy.float64]:
        """When each frame is shown, in seconds, ascending; from 0 where the first would be before."""
        ticks = self.pts[self.order]
        return (ticks - min(int(ticks[0]), 0) if len(ticks) else ticks) / self.timescale

    @property
    def end_s(self) -> float:
        """When the last frame ends, on the clock of ``times_s``."""
        if not self.frames:
            return 0.0
        ticks = self.pts[self.order]
        return (int((ticks + self.durations[self.order]).max()) - min(int(ticks[0]), 0)) / self.timescale

    @property
    def is_even(self) -> bool:
        """Whether its samples are decoded and shown at even distances, but for rounding: where one was left out there is a gap."""
        steps = numpy.append(numpy.diff(self.dts[16:]), numpy.diff(numpy.sort(self.pts)))  # in Matroska the first have no dts
        return not len(steps) or bool(2 * steps.max() < 3 * steps.min())

    def keyframes(self) -> Counts:
        """Frames that decoding can begin at, ascending."""
        return numpy.flatnonzero(numpy.frombuffer(self.key, numpy.uint8)[self.order])

    def needed(self, frames: Iterable[int]) -> list[DecodeGroup]:
        """What to decode for these frames, in any order: groups of samples, ascending, none overlapping. Raises ``IndexError`` for a frame
        that the track does not have."""
        wanted = numpy.unique(numpy.fromiter(frames, numpy.int64))
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self.frames:
            raise IndexError(f"frames {wanted[0]} to {wanted[-1]} of {self.frames}")
        samples = self.order[wanted]
        groups: list[tuple[int, int, list[int]]] = []
        for begin, sample, frame in sorted(numpy.stack([self._begins(samples), samples, wanted], axis=1).tolist()):
            if groups and begin < groups[-1][1]:
                first, end, found = groups[-1]
                found.append(frame)
                groups[-1] = (first, max(end, sample + 1), found)
            else:
                groups.append((begin, sample + 1, [frame]))
        return [DecodeGroup(first, end, tuple(sorted(found))) for first, end, found in groups]

    def between(self, begin_s: float, end_s: float) -> DecodeGroup:
        """The samples of sound that lie in these seconds, the first and last in part; ``frames`` is (). An AAC decoder needs the sample
        before too, for its first to be whole."""
        ends = numpy.maximum.accumulate(self.pts + self.durations)
        first = int(numpy.searchsorted(ends, begin_s * self.timescale, "right"))
        end = int(numpy.searchsorted(self.pts, end_s * self.timescale, "left"))
        return DecodeGroup(first, max(first, end), ())

    def byte_spans(self, groups: Iterable[DecodeGroup], gap_bytes: int = 0) -> list[tuple[int, int]]:
        """The bytes ``(begin, end)`` of the groups' samples, ascending, joined where not more than ``gap_bytes`` lie between two: a few
        bytes of another track cost less than a request of their own."""
        slices = [slice(group.first, group.end) for group in groups]
        if not slices:
            return []
        begins = numpy.concatenate([self.offsets[part] for part in slices])
        ends = begins + numpy.concatenate([self.sizes[part] for part in slices])
        ascending = numpy.argsort(begins, kind="stable")
        begins, ends = begins[ascending], numpy.maximum.accumulate(ends[ascending])
        apart = numpy.flatnonzero(begins[1:] > ends[:-1] + gap_bytes)
        firsts, lasts = numpy.append(0, apart + 1), numpy.append(apart, len(begins) - 1)
        return [(begin, end) for begin, end in numpy.stack([begins[firsts], ends[lasts]], axis=1).tolist() if begin < end]

    def key_before(self, sample: int) -> Optional[int]:
        """The last sample before ``sample`` that decoding can begin at, else the first of the track; None before that."""
        place = int(numpy.searchsorted(self._keys, sample))
        return int(self._keys[place - 1]) if place else 0 if sample else None

    def leads(self, frame: int, first: int) -> bool:
        """Whether decoding from the keyframe ``first`` on lacks what ``frame`` may be made of: it follows it, and is shown before it."""
        if not 0 <= frame < self.frames:
            return False
        sample = int(self.order[frame])
        place = int(numpy.searchsorted(self._keys, first, "right"))
        return bool(self.leading[sample]) and sample < (int(self._keys[place]) if place < len(self._keys) else len(self.offsets))

    def _begins(self, samples: Counts) -> Counts:
        """The keyframe to begin at, for each sample; the track's first sample where there is none before."""
        number = numpy.searchsorted(self._keys, samples, "right") - 1 - numpy.frombuffer(self.leading, numpy.uint8)[samples]
        return numpy.where(number < 0, 0, numpy.append(self._keys, 0)[number])

    @cached_property
    def _keys(self) -> Counts:
        """The samples that decoding can begin at."""
        return numpy.flatnonzero(numpy.frombuffer(self.key, numpy.uint8))
