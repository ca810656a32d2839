"""When the programs that name no job began to read a folder: what stands in for their job, so that a new run asks the origin anew. Pure.

A plain HTTP client says neither who it is nor which run it belongs to. Reads of one folder that follow each other closely are one *burst*;
after a pause the next one may be another run, and data may have been replaced in between. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Bursts"]

# A program that ends and is started again needs longer than this to import webdataset or torch. It is also what a pause of a slow reader
# costs: no more than one small request to the origin every two seconds.
PAUSE_S = 2.0
MOST = 4096  # folders; one that is forgotten begins anew


@dataclass(slots=True)
class _Burst:
    began: float
    active: float  # when somebody last came or left
    inside: int = 0


class Bursts:
    """By folder (a shard's URL up to the last slash)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bursts: OrderedDict[str, _Burst] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Bursts of {len(self._bursts)} folders>"

    @contextmanager
    def inside(self, group: str) -> Iterator[None]:
        """A reader without a name opens and reads a shard of ``group``, for the length of the ``with``."""
        now = self._clock()
        burst = self._bursts.get(group)
        if burst is None or (not burst.inside and now - burst.active > PAUSE_S):
            burst = self._bursts[group] = _Burst(now, now)
            self._forget()
        self._bursts.move_to_end(group)
        burst.inside += 1
        burst.active = now
        try:
            yield
        finally:
            burst.inside -= 1
            burst.active = self._clock()

    def began(self, group: str) -> float:
        """When the present burst began; long ago if there is none."""
        burst = self._bursts.get(group)
        return float("-inf") if burst is None else burst.began

    def _forget(self) -> None:
        if len(self._bursts) > MOST:
            self._bursts.popitem(last=False)
