"""Frames that decode alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.arguments import checked_choice, checked_policy
from forebay_loader.videos.sampling.draws import Draws
from forebay_loader.videos.sampling.positions import even_places, filled
from forebay_loader.videos.sampling.sampler import Sampler, Sampling, SpelledSampler, seen_frames

__all__ = ["keyframes"]


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
