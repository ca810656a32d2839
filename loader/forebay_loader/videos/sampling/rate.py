"""Frames at a rate: what is shown every so many seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Optional, Union

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.arguments import checked_number, checked_policy
from forebay_loader.videos.sampling.draws import Draws
from forebay_loader.videos.sampling.positions import ROUNDING_S, filled, frame_at
from forebay_loader.videos.sampling.sampler import Sampler, Sampling, SamplingError, SpelledSampler, seen_frames

__all__ = ["fps"]

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
