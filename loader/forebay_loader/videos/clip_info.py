"""What is known of a clip before a frame of it is decoded: the facts that samplers choose frames by."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from fractions import Fraction
from typing import Optional

__all__ = ["ClipAddress", "ClipInfo"]


@dataclass(frozen=True)
class ClipInfo:
    """One clip, its frames numbered from 0 in the order in which they are shown. An audio clip has ``frames`` 0 and ``audio_rate_hz`` > 0.

    - ``frames``: how many video frames there are.
    - ``times_s``: ``array("d")``, when each frame is shown: seconds from the clip's begin, ascending, the first >= 0. Frames of variable
      rate differ in their distance, nothing else.
    - ``duration_s``: when the last frame ends; of an audio clip, when its sound ends.
    - ``width``, ``height``: pixels as they are coded, before the rotation.
    - ``rotation_deg``: clockwise turn that shows the clip upright: 0, 90, 180 or 270; ``mirrored``: before that turn the coded picture is
      mirrored top to bottom.
    - ``keyframes``: numbers of the frames that decoding can begin at, ascending.
    - ``audio_rate_hz``: samples a second of the first audio track; 0 without one.
    - ``motion``: ``array("f")``, how much the picture changes, 0 to 1; value k of n is of the clip's time from ``duration_s * k / n`` to
      ``duration_s * (k + 1) / n``. None where no scan has looked.
    - ``audio_energy``: ``array("f")``, peaks of the sound (RMS of 20 ms, 0 to 1) in the same kind of spans. None where no scan has looked.

    Values are compared; a clip is no key of a dict. Raises ``ValueError`` where the counts contradict each other.
    """

    frames: int
    times_s: array[float]
    duration_s: float
    width: int
    height: int
    rotation_deg: int = 0
    keyframes: tuple[int, ...] = ()
    audio_rate_hz: int = 0
    motion: Optional[array[float]] = None
    audio_energy: Optional[array[float]] = None
    mirrored: bool = False

    def __post_init__(self) -> None:
        """Cheap checks only: a table of a million clips makes one of these for each look-up."""
        if self.frames < 0 or len(self.times_s) != self.frames:
            raise ValueError(f"{len(self.times_s)} times for {self.frames} frames")
        if self.keyframes and not 0 <= self.keyframes[0] <= self.keyframes[-1] < self.frames:
            raise ValueError(f"keyframes {self.keyframes[0]} to {self.keyframes[-1]} of {self.frames} frames")
        if not 0 <= self.duration_s < math.inf:
            raise ValueError(f"a duration of {self.duration_s} s")
        if self.rotation_deg not in (0, 90, 180, 270):
            raise ValueError(f"a rotation of {self.rotation_deg} degrees; pictures are turned by 0, 90, 180 or 270")

    @property
    def begin_s(self) -> float:
        """When the first frame is shown; 0.0 without a frame."""
        return self.times_s[0] if self.frames else 0.0

    @property
    def fps(self) -> float:
        """Frames a second on average, from the begin of the first to the end of the last; 0.0 where that is no time at all.

        Seconds are rounded fractions: what is 25 or 30000 / 1001 but for that is exactly so.
        """
        shown_s = self.duration_s - self.begin_s
        if shown_s <= 0:
            return 0.0
        near = float(Fraction(self.frames / shown_s).limit_denominator(1001))
        return near if math.isclose(near, self.frames / shown_s, rel_tol=1e-9) else self.frames / shown_s


@dataclass(frozen=True)
class ClipAddress:
    """The object ``url``; or, where ``suffix`` is not "", that member of sample ``number`` of the shard ``url``.

    - ``etag``: the version that is meant.
    - ``name``, ``shard``: what errors say; neither holds a token.
    """

    url: str
    etag: str
    name: str
    shard: str = ""
    number: int = 0
    suffix: str = ""
