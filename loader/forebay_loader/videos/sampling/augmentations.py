"""Temporal augmentations: the same clip as if it were played, or had arrived, a little differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.phases import for_epoch, phased
from forebay_loader.videos.sampling.sampler import Draws, Sampler, Sampling, SpelledSampler, checked_number

__all__ = ["frame_drop", "time_warp"]


def time_warp(sampler: Sampler, strength: float = 0.3) -> Sampler:
    """The window of ``sampler`` played faster at one end and slower at the other; its first and last frame stay.

    - ``sampler``: says which frames; each is moved to the frame that the other speed would show there.
    - ``strength``: how far the speed goes, 0 to 1: from 1 + s at one end to 1 - s at the other, with s by the seed from -``strength`` to
      ``strength``.

    The order stays, and so does the mask. Raises ``TypeError``, ``ValueError`` here; called, what ``sampler`` raises.
    """
    return TimeWarpSampler(_checked(sampler), checked_number("strength", strength, "a part from 0 to 1", 0.0, 1.0))


def frame_drop(sampler: Sampler, share: float = 0.1) -> Sampler:
    """Some frames of ``sampler`` are lost, and the one before stands in their place, as in a player that cannot keep up.

    - ``sampler``: says which frames; the first of them is never lost.
    - ``share``: how likely each is lost, 0 to 1, by the seed.

    The mask is False in their places. Raises ``TypeError``, ``ValueError`` here; called, what ``sampler`` raises.
    """
    return FrameDropSampler(_checked(sampler), checked_number("share", share, "a part from 0 to 1", 0.0, 1.0))


@dataclass(frozen=True, repr=False)
class SamplerAround(SpelledSampler):
    """Base of what changes the frames of another sampler, by the seed: another one in each epoch in which that is."""

    sampler: Sampler

    def at(self, epoch: int) -> Sampler:
        """Around the sampler of ``epoch``."""
        return replace(self, sampler=for_epoch(self.sampler, epoch))

    @property
    def phased(self) -> bool:
        return phased(self.sampler)

    @property
    def draws(self) -> bool:
        return True


@dataclass(frozen=True, repr=False)
class TimeWarpSampler(SamplerAround):
    """As ``time_warp`` says."""

    spelled: ClassVar[str] = "time_warp"
    strength: float = 0.3

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``time_warp`` says. A function of the frame's number, u + s u (1 - u) of the window: ascending, whatever their order is."""
        found = self.sampler(info, seed)
        if not found.frames:
            return found
        first, last = min(found.frames), max(found.frames)
        bent = self.strength * (2 * Draws(seed, self.spelled).part() - 1)
        width = max(last - first, 1)
        parts = [(frame - first) / width for frame in found.frames]
        return Sampling(tuple(first + round((part + bent * part * (1 - part)) * width) for part in parts), found.mask)


@dataclass(frozen=True, repr=False)
class FrameDropSampler(SamplerAround):
    """As ``frame_drop`` says."""

    spelled: ClassVar[str] = "frame_drop"
    share: float = 0.1

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """As ``frame_drop`` says."""
        found = self.sampler(info, seed)
        draws = Draws(seed, self.spelled)
        frames, mask = list(found.frames), list(found.mask)
        shown = frames[0] if frames else 0
        stands: dict[int, int] = {}  # what stands where a frame stood: itself, or the one before
        for place, frame in enumerate(found.frames):
            if mask[place] and place and draws.part() < self.share:
                frames[place], mask[place] = stands.setdefault(frame, shown), False
            elif mask[place]:
                shown = stands[frame] = frame
        for place, frame in enumerate(found.frames):
            if not found.mask[place]:
                frames[place] = stands.get(frame, frame)  # a place that a lost frame filled
        return Sampling(tuple(frames), tuple(mask))


def _checked(sampler: Any) -> Sampler:
    if not callable(sampler):
        raise TypeError(f"sampler takes one such as uniform(8); got {sampler!r}")
    found: Sampler = sampler
    return found
