"""Frames evenly spread over the whole clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional, Sequence, Union

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import (
    ROUNDING_S,
    Draws,
    Sampler,
    Sampling,
    SamplingError,
    SpelledSampler,
    TooFewFrames,
    checked_choice,
    checked_number,
    checked_policy,
    even_places,
    filled,
    frame_at,
    marked_repeats,
    seen_frames,
    starts_below,
)

__all__ = ["clip", "clips", "fps", "keyframes", "uniform"]


def uniform(n: int, choice: str = "regular") -> Sampler:
    """``n`` frames from the first to the last, ascending.

    - ``n``: how many, from 1.
    - ``choice``: ``regular``, evenly spread by number (``torch.linspace``, torchcodec's ``clips_at_regular_indices``); or ``random``, one
      at random of each of ``n`` equal spans (temporal segment networks, Wang et al. 2016), other ones for each seed.

    A clip of fewer frames gives some twice; the mask is False where one is repeated. It goes by number, not by time: of a variable rate it
    takes more where there are more; ``fps`` goes by time. Raises ``TypeError``, ``ValueError`` here; called, ``NoFrames``.
    """
    return UniformSampler(whole("n", n, "a number of frames from 1", 1), checked_choice(choice))


@dataclass(frozen=True, repr=False)
class UniformSampler(SpelledSampler):
    """As ``uniform`` says."""

    spelled: ClassVar[str] = "uniform"
    n: int
    choice: str = "regular"

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``uniform`` says."""
        frames = seen_frames(info)
        return marked_repeats(even_places(0, frames - 1, self.n) if self.choice == "regular" else self._drawn(frames, seed))

    def _drawn(self, frames: int, seed: int) -> list[int]:
        draws = Draws(seed, self.spelled)
        firsts = [frames * k // self.n for k in range(self.n + 1)]
        return [firsts[k] + draws.below(max(firsts[k + 1] - firsts[k], 1)) for k in range(self.n)]


# Frames that decode alone.
def keyframes(n: int, choice: str = "regular", policy: str = "repeat_last") -> Sampler:
    """``n`` keyframes, ascending: each is read and decoded without another frame.

    A clip may show no keyframe: ``ffmpeg -ss … -c copy`` hides the one that decoding begins at. Its first frame stands for one, as it
    decodes with least.

    - ``n``: how many, from 1.
    - ``choice``: ``regular``, evenly spread among them; or ``random``, ``n`` different ones by the seed.
    - ``policy``: a clip with fewer has all of them, and then ``repeat_last``, ``wrap`` (from the first again) or ``error``.

    Raises ``TypeError``, ``ValueError`` here; called, ``NoFrames``, ``TooFewFrames``.
    """
    return KeyframesSampler(whole("n", n, "a number of frames from 1", 1), checked_choice(choice), checked_policy(policy))


@dataclass(frozen=True, repr=False)
class KeyframesSampler(SpelledSampler):
    """As ``keyframes`` says."""

    spelled: ClassVar[str] = "keyframes"
    n: int
    choice: str = "regular"
    policy: str = "repeat_last"

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``keyframes`` says."""
        seen_frames(info)
        known = info.keyframes or (0,)
        if len(known) <= self.n:
            return filled(known, self.n, self.policy)
        places = even_places(0, len(known) - 1, self.n) if self.choice == "regular" else Draws(seed, self.spelled).some(self.n, len(known))
        return Sampling(tuple(known[place] for place in places), (True,) * self.n)


# Frames at a rate: what is shown every so many seconds.
_MOST_FRAMES = 1 << 20  # of one sample: a broken duration must not become a list of that length


def fps(rate: float, n: Optional[int] = None, start_s: Union[float, str] = 0.0, policy: str = "repeat_last") -> Sampler:
    """The frames that are shown at ``start_s``, ``start_s + 1 / rate``, …; a frame that is shown for longer comes more than once.

    - ``rate``: frames a second, above 0; of the clip's own rate it does not matter, nor whether that is constant.
    - ``n``: how many, from 1; None: as many as there are until the clip ends.
    - ``start_s``: seconds from the clip's begin; or ``random``, such that all ``n`` lie in the clip where it is long enough.
    - ``policy``: where the clip ends before: ``repeat_last``, ``wrap`` or ``error``.

    The times are those of torchcodec's ``clips_at_random_timestamps``; a time less than a microsecond before a frame is that frame's, where
    torchcodec takes the one before. Raises ``TypeError``, ``ValueError`` here; called, ``NoFrames``, ``TooFewFrames``, and
    ``SamplingError`` for more than a million frames.
    """
    count = None if n is None else whole("n", n, "a number of frames from 1, or None", 1)
    if start_s != "random":
        start_s = checked_number("start_s", start_s, "seconds from 0, or 'random'", 0.0)
    elif count is None:
        raise ValueError("start_s='random' needs n: without, every clip begins at its begin")
    return RateSampler(checked_number("rate", rate, "frames a second above 0", 1e-6), count, start_s, checked_policy(policy))


@dataclass(frozen=True, repr=False)
class RateSampler(SpelledSampler):
    """As ``fps`` says."""

    spelled: ClassVar[str] = "fps"
    rate: float
    n: Optional[int] = None
    start_s: Union[float, str] = 0.0
    policy: str = "repeat_last"

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``fps`` says."""
        seen_frames(info)
        begin_s, count = self._begin_s(info, seed), self._count(info)
        step_s = 1 / self.rate
        times_s = [begin_s + k * step_s for k in range(count)]
        shown = [frame_at(info, time_s) for time_s in times_s if time_s + ROUNDING_S < info.duration_s]
        if not shown and begin_s <= info.begin_s:
            shown = [0]  # one picture that lasts no time
        return filled(shown, count if self.n else len(shown) or 1, self.policy)

    def _begin_s(self, info: ClipInfo, seed: int) -> float:
        if isinstance(self.start_s, float):
            return max(self.start_s, info.begin_s)
        room_s = info.duration_s - (self._count(info) - 1) * (1 / self.rate) - info.begin_s
        return info.begin_s + Draws(seed, self.spelled).part() * max(room_s, 0.0)

    def _count(self, info: ClipInfo) -> int:
        count = int(info.duration_s * self.rate) + 1 if self.n is None else self.n
        if count > _MOST_FRAMES:
            raise SamplingError(f"{self!r} of a clip of {info.duration_s:.0f} s takes {count} frames, more than {_MOST_FRAMES}")
        return count


# Windows of frames at an even distance by number.
def clip(start_s: Union[float, str], length: int, stride: int = 1, policy: str = "repeat_last") -> Sampler:
    """``length`` frames, every ``stride``-th, from the one that is shown at ``start_s``.

    - ``start_s``: seconds from the clip's begin; or ``random``, any frame from which the window lies in the clip, else the first.
    - ``length``: frames of the window, from 1.
    - ``stride``: 1 takes neighbours, 2 every other one.
    - ``policy``: where the clip ends before: ``repeat_last``, ``wrap`` (from the window's first again) or ``error``.

    Raises ``TypeError``, ``ValueError`` here; called, ``NoFrames``, ``TooFewFrames`` (also for a begin past the clip's end).
    """
    if start_s != "random":
        start_s = checked_number("start_s", start_s, "seconds from 0, or 'random'", 0.0)
    return ClipSampler(start_s, *_window(length, stride), checked_policy(policy))


def clips(count: int, length: int, stride: int = 1, choice: str = "regular", policy: str = "repeat_last") -> Sampler:
    """``count`` windows of ``length`` frames, one behind the other: T is ``count * length``.

    - ``count``: how many windows, from 1.
    - ``length``, ``stride``, ``policy``: as of ``clip``, for each window.
    - ``choice``: ``regular``, from the first frame to the last begin whose window lies in the clip (torchcodec's
      ``clips_at_regular_indices``); or ``random``, each anywhere between (``clips_at_random_indices``), in no order.

    Raises ``TypeError``, ``ValueError`` here; called, ``NoFrames``, ``TooFewFrames``.
    """
    count = whole("count", count, "a number of windows from 1", 1)
    return ClipsSampler(count, *_window(length, stride), checked_choice(choice), checked_policy(policy))


@dataclass(frozen=True, repr=False)
class ClipSampler(SpelledSampler):
    """As ``clip`` says."""

    spelled: ClassVar[str] = "clip"
    start_s: Union[float, str]
    length: int
    stride: int = 1
    policy: str = "repeat_last"

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``clip`` says."""
        frames = seen_frames(info)
        if isinstance(self.start_s, str):
            first = Draws(seed, self.spelled).below(starts_below(frames, self.length, self.stride))
        elif self.start_s < info.duration_s or self.start_s <= info.begin_s:
            first = frame_at(info, self.start_s)
        else:
            raise TooFewFrames(f"{self!r}: the clip ends at {info.duration_s:.3f} s")
        return _windows([first], frames, self.length, self.stride, self.policy)


@dataclass(frozen=True, repr=False)
class ClipsSampler(SpelledSampler):
    """As ``clips`` says."""

    spelled: ClassVar[str] = "clips"
    count: int
    length: int
    stride: int = 1
    choice: str = "regular"
    policy: str = "repeat_last"

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``clips`` says."""
        frames = seen_frames(info)
        end = starts_below(frames, self.length, self.stride)
        if self.choice == "regular":
            firsts = even_places(0, end - 1, self.count)
        else:
            draws = Draws(seed, self.spelled)
            firsts = [draws.below(end) for _ in range(self.count)]
        return _windows(firsts, frames, self.length, self.stride, self.policy)


def _window(length: int, stride: int) -> tuple[int, int]:
    return whole("length", length, "a number of frames from 1", 1), whole("stride", stride, "a distance of frames from 1", 1)


def _windows(firsts: Sequence[int], frames: int, length: int, stride: int, policy: str) -> Sampling:
    found = [filled(range(first, min(first + stride * (length - 1) + 1, frames), stride), length, policy) for first in firsts]
    return Sampling(tuple(frame for one in found for frame in one.frames), tuple(real for one in found for real in one.mask))
