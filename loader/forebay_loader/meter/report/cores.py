"""How much of the processor this node, or this container, has left: measured between two looks."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Callable, Iterable, Optional, Tuple

__all__ = ["CoreLooks", "CoreUse"]

_CGROUP = "/sys/fs/cgroup"
_TICKS = "SC_CLK_TCK"


@dataclass(frozen=True)
class CoreUse:
    """``count`` cores that this process may use (a part of one where a container is bounded so), ``idle`` for that part of an interval."""

    count: float
    idle: float


class CoreLooks:
    """What came between this look and the one before. ``read`` gives the text of a file, or raises ``OSError``."""

    def __init__(self, read: Optional[Callable[[str], str]] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read or _read
        self._clock = clock
        self._before: Optional[Tuple[float, float]] = None

    def look(self) -> Optional[CoreUse]:
        """None at the first look, and where the system does not tell."""
        try:
            count, busy_s = self._bounded() or self._of_cores(allowed())
        except (OSError, ValueError, IndexError):
            return None
        now = self._clock()
        before, self._before = self._before, (now, busy_s)
        if before is None or now <= before[0]:
            return None
        used = (busy_s - before[1]) / (count * (now - before[0]))
        return CoreUse(count, min(1.0, max(0.0, 1.0 - used)))

    def _bounded(self) -> Optional[Tuple[float, float]]:
        """Of a container that may not use all cores: (how many, seconds that it used)."""
        try:
            quota, period = self._read(f"{_CGROUP}/cpu.max").split()
            used = dict(line.split() for line in self._read(f"{_CGROUP}/cpu.stat").splitlines())
        except (OSError, ValueError):
            return None  # no control group of version 2
        return None if quota == "max" else (int(quota) / int(period), int(used["usage_usec"]) / 1e6)

    def _of_cores(self, cores: Iterable[int]) -> Tuple[float, float]:
        """(how many of these cores there are, seconds that they were busy, whoever used them)."""
        names = {f"cpu{number}" for number in cores}
        rows = [line.split() for line in self._read("/proc/stat").splitlines()]
        times = [[int(each) for each in row[1:9]] for row in rows if row and row[0] in names]
        if not times:
            raise ValueError("no core of ours is listed")
        busy = sum(sum(each) - each[3] - each[4] for each in times)  # without idle, and without idle while a disk was waited for
        return float(len(times)), busy / os.sysconf(_TICKS)


def allowed() -> Iterable[int]:
    """The cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
