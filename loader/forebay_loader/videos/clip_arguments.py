"""What ``fb.video`` was asked for, as far as it is about one clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, FrozenSet, Optional, Union

from forebay_loader.videos.decode.frame_size import Size

__all__ = ["ClipArguments"]


@dataclass(frozen=True)
class ClipArguments:
    """As ``fb.video`` says; ``sampling`` is a sampler, or None for all frames."""

    sampling: Any
    size: Size
    audio: Union[bool, int]
    members: FrozenSet[str]
    seed: int
    threads: int
    time_limit_s: Optional[float]
    metadata: Any  # a ClipMetadata, whose module needs numpy; or None
    as_torchvision: bool = False  # sound as its read_video gives it: all of the clip's, whatever the frames; none where it cannot be read
