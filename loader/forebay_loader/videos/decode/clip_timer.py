"""How long one clip may take: asked between two packets and two reads, which each have limits of their own."""

from __future__ import annotations

import time
from typing import Callable, Optional

from forebay_loader.videos.errors import VideoTimeout

__all__ = ["ClipTimer"]


class ClipTimer:
    """The time that is left for one clip. ``limit_s``: None is for ever; ``clip`` and ``shard`` name it in the error."""

    def __init__(self, limit_s: Optional[float], clip: str, shard: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clip, self._shard = clip, shard
        self._clock = clock
        self._began_s = clock()

    @property
    def left_s(self) -> Optional[float]:
        """Seconds until the time is over, below 0 once it is; None is for ever."""
        return None if self._limit_s is None else self._began_s + self._limit_s - self._clock()

    def check(self) -> None:
        """Raise ``VideoTimeout`` once the time is over."""
        if self._limit_s is not None and self._clock() - self._began_s > self._limit_s:
            raise VideoTimeout(f"took longer than {self._limit_s:g} s (time_limit_s)", self._clip, self._shard)
