"""What is left of the processor."""

from __future__ import annotations

import os

import pytest

from forebay_loader.meter.report.cores import CoreLooks, CoreUse, allowed


class Machine:
    """``/proc/stat`` and a control group, as told."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.now_s = 0.0
        self.looks = CoreLooks(self.read, lambda: self.now_s)

    def read(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def passed(self, seconds: float, busy_s: dict[int, float]) -> CoreUse | None:
        self.now_s += seconds
        tick = os.sysconf("SC_CLK_TCK")
        self.files["/proc/stat"] = "cpu  1 2 3 4 5 6 7 8 9 10\n" + "".join(
            f"cpu{core} {int(busy_s.get(core, 0) * tick)} 0 0 777 {int(self.now_s * tick)} 0 0 0 0 0\n"
            for core in range(max(allowed()) + 2)
        )
        return self.looks.look()


def test_idle_cores_are_counted() -> None:
    """Those this process may run on; others, and what waits for a disk, are not busy."""
    machine, mine = Machine(), sorted(allowed())
    assert machine.passed(1, {}) is None
    use = machine.passed(10, {mine[0]: 10.0, max(mine) + 1: 10.0})
    assert use is not None
    assert use.count == len(mine)
    assert use.idle == pytest.approx(1 - 1 / len(mine), abs=0.01)


def test_a_container_has_what_it_was_given() -> None:
    """Two and a half cores of a large machine, of which it used two."""
    machine = Machine()
    machine.files["/sys/fs/cgroup/cpu.max"] = "250000 100000\n"
    for used_us in (0, 20_000_000):
        machine.files["/sys/fs/cgroup/cpu.stat"] = f"usage_usec {used_us}\nuser_usec 1\n"
        use = machine.passed(10, {})
    assert use is not None
    assert (use.count, use.idle) == (2.5, pytest.approx(0.2))


def test_where_the_system_does_not_tell_nothing_is_said() -> None:
    """No ``/proc``, or one of another shape."""
    machine = Machine()
    assert machine.looks.look() is None
    machine.files["/proc/stat"] = "nonsense\n"
    assert machine.looks.look() is None
