"""Names of readers, as launchers leave them behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay_loader.identity.reader_name import (
    NameClaims,
    OwnName,
    ensure_job,
    next_opener,
    rank_of,
    reader_name,
    worker_of,
)
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.protocol.runfile import process_start_time


@pytest.mark.parametrize(
    ("environ", "job"),
    [
        ({"FOREBAY_JOB": "a", "SLURM_JOB_ID": "7"}, "a"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "TORCHELASTIC_RUN_ID": "r"}, "7.2"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "16"}, "7.3"),
        ({"FOREBAY_JOB": "a/b c"}, "a_b_c"),
        ({"FOREBAY_JOB": ".."}, "_"),
        ({"FOREBAY_JOB": "x" * 500}, "x" * 64),
    ],
)
def test_job_from_a_launcher(environ: dict[str, str], job: str, tmp_path: Path) -> None:
    """The launcher's own name for the job is used, made fit for a path."""
    tmp_path.chmod(0o700)
    environ = {**environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    assert ensure_job(environ) == job
    assert ensure_job(environ) == job


@pytest.mark.parametrize(
    ("environ", "called"),
    [
        ({"TORCHELASTIC_RUN_ID": "100"}, "100"),
        ({"TORCHELASTIC_RUN_ID": "100", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, "100"),
        ({"TORCHELASTIC_RUN_ID": "x" * 90}, "x" * 30),
        ({"SLURM_JOB_ID": "5"}, "5"),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "4294967290"}, "5"),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "4294967291", "TORCHELASTIC_RUN_ID": "100"}, "5"),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "5.0"),
    ],
    ids=["run id", "one rank", "long run id", "allocation", "shell of salloc", "batch script", "srun --pty"],
)
def test_what_outlives_a_run_is_no_run(environ: dict[str, str], called: str) -> None:
    """A given id, an allocation or a shell may hold many runs: the process tells them apart, and its children inherit the name."""
    job = ensure_job(environ)
    assert job.startswith(called)
    assert job.endswith(f"-{os.getpid()}-{process_start_time(os.getpid())}")
    assert len(job) <= 64
    assert environ["FOREBAY_JOB"] == job == ensure_job(environ)


def test_the_next_run_of_a_step_is_another_job(tmp_path: Path) -> None:
    """A script of one task after the other, inside one ``srun`` of two tasks."""
    tmp_path.chmod(0o700)
    step = {**os.environ, "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "XDG_RUNTIME_DIR": str(tmp_path)}
    step.pop("FOREBAY_JOB", None)
    first, second = (subprocess.check_output([sys.executable, "-c", _ASK], env=step, text=True).strip() for _ in range(2))
    assert first == "5.0"
    assert second.startswith("5.0-")


_ASK = "from forebay_loader.identity.reader_name import ensure_job; print(ensure_job())"
_SPAWNED = """
import multiprocessing, os
from forebay_loader.identity.reader_name import ensure_job
if __name__ == "__main__":
    names = [ensure_job()]
    multiprocessing.set_forkserver_preload(["forebay_loader"])
    for how in ("spawn", "fork", "forkserver"):
        with multiprocessing.get_context(how).Pool(1) as workers:
            names.append(workers.apply(ensure_job))
    print(*names)
"""


def asked(environ: Mapping[str, str], *program: str) -> list[str]:
    """What ``program`` says in ``environ``."""
    return subprocess.check_output([sys.executable, *(program or ("-c", _ASK))], env=environ, text=True).split()


def unnamed() -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "FOREBAY_JOB"}, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_program_that_is_started_is_a_run_of_its_own(tmp_path: Path) -> None:
    """By a notebook that has a name already: two trainings are two runs. Their workers are theirs, however they begin."""
    environ = unnamed()
    ours = ensure_job(environ)
    (tmp_path / "train.py").write_text(_SPAWNED)
    first, second = (asked(environ, str(tmp_path / "train.py")) for _ in range(2))
    assert len(set(first)) == len(set(second)) == 1
    assert len({ours, *first, *second}) == 3
    assert environ["FOREBAY_JOB"] == ours == ensure_job(environ)


def test_a_name_that_was_given_is_that_of_all_programs() -> None:
    """By a person, or by ``forebay run`` within such a notebook."""
    environ = unnamed()
    ensure_job(environ)
    assert asked({**environ, "FOREBAY_JOB": "mine"}) == ["mine"]


def test_a_rank_that_its_training_starts_is_of_its_run() -> None:
    """Lightning starts the others from rank 0; a torchrun that a notebook starts is another run."""
    environ = unnamed()
    ours = ensure_job(environ)
    assert asked({**environ, "LOCAL_RANK": "1"}) == [ours]
    assert asked({**environ, "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "1"}) != [ours]


def test_job_without_a_launcher() -> None:
    """Host, pid and start make a name that children inherit; torchrun's "none" is no name."""
    environ = {"TORCHELASTIC_RUN_ID": "none"}
    job = ensure_job(environ)
    assert f"-{os.getpid()}-" in job
    assert environ["FOREBAY_JOB"] == job
    assert ensure_job(environ) == job


def test_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANK, else Slurm's, else that of torch.distributed if it was initialised, else 0."""
    told = [{"RANK": "3", "SLURM_PROCID": "5"}, {"SLURM_PROCID": "5"}, {"RANK": "x"}, {}]
    assert [rank_of(environ) for environ in told] == [3, 5, 0, 0]
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 6)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)  # type: ignore[arg-type]
    assert rank_of({}) == 6


def test_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The DataLoader's worker id; 0 in the main process."""
    assert worker_of() == 0
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.data", SimpleNamespace(get_worker_info=lambda: SimpleNamespace(id=4)))
    assert worker_of() == 4


def test_name_is_one_the_sidecar_takes() -> None:
    """The whole name parses on the other side; the opener is this process's."""
    name = ReaderName.parse(reader_name(next_opener(), {"FOREBAY_JOB": "j", "RANK": "2"}))
    assert (name.job, name.rank, name.worker) == ("j", "2", "0")
    assert name.opener.startswith(f"{os.getpid()}.")
    assert reader_name(environ={"FOREBAY_JOB": "j"}).endswith(f"/{os.getpid()}.0")


def test_claims_give_each_announcer_its_opening() -> None:
    """Two readers that announce one URL get one opening each, in that order; then it is nobody's."""
    claims = NameClaims()
    claims.announce("u", "a")
    claims.announce("u", "b")
    assert [claims.opening("u"), claims.opening("u")] == ["a", "b"]
    assert claims.opening("u") == reader_name()


def test_claims_are_bounded() -> None:
    """The oldest announcements go first."""
    claims = NameClaims(limit=2)
    for url in "xyz":
        claims.announce(url, url)
    assert claims.opening("x") == reader_name()
    assert claims.opening("z") == "z"


def test_our_own_name_follows_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made anew when a variable or the process changes."""
    monkeypatch.setenv("FOREBAY_JOB", "a")
    own = OwnName()
    assert own.now() == own.now() == f"a/0/0/{os.getpid()}.0"
    monkeypatch.setenv("RANK", "7")
    assert own.now() == f"a/7/0/{os.getpid()}.0"
    monkeypatch.setattr(os, "getpid", lambda: 77)
    assert own.now() == "a/7/0/77.0"
