"""The gloo group of a ballot: votes under MIN, and ends of a process with a vote on its way that never abort it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.warm_python import python_program

pytest.importorskip("torch")

_RANK = """
import atexit, ctypes, sys, time

rank, meeting = int(sys.argv[1]), sys.argv[2]
if rank == 0:  # these run last: until a byte comes this thread keeps the interpreter to itself, and then ends it
    atexit.register(ctypes.PyDLL(None).read, 0, ctypes.create_string_buffer(1), 1)
    atexit.register(print, "ending", flush=True)

import torch.distributed as dist
from forebay_loader.loading.step_vote import _Line

made = _Line(dist.FileStore(meeting, 2), rank, 2, 60.0)
REST = [0] * 7
made.send([3 + rank, -rank, *REST])
print(made.wait(60)[:2], flush=True)
if rank == 1:
    sys.stdin.readline()
made.send([rank, 5, *REST])
if rank == 1:
    print(made.wait(60)[:2], flush=True)
made.close()
del made
"""


def rank(number: int, meeting: Path) -> subprocess.Popen[str]:
    """One of two; how the interpreter of the second one ends is not asked."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = ["-c", _RANK, str(number), str(meeting)]
    if number == 1:
        return python_program(arguments, environ, meeting.parent, text=True, **pipes)
    return subprocess.Popen([sys.executable, *arguments], env=environ, text=True, **pipes)


def test_an_answer_that_comes_while_python_ends(tmp_path: Path) -> None:
    """A vote whose loader is gone lands after the last line of Python has run: the thread that carried it does not ask for Python."""
    first, second = ranks = [rank(number, tmp_path / "meeting") for number in range(2)]
    try:
        for one in ranks:
            assert one.stdout is not None
            assert one.stdout.readline() == "[3, -1]\n"
        assert first.stdout is not None
        assert first.stdout.readline() == "ending\n"
        assert second.communicate("\n", timeout=240) == ("[0, 5]\n", "")
        assert first.communicate("\n", timeout=240) == ("", "")
        assert [one.returncode for one in ranks] == [0, 0]
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
