"""Room for frames: none is made that this process cannot have."""

from __future__ import annotations

from typing import Any, Tuple

import numpy

from forebay_loader.videos.errors import UnsupportedVideo
from forebay_loader.videos.sources.memory_limit import memory_bytes

__all__ = ["room_for"]


def room_for(count: int, shape: Tuple[int, int, int]) -> Any:
    """``count`` frames of ``shape``, uint8, not filled. Raises ``UnsupportedVideo`` where they are more than the memory that this process
    may have: a size is a clip's own word, and a count may be that of all its frames."""
    wanted, there = count * shape[0] * shape[1] * shape[2], memory_bytes()
    if wanted <= there:
        try:
            return numpy.empty((count, *shape), numpy.uint8)
        except MemoryError:
            pass
    raise UnsupportedVideo(
        f"{count} frames of {shape[1]} x {shape[0]} pixels take {wanted / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB here:"
        " ask for fewer, or for smaller ones (size=)"
    )
