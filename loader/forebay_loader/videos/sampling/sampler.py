"""What a sampler is, what it answers, and what it raises."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Callable, ClassVar, NamedTuple

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import NotScanned, SamplingError

__all__ = ["NoFrames", "NotScanned", "Sampler", "Sampling", "SamplingError", "SpelledSampler", "TooFewFrames", "seen_frames"]


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
