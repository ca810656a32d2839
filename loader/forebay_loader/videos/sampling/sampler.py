"""What a sampler is, what it answers, and what it raises."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import MISSING, fields
from hashlib import blake2b
from math import isfinite
from typing import Any, Callable, ClassVar, NamedTuple, Sequence

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import NotScanned, SamplingError

__all__ = [
    "ROUNDING_S",
    "Draws",
    "NoFrames",
    "NotScanned",
    "Sampler",
    "Sampling",
    "SamplingError",
    "SpelledSampler",
    "TooFewFrames",
    "checked_choice",
    "checked_number",
    "checked_policy",
    "even_places",
    "filled",
    "frame_at",
    "marked_repeats",
    "sample_seed",
    "seen_frames",
    "starts_below",
]


# Chance, made of a seed: the same in every process, on every machine and with every Python.
#
# The generator is the Mersenne Twister (MT19937) of ``random.Random``, an object for each use, seeded by a text, and of it ``random()``
# alone: Python promises that sequence for all versions. It promises nothing of ``randrange``, ``sample`` and ``shuffle``, so what they do
# is done here. torch and numpy have generators of their own whose sequences have changed, and workers share none of theirs.
class Draws:
    """Draws of one purpose. Two purposes with one seed know nothing of each other."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._random = random.Random(f"{seed}/{purpose}").random  # noqa: S311  # no secret depends on it

    def part(self) -> float:
        """From 0.0, below 1.0."""
        return self._random()

    def below(self, end: int) -> int:
        """A whole number from 0, below ``end``; uneven by ``end`` in 2**53."""
        return int(self._random() * end)

    def some(self, count: int, end: int) -> list[int]:
        """``count`` different ones of ``range(end)``, ascending: Floyd's, ``count`` draws (Bentley, CACM 30/9, 1987)."""
        found: set[int] = set()
        for last in range(end - count, end):
            drawn = self.below(last + 1)
            found.add(last if drawn in found else drawn)
        return sorted(found)


def sample_seed(seed: int, epoch: int, key: str, again: Sequence[int] = ()) -> int:
    """The seed of one sample in one epoch: other frames in each epoch, the same in each run. ``hash()`` would differ by process.

    ``again`` tells visits of one epoch apart; all 0 at the first.
    """
    when = f"{epoch}.{'.'.join(map(str, again))}" if any(again) else f"{epoch}"
    return int.from_bytes(blake2b(f"{seed}/{when}/{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


class Sampling(NamedTuple):
    """The frames of a clip that are wanted, in the order in which they are wanted.

    - ``frames``: T frame numbers in presentation order, from 0; a number may stand there twice.
    - ``mask``: T truths; False where a frame only fills its place because there is no other: past the clip's end, or repeated.
    """

    frames: tuple[int, ...]
    mask: tuple[bool, ...]


Sampler = Callable[[ClipInfo, int], Sampling]  # (clip, seed) -> frames; pure: the same arguments, the same answer


class NoFrames(SamplingError):
    """The clip has no video frame: it is sound only, or empty."""


class TooFewFrames(SamplingError):
    """The clip ends before the sampler has its frames, and the policy is ``error``; or it ends before the first of them."""


class SpelledSampler:
    """Base of the samplers here, all frozen dataclasses: printed as they are written in code and in TOML."""

    spelled: ClassVar[str]  # the name of the function that makes it

    def at(self, epoch: int) -> Sampler:
        """The sampler of ``epoch``: itself, but for ``by_epoch`` and what is wrapped around one."""
        return self

    @property
    def phased(self) -> bool:
        """Whether it is another sampler in another epoch."""
        return False

    @property
    def draws(self) -> bool:
        """Whether its answer depends on the seed, which differs by epoch."""
        return "random" in (getattr(self, "choice", ""), getattr(self, "start_s", ""))

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        raise NotImplementedError

    def __repr__(self) -> str:
        """What has no default by its place, the others by their names where they differ from it."""
        shown = []
        for field in fields(self):  # type: ignore[arg-type]
            value: Any = getattr(self, field.name)
            if field.default is MISSING:
                shown.append(repr(value))
            elif value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{self.spelled}({', '.join(shown)})"


def seen_frames(info: ClipInfo) -> int:
    """How many frames ``info`` has. Raises ``NoFrames`` without any."""
    if info.frames:
        return info.frames
    raise NoFrames("the clip has sound and no picture" if info.audio_rate_hz else "the clip has no frame")


# Arithmetic of places in a clip, as torchcodec's samplers do it; and what stands where the clip has ended.
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


_POLICIES = ("repeat_last", "wrap", "error")
_CHOICES = ("regular", "random")


def checked_policy(policy: str) -> str:
    return _one_of("policy", policy, _POLICIES)


def checked_choice(choice: str) -> str:
    return _one_of("choice", choice, _CHOICES)


def checked_number(name: str, value: Any, what: str, least: float, most: float = float("inf")) -> float:
    """``value`` as a number from ``least`` to ``most``. ``TypeError`` for what is none, ``ValueError`` outside, infinite included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes {what}; got {value!r}")
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} takes {what}; got {value!r}")
    return float(value)


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}; got {value!r}")
    return value
