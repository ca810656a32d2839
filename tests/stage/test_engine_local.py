"""Tasks in processes: one that dies is tried again, and none outlives its driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import stage_work
from support.sidecar import environment, wait_until

from forebay_stage.engine_local import LocalEngine
from forebay_stage.errors import StageError
from forebay_stage.task import AssembleTask


def task(output: str, folder: Path | str = "") -> AssembleTask:
    return AssembleTask(output, (), str(folder), None)


def test_a_process_that_dies_costs_its_task_a_try(tmp_path: Path) -> None:
    """Every task is done once in the end, by two processes and the one that took the place of the third."""
    tasks = [task(name, tmp_path) for name in ("a", "once", "b", "c")]
    done = list(LocalEngine(2, stage_work.die_once).run(tasks))
    assert sorted(one.name for one in done) == ["a", "b", "c", "once"]
    assert (tmp_path / "once").exists()
    assert os.getpid() not in {one.samples for one in done}


def test_a_task_that_kills_three_processes_ends_the_stage(tmp_path: Path) -> None:
    """The error names the output, how it died, and what to do."""
    with pytest.raises(StageError, match="output always: the process that made always of it died 3 times, last by signal 9") as caught:
        list(LocalEngine(1, stage_work.die_once).run([task("always", tmp_path)]))
    assert "--processes" in caught.value.step


def test_an_error_of_a_task_comes_whole() -> None:
    """With its next step, from the other process."""
    with pytest.raises(StageError, match="output x: no") as caught:
        list(LocalEngine(1, stage_work.fail).run([task("x")]))
    assert caught.value.step == "stop asking"


def test_no_process_outlives_a_driver_that_is_killed(tmp_path: Path) -> None:
    """Nor its scratch folder."""
    (marks := tmp_path / "marks").mkdir()
    (scratch := tmp_path / "tmp").mkdir()
    program = (
        "from support import stage_work; from forebay_stage.engine_local import LocalEngine; from forebay_stage.task import AssembleTask\n"
        f"if __name__ == '__main__': list(LocalEngine(1, stage_work.wait_for_ever).run([AssembleTask('x', (), {str(marks)!r}, None)]))"
    )
    driver = subprocess.Popen([sys.executable, "-c", program], env=environment(tmp_path, TMPDIR=str(scratch)))
    try:
        (mark,) = wait_until(lambda: list(marks.iterdir()))
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: not Path(f"/proc/{mark.name}").exists() or _is_zombie(int(mark.name)))
    wait_until(lambda: not list(scratch.iterdir()))


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_driver_that_stops_early_leaves_no_process(tmp_path: Path) -> None:
    """Whoever closes the run need not wait for the others' tasks."""
    begun = time.monotonic()
    coming = LocalEngine(2, stage_work.die_once).run([task(name, tmp_path) for name in "abcdefgh"])
    pid = next(coming).samples
    coming.close()
    assert not Path(f"/proc/{pid}").exists()
    assert time.monotonic() - begun < 60
