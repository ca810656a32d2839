"""A table that forgets: each item holds for a time, and there are never more than so many."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Expiring"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Expiring(Generic[K, V]):
    """Items in the order in which they were last put; of more than ``most`` the oldest goes."""

    def __init__(self, seconds: float, most: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._items: dict[K, tuple[V, float]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, key: K, value: V) -> None:
        """Remember it from now on."""
        self._items.pop(key, None)
        self._items[key] = value, self._clock()
        if len(self._items) > self._most:
            del self._items[next(iter(self._items))]

    def get(self, key: K, within_s: float = float("inf")) -> V | None:
        """What was put no longer ago than it holds, and than ``within_s``; None: nothing."""
        known = self._items.get(key)
        if known is None or self._clock() >= known[1] + min(self._seconds, within_s):
            return None
        return known[0]

    def expire(self) -> None:
        """Drop what holds no longer."""
        until = self._clock() - self._seconds
        while self._items and self._items[oldest := next(iter(self._items))][1] <= until:
            del self._items[oldest]
