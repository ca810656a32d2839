"""A program that hangs in a test is told from one that is slow: by its stacks, and those of what it has started."""

import os
import re
import sys
from pathlib import Path

import pytest
from support import stuck_programs
from support.stuck_programs import run_in_time

PROGRAM = """
import subprocess, sys, tempfile, time

def the_parent_waits():
    print("act 1", flush=True)
    with tempfile.TemporaryFile() as noise:
        child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stderr=noise)
        print("child", child.pid, flush=True)
        child.wait()

the_parent_waits()
"""
CHILD = """
import time

def the_child_sleeps():
    time.sleep(600)

the_child_sleeps()
"""


def is_gone(process: int) -> bool:
    """Or nobody has asked yet how it ended."""
    try:
        return not Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return True


def test_where_each_process_stands_is_said() -> None:
    """What was printed, the parent's stack, and its child's, whose stderr is a file without a name; and none of them is left."""
    with pytest.raises(AssertionError, match="did not end within 3 s") as stuck:
        run_in_time([sys.executable, "-c", PROGRAM, CHILD], os.environ, within_s=3)
    said = str(stuck.value)
    assert "act 1\n" in said
    assert "in the_parent_waits" in said
    assert "in the_child_sleeps" in said
    child = re.search(r"^child (\d+)$", said, re.MULTILINE)
    assert child
    assert is_gone(int(child[1]))


def test_what_is_left_behind_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that goes on is named, with its stack, and ended."""
    monkeypatch.setattr(stuck_programs, "DUMPED_S", 3.0)
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}])"
    with pytest.raises(AssertionError, match="ended with 0 and left processes behind") as left:
        run_in_time([sys.executable, "-c", leaves], os.environ, within_s=60)
    assert "in the_child_sleeps" in str(left.value)


def test_what_ends_in_time_is_told_whole() -> None:
    """Its code, and both streams."""
    done = run_in_time([sys.executable, "-c", "import sys; print('out'); sys.exit('why')"], os.environ, within_s=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "why\n")
