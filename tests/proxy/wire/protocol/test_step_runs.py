"""Runs one after the other inside one Slurm step have names of their own; the tasks of each agree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay_proxy.wire.protocol.runfile import process_start_time
from forebay_proxy.wire.protocol.step_runs import FILE_NAME, told_apart

pytestmark = pytest.mark.another_python


@contextmanager
def process() -> Iterator[int]:
    """One that lives until the block ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running.pid
        running.communicate(b"\n")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def told(place: Path, task: int, pid: int, step: str = "7.0") -> str:
    return told_apart(step, {"XDG_RUNTIME_DIR": str(place), "SLURM_PROCID": str(task)}, pid)


def own(pid: int) -> str:
    return f"{pid}-{process_start_time(pid)}"


def test_the_next_run_has_another_name_that_its_tasks_share(place: Path) -> None:
    """The first one's is the step's alone, also of processes of one task side by side; whoever begins the next names it."""
    with process() as first, process() as second, process() as beside:
        assert [told(place, 0, first), told(place, 1, second), told(place, 1, beside)] == ["", "", ""]
        assert told(place, 0, first, step="7.1") == ""
    with process() as first, process() as second:
        assert [told(place, 1, second), told(place, 0, first)] == [own(second)] * 2


def test_a_task_that_is_back_begins_the_next_though_another_is_still_inside(place: Path) -> None:
    """The one that is late follows."""
    with process() as late:
        with process() as first:
            assert [told(place, 0, first), told(place, 1, late)] == ["", ""]
        with process() as again:
            assert told(place, 0, again) == own(again)
            with process() as follows:
                assert told(place, 2, follows) == own(again)


def test_what_a_kill_tore_hides_no_run(place: Path) -> None:
    """Then the name of the step alone may have been given already."""
    (place / FILE_NAME).write_text('{"7.0": {"told": "", "ta')
    with process() as first, process() as second:
        assert [told(place, 0, first), told(place, 1, second)] == [own(first)] * 2


@pytest.mark.parametrize("text", ["7", "[]", '{"7.0": {}}', '{"7.0": {"told": "", "tasks": {"0": [["a", 1]]}}}', "\x00"])
def test_any_other_nonsense_is_overwritten(place: Path, text: str) -> None:
    """Nothing in the file raises."""
    (place / FILE_NAME).write_text(text)
    assert told(place, 0, os.getpid()) == told(place, 1, os.getpid()) == own(os.getpid())


def test_where_nothing_can_be_written_each_process_is_a_run(place: Path) -> None:
    """A link of somebody else's is not followed."""
    (place / FILE_NAME).symlink_to(place / "elsewhere")
    assert told(place, 0, os.getpid()) == own(os.getpid())
    assert not (place / "elsewhere").exists()


def test_the_file_is_ours_alone_and_bounded(place: Path) -> None:
    """64 steps are remembered."""
    for step in range(70):
        told(place, 0, os.getpid(), step=f"{step}.0")
    path = place / FILE_NAME
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().count('"told"') == 64
