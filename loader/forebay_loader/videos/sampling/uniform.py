"""Frames evenly spread over the whole clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.arguments import checked_choice
from forebay_loader.videos.sampling.draws import Draws
from forebay_loader.videos.sampling.positions import even_places, marked_repeats
from forebay_loader.videos.sampling.sampler import Sampler, Sampling, SpelledSampler, seen_frames

__all__ = ["uniform"]


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
