"""What the tests of room, clearing and files share: a shard that is here, and a disk that fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from support.house import SEGMENT, World, data_of

__all__ = ["failing", "stored"]


def failing(code: int, times: int = 10**9) -> Callable[..., Any]:
    """A leaf of the disk that fails the first ``times``, then does nothing."""
    left = [times]

    def leaf(*args: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, os.strerror(code))

    return leaf


async def stored(world: World, name: str, segments: int, seed: int = 0) -> bytes:
    """A shard that is here whole."""
    data = data_of(segments * SEGMENT, seed)
    world.origin.put(name, data)
    assert await world.get(name) == data
    await world.quiet()
    return data
