"""The Ray engine without Ray: what is given to it and what comes back, with a Ray that does tasks one after the other, here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import stage_work
from support.cli import invoke
from support.sidecar import environment

from forebay_proxy.cli.options import Seams
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_stage import engine_ray
from forebay_stage.engine_ray import RayEngine, run_on_node
from forebay_stage.errors import StageError, StageRefused
from forebay_stage.task import AssembleTask, Finished


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """``lost``: outputs whose worker dies whenever Ray tries."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")

    def __init__(self, *lost: str) -> None:
        self.lost, self.waiting, self.cancelled, self.options_of = lost, [], [], dict[str, Any]()

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, function: Any) -> Any:
        def options(**given: Any) -> Any:
            self.options_of = given
            return SimpleNamespace(remote=lambda *arguments: self._given(function, arguments))

        return SimpleNamespace(options=options)

    def _given(self, function: Any, arguments: Any) -> int:
        self.waiting.append((function, arguments))
        return len(self.waiting) - 1

    def wait(self, waiting: list[int]) -> tuple[list[int], list[int]]:
        return waiting[:1], waiting[1:]

    def get(self, number: int) -> Any:
        function, arguments = self.waiting[number]
        if arguments[1].output in self.lost:
            raise RayError("The worker died unexpectedly.\nCheck its log.")
        return function(*arguments)

    def cancel(self, number: int, force: bool) -> None:
        self.cancelled.append(number)


@pytest.fixture(autouse=True)
def no_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_ray, "_own_scratch", lambda: 0)
    monkeypatch.setattr(engine_ray._SIDECAR, "held", lambda job: "")


def ray(monkeypatch: pytest.MonkeyPatch, *lost: str) -> FakeRay:
    made = FakeRay(*lost)
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def task(output: str, folder: Path | str = "") -> AssembleTask:
    return AssembleTask(output, (), str(folder), None)


def refuse(task: AssembleTask) -> Finished:
    raise ConfigError("--map mine:clean: it cannot be imported")


def test_ray_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where it is not installed: exit code 2 with what to install, before anything is written."""
    monkeypatch.setitem(sys.modules, "ray", None)
    done = invoke("stage", "http://127.0.0.1:9/a.tar", str(tmp_path / "out"), "--engine", "ray", seams=Seams())
    assert done.exit_code == ExitCode.CANNOT_BEGIN
    assert "pip install 'forebay[ray]'" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_an_address_is_of_ray(tmp_path: Path) -> None:
    """It is no option of the local engine."""
    done = invoke("stage", "http://127.0.0.1:9/a.tar", str(tmp_path / "out"), "--address", "10.0.0.5:6379", seams=Seams())
    assert done.exit_code == ExitCode.CANNOT_BEGIN
    assert "--engine ray" in done.stderr


def test_tasks_are_taken_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shuffle's tasks list its samples: they are never all there. What is left when the stage ends early is cancelled."""
    made, taken = ray(monkeypatch), list[int]()

    def tasks() -> Iterator[AssembleTask]:
        for number in range(1000):
            taken.append(number)
            yield task(str(number))

    coming = RayEngine(None, None, "job", stage_work.annotated).run(tasks())
    assert [next(coming).name for _ in range(3)] == ["0", "1", "2"]
    assert len(taken) == 64 + 2
    assert made.options_of["max_retries"] == 2
    coming.close()
    assert made.cancelled == list(range(3, 66))


def test_processes_bound_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--processes``: at most so many at once."""
    made = ray(monkeypatch)
    coming = RayEngine(None, 2, "job", stage_work.annotated).run(map(task, "abcd"))
    assert next(coming).name == "a"
    assert len(made.waiting) == 2
    assert [one.name for one in coming] == ["b", "c", "d"]


def test_a_lost_worker_is_named_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ray's own tries."""
    ray(monkeypatch, "b")
    with pytest.raises(StageError, match=r"output b: .* was lost 3 times, last: The worker died unexpectedly\.$"):
        list(RayEngine(None, None, "job", stage_work.annotated).run(map(task, "abc")))


def test_an_error_of_a_task_comes_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its next step."""
    ray(monkeypatch)
    with pytest.raises(StageError, match="output x: no") as caught:
        list(RayEngine(None, None, "job", stage_work.fail).run([task("x")]))
    assert caught.value.step == "stop asking"


def test_a_step_that_a_node_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is named, and how code comes to nodes."""
    ray(monkeypatch)
    with pytest.raises(StageRefused, match=r"node 10\.0\.0\.7: --map mine:clean") as caught:
        list(RayEngine(None, None, "job", refuse).run([task("x")]))
    assert "--working-dir" in caught.value.step


def test_a_node_without_a_sidecar_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And its tasks are done all the same."""
    ray(monkeypatch)
    monkeypatch.setattr(engine_ray._SIDECAR, "held", lambda job: "no room")
    assert len(list(RayEngine(None, None, "job", stage_work.annotated).run(map(task, "abc")))) == 3
    assert capsys.readouterr().err.count("node 10.0.0.7 reads its shards directly: no room") == 1


def test_a_node_must_see_the_destination(tmp_path: Path) -> None:
    """A folder of the driver's machine alone would have holes."""
    with pytest.raises(StageRefused, match="does not see the stage at"):
        run_on_node(task("00000.tar", tmp_path))


def test_what_killed_workers_left_is_removed(tmp_path: Path) -> None:
    """Their scratch folders, but no folder of one that lives."""
    program = "from forebay_stage.engine_ray import _own_scratch; import sys; _own_scratch(); print(flush=True); sys.stdin.read()"
    begin = [sys.executable, "-c", program]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment(tmp_path, TMPDIR=str(tmp_path))}
    folders = lambda: set(tmp_path.glob("forebay-stage-ray-*"))  # noqa: E731
    with subprocess.Popen(begin, **pipes) as killed, subprocess.Popen(begin, **pipes) as living:
        assert killed.stdout is not None
        assert living.stdout is not None
        assert killed.stdout.readline() == living.stdout.readline() == b"\n"
        both = folders()
        killed.kill()
        killed.wait()
        with subprocess.Popen(begin, **pipes) as third:
            assert third.stdout is not None
            third.stdout.readline()
            assert len(both) == len(folders()) == 2
            assert len(both & folders()) == 1
            assert third.stdin is not None
            third.stdin.close()
        assert living.stdin is not None
        living.stdin.close()
