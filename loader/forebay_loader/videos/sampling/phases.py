"""Another sampler in another phase of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Mapping

from forebay_loader.base.argument_types import whole
from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling.sampler import Sampler, Sampling, SpelledSampler

__all__ = ["by_epoch", "drawn", "for_epoch", "phased"]


def by_epoch(phases: Mapping[int, Sampler]) -> Sampler:
    """A sampler that changes by epoch. In each epoch it is the one with the greatest number that is not above the epoch.

    The pipeline knows the epoch, the sampler does not: ``for_epoch(sampler, epoch)`` gives the sampler of an epoch.

    Args:
        phases: First epoch to sampler, such as ``{0: uniform(8), 10: keyframes(8)}``. One of them is from 0.

    Returns:
        The sampler, for ``fb.video``.

    Raises:
        TypeError: ``phases`` is no such table. Also if the sampler is called without an epoch: any answer would be right in one epoch only.
        ValueError: No phase begins at 0.

    Examples:
        >>> from forebay_loader.videos.sampling import keyframes, uniform
        >>> clips = fb.video(fb.by_epoch({0: uniform(8), 10: keyframes(8)}), size=224)
    """
    found = {whole("by_epoch", epoch, "epochs from 0", 0): sampler for epoch, sampler in dict(phases).items()}
    if 0 not in found:
        raise ValueError(f"by_epoch needs a sampler from epoch 0; got epochs {sorted(found)}")
    for epoch, sampler in found.items():
        if not callable(sampler):
            raise TypeError(f"by_epoch takes samplers such as uniform(8); got {sampler!r} for epoch {epoch}")
    return PhasedSampler(tuple(sorted(found.items(), key=lambda phase: phase[0])))


def for_epoch(sampler: Sampler, epoch: int) -> Sampler:
    """The sampler of ``epoch`` in ``sampler``: what ``by_epoch`` says, wrapped or not; any other as it is. Never raises."""
    at = getattr(sampler, "at", None)
    return at(epoch) if callable(at) else sampler


def phased(sampler: Sampler) -> bool:
    """Whether ``sampler`` is another one in another epoch. Never raises."""
    return bool(getattr(sampler, "phased", False))


def drawn(sampler: Sampler) -> bool:
    """Whether what ``sampler`` answers may depend on the seed; of a user's own function nobody knows, so it may. Never raises."""
    return bool(getattr(sampler, "draws", True))


@dataclass(frozen=True, repr=False)
class PhasedSampler(SpelledSampler):
    """As ``by_epoch`` says."""

    spelled: ClassVar[str] = "by_epoch"
    phases: tuple[tuple[int, Sampler], ...]

    def __repr__(self) -> str:
        return f"by_epoch({{{', '.join(f'{epoch}: {sampler!r}' for epoch, sampler in self.phases)}}})"

    def at(self, epoch: int) -> Sampler:
        """The sampler of ``epoch``."""
        begun = [sampler for first, sampler in self.phases if first <= epoch] or [self.phases[0][1]]
        return for_epoch(begun[-1], epoch)

    @property
    def phased(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        return any(drawn(sampler) for _, sampler in self.phases)

    def __call__(self, info: ClipInfo, seed: int) -> Sampling:
        """Raises ``TypeError``: it is asked for an epoch's sampler first."""
        raise TypeError(f"{self!r} is asked without an epoch; for_epoch(sampler, epoch) gives the sampler of one")
