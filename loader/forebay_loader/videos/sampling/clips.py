"""Windows of frames at an even distance by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Sequence, Union

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.arguments import checked_choice, checked_number, checked_policy
from forebay_loader.videos.sampling.draws import Draws
from forebay_loader.videos.sampling.positions import even_places, filled, frame_at, starts_below
from forebay_loader.videos.sampling.sampler import Sampler, Sampling, SpelledSampler, TooFewFrames, seen_frames

__all__ = ["clip", "clips"]


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
