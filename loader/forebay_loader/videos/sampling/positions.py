"""Arithmetic of places in a clip, as torchcodec's samplers do it; and what stands where the clip has ended."""

from __future__ import annotations

from bisect import bisect_right
from typing import Sequence

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import Sampling, TooFewFrames

__all__ = ["ROUNDING_S", "even_places", "filled", "frame_at", "marked_repeats", "starts_below"]

# Times are sums of fractions that no double holds: 7 * (1 / 24) is less than 7 / 24. Without this, a third of the frames of a film at 24
# frames a second that is sampled 24 times a second are the ones before (torchcodec's answer). Containers tell times no finer than this.
ROUNDING_S = 1e-6


def even_places(first: int, last: int, count: int) -> list[int]:
    """``count`` whole numbers from ``first`` to ``last``, evenly spread, some twice where there are fewer: ``torch.linspace`` of ints."""
    if count == 1:
        return [first]
    step, half = (last - first) / (count - 1), count // 2
    return [int(first + step * k) if k < half else int(last - step * (count - k - 1)) for k in range(count)]


def starts_below(frames: int, length: int, stride: int) -> int:
    """Window begins lie below this, so that none ends past the clip; 1 where even the first does."""
    return max(frames - stride * (length - 1), 1)


def frame_at(info: ClipInfo, time_s: float) -> int:
    """The frame that is shown at ``time_s``; before the first, the first."""
    return max(0, bisect_right(info.times_s, time_s + ROUNDING_S) - 1)


def filled(frames: Sequence[int], count: int, policy: str) -> Sampling:
    """``frames``, made ``count`` long by ``policy``. Raises ``TooFewFrames`` by the policy ``error``, and where there is none at all."""
    real = len(frames)
    if real < count and (policy == "error" or not real):
        raise TooFewFrames(f"the clip has {real} of the {count} frames that its sampler takes (policy={policy!r})")
    more = count - real
    filling = [frames[-1]] * more if policy == "repeat_last" else [frames[k % real] for k in range(more)]
    return Sampling((*frames, *filling), (True,) * real + (False,) * more)


def marked_repeats(frames: Sequence[int]) -> Sampling:
    """Ascending ``frames``, of which the first of equal ones counts and the others fill."""
    return Sampling(tuple(frames), tuple(k == 0 or frames[k - 1] != frame for k, frame in enumerate(frames)))
