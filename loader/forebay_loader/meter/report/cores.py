"""How many cores of this node, or of this container, were idle between two measurements."""

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
    """``count`` cores that this process may use (may be a fraction in a container); they were idle for the fraction ``idle`` of an
    interval.
    """

    count: float
    idle: float


class CoreLooks:
    """Measures the use since the previous measurement. ``read`` returns the text of a file, or raises ``OSError``."""

    def __init__(self, read: Optional[Callable[[str], str]] = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read or _read
        self._clock = clock
        self._before: Optional[Tuple[float, float]] = None

    def look(self) -> Optional[CoreUse]:
        """The use since the last call; None at the first call, and if the system does not tell."""
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
        """(cores, seconds used) of a container with a CPU limit; None without one."""
        try:
            quota, period = self._read(f"{_CGROUP}/cpu.max").split()
            used = dict(line.split() for line in self._read(f"{_CGROUP}/cpu.stat").splitlines())
        except (OSError, ValueError):
            return None  # no cgroup v2
        return None if quota == "max" else (int(quota) / int(period), int(used["usage_usec"]) / 1e6)

    def _of_cores(self, cores: Iterable[int]) -> Tuple[float, float]:
        """(number of ``cores``, seconds that they were busy for any process)."""
        names = {f"cpu{number}" for number in cores}
        rows = [line.split() for line in self._read("/proc/stat").splitlines()]
        times = [[int(each) for each in row[1:9]] for row in rows if row and row[0] in names]
        if not times:
            raise ValueError("no core of ours is listed")
        busy = sum(sum(each) - each[3] - each[4] for each in times)  # without idle and iowait
        return float(len(times)), busy / os.sysconf(_TICKS)


def allowed() -> Iterable[int]:
    """The cores that this process may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()
