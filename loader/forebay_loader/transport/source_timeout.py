"""How long a way may still be asked in vain. Pure but for ``DEAD``, this process's memory of a sidecar that was not there."""

from __future__ import annotations

import random
import time
from typing import Callable, Optional

from forebay_loader.base.timeouts import Limits
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import find_endpoint

__all__ = ["DEAD", "SourceTimeout"]

KNOWN_DEAD_S = 30.0  # after one full wait for a dead sidecar, each open for so long asks it once and does not wait again


class SourceTimeout:
    """The clock of one way: it starts with the first trouble and is forgotten as soon as a byte arrives. ``clock`` counts seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self.arrived()

    def arrived(self) -> None:
        """A byte came: all trouble is forgotten."""
        self._last_s = self._clock()
        self.another()

    def another(self) -> None:
        """Another way is taken: its trouble is its own, but the silence goes on."""
        self._began_s: Optional[float] = None
        self._tries = 0

    @property
    def troubled_s(self) -> float:
        """Since the first trouble; 0 without any."""
        return 0.0 if self._began_s is None else self._clock() - self._began_s

    @property
    def waited_s(self) -> float:
        """Since the last byte, or the beginning."""
        return self._clock() - self._last_s

    @property
    def left_s(self) -> float:
        """For how much longer silence is borne."""
        return max(0.0, self._limits.patience_s - self.waited_s)

    def bears_silence(self) -> bool:
        return self.left_s > 0

    def pause(self, trouble: Unanswered, limit_s: float) -> Optional[float]:
        """Seconds to wait before the next try; None when ``limit_s`` have passed since the first trouble."""
        now = self._clock()
        if self._began_s is None:
            self._began_s = now
        left_s = self._began_s + limit_s - now
        if left_s <= 0:
            return None
        wish_s = trouble.retry_after_s
        if wish_s is None:
            wish_s = min(self._limits.pause_s * 2 ** min(self._tries, 60), self._limits.longest_pause_s)
            wish_s *= random.uniform(0.5, 1.0)  # noqa: S311  # spreads a herd, keeps no secret
        self._tries += 1
        return min(wish_s, left_s)


class _Dead:
    """Whether this process has waited in vain for the present sidecar a short while ago."""

    def __init__(self) -> None:
        self.lived = False  # one has answered this process, or the one it was forked from
        self.forget()

    def answered(self) -> None:
        """It is there."""
        self.lived = True
        self.forget()

    def forget(self) -> None:
        self._until_s = float("-inf")
        self._where: object = None

    def found(self) -> None:
        self._until_s = time.monotonic() + KNOWN_DEAD_S
        self._where = find_endpoint()

    def known(self) -> bool:
        return time.monotonic() < self._until_s and find_endpoint() == self._where


DEAD = _Dead()
