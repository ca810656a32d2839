"""Frames denser where something happens."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Sequence

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import (
    Draws,
    NotScanned,
    Sampler,
    Sampling,
    SpelledSampler,
    checked_choice,
    checked_number,
    even_places,
    frame_at,
    marked_repeats,
    seen_frames,
)

__all__ = ["adaptive"]


def adaptive(n: int, by: str = "motion", choice: str = "regular", floor: float = 0.1) -> Sampler:
    """``n`` different frames, ascending, in each span of the clip's time as many as its share of motion, or of sound.

    - ``n``: how many, from 1; a clip of fewer frames gives some twice, as ``uniform`` does.
    - ``by``: ``motion`` or ``audio``: ``ClipInfo.motion`` or ``ClipInfo.audio_energy``, which a scan finds (``forebay index --video``).
    - ``choice``: ``regular``, in the middle of ``n`` equal shares; or ``random``, anywhere in each, by the seed.
    - ``floor``: the part, 0 to 1, of the frames that is spread evenly all the same, because a still picture at the end may be what tells.

    Where nothing moves, or there is no sound, they are spread evenly over the time. Raises ``TypeError``, ``ValueError`` here; called,
    ``NoFrames``, and ``NotScanned`` where no scan has looked.
    """
    if by not in ("motion", "audio"):
        raise ValueError(f"by is one of motion, audio; got {by!r}")
    floor = checked_number("floor", floor, "a part from 0 to 1", 0.0, 1.0)
    return AdaptiveSampler(whole("n", n, "a number of frames from 1", 1), by, checked_choice(choice), floor)


@dataclass(frozen=True, repr=False)
class AdaptiveSampler(SpelledSampler):
    """As ``adaptive`` says."""

    spelled: ClassVar[str] = "adaptive"
    n: int
    by: str = "motion"
    choice: str = "regular"
    floor: float = 0.1

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``adaptive`` says."""
        frames = seen_frames(info)
        if frames <= self.n:
            return marked_repeats(even_places(0, frames - 1, self.n))
        energy = self._energy(info)
        shown = _shown(info, len(energy))
        span_ends = list(accumulate(_shares(energy, shown, self.floor)))
        draws = Draws(seed, self.spelled)
        parts = ((k + (0.5 if self.choice == "regular" else draws.part())) / self.n for k in range(self.n))
        found = [frame_at(info, info.duration_s * _place(part, span_ends, shown)) for part in parts]
        return Sampling(_apart(found, frames), (True,) * self.n)

    def _energy(self, info: ClipInfo) -> Sequence[float]:
        if self.by == "audio" and not info.audio_rate_hz:
            return (0.0,)  # no sound, nowhere louder
        found = info.motion if self.by == "motion" else info.audio_energy
        if not found:
            raise NotScanned(f"{self!r}: nothing is known of the clip's {self.by}; `forebay index --video` finds it out")
        return found


def _shown(info: ClipInfo, spans: int) -> list[float]:
    """What part of each span of the clip's time, 0 to 1, there are pictures in: they may begin later than their sound."""
    begin = info.begin_s / info.duration_s * spans if info.duration_s > info.begin_s else 0.0
    return [min(max(span + 1 - begin, 0.0), 1.0) for span in range(spans)]


def _shares(energy: Sequence[float], shown: Sequence[float], floor: float) -> list[float]:
    """What part of the frames each span gets; together 1."""
    seen = [one * part for one, part in zip(energy, shown)]  # noqa: B905  # strict= is not of 3.9; as many by construction
    time, whole_energy = sum(shown), sum(seen)
    if whole_energy <= 0:
        return [part / time for part in shown]
    return [floor * part / time + (1 - floor) * one / whole_energy for part, one in zip(shown, seen)]  # noqa: B905


def _place(part: float, ends: Sequence[float], shown: Sequence[float]) -> float:
    """Where in the clip's time, 0 to 1, ``part`` of all frames lie before; ``ends`` are the sums of the spans' shares."""
    span = min(bisect_right(ends, part), len(ends) - 1)
    begin = ends[span - 1] if span else 0.0
    share = ends[span] - begin
    inside = min((part - begin) / share if share > 0 else 0.0, 1.0)
    return (span + 1 - shown[span] * (1 - inside)) / len(ends)


def _apart(found: Sequence[int], frames: int) -> tuple[int, ...]:
    """The ascending ``found`` with equal ones moved to their neighbours, as little as it needs; there are at least as many ``frames``."""
    moved: list[int] = []
    for place, frame in enumerate(found):
        last = frames - (len(found) - place)  # leaves room for those behind
        moved.append(min(max(frame, moved[-1] + 1 if moved else 0), last))
    return tuple(moved)
