"""Memory that a training process shares with its workers."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

import pytest

from forebay_loader.base.shared_memory import SharedPart, lives

KEPT: list[SharedPart] = []


def keep(parts: list[SharedPart]) -> None:
    KEPT[:] = parts


def write(number: int, data: bytes) -> int:
    """Into the part of that number; how many descriptors this process has for all of them."""
    with KEPT[number].locked():
        KEPT[number].write(data)
    SharedPart(10).write(b"a part of this process alone")
    return len({part._descriptor for part in KEPT})


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_parts_travel_to_processes(start: str) -> None:
    """Each is the same memory there, whichever way they are started; all of them take one descriptor."""
    parts = [SharedPart(100) for _ in range(300)]
    with multiprocessing.get_context(start).Pool(1, keep, (parts,)) as pool:
        assert pool.apply(write, (7, b"seven")) == 1
    assert [part.read(5).strip(b"\0") for part in parts[6:9]] == [b"", b"seven", b""]


def test_a_part_is_never_anothers() -> None:
    """Also where the one that had it is gone: a worker may still write there."""
    first = SharedPart(10)
    first.write(b"old")
    before = first._start
    del first
    assert (SharedPart(10).read(3).strip(b"\0"), SharedPart(10)._start > before) == (b"", True)


def test_a_forks_child_has_a_file_of_its_own() -> None:
    """For what it makes; its parent's next part lies where the child's would have been."""
    part = SharedPart(10)
    pid = os.fork()
    if not pid:
        SharedPart(10).write(b"child")
        part.write(b"told")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (part.read(4), SharedPart(10).read(5).strip(b"\0")) == (b"told", b"")


def test_which_processes_live() -> None:
    """This one, and that of another user, which may not be signalled (the machine's first is root's); none that has ended."""
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(60)
    assert [lives(pid) for pid in (os.getpid(), 1, ended.pid)] == [True, True, False]


def test_a_part_may_be_taken_again_within() -> None:
    """As where the collector ends a pass amid it."""
    one, other = SharedPart(8), SharedPart(8)
    with one.locked(), other.locked(), one.locked():
        one.write(b"within")
    assert one.read(6) == b"within"
