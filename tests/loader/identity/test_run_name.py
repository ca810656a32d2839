"""Which run a process belongs to, under a real torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from support.sidecar import environment
from support.warm_python import python_program

# ``python train.py OUT HOW FIRST``: HOW its workers start; FIRST, of a process and its workers, is who asks first. A worker of torch's
# DataLoader is a process of multiprocessing; only one of the runs has them, since importing torch takes longer than all of this.
TRAIN = """
import multiprocessing, os, sys, time
from forebay_loader.identity.reader_name import ensure_job

def tell(queue):
    queue.put(ensure_job())

def of_workers(how):
    if how == "loader":
        from torch.utils.data import DataLoader, IterableDataset

        class Names(IterableDataset):
            def __iter__(self):
                yield ensure_job()

        return list(DataLoader(Names(), num_workers=2, batch_size=None, multiprocessing_context="fork"))
    context = multiprocessing.get_context(how)
    queue = context.SimpleQueue()
    workers = [context.Process(target=tell, args=(queue,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    names = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return names

if __name__ == "__main__":
    out, how, first = sys.argv[1:]
    attempt, ranks = os.environ["TORCHELASTIC_RESTART_COUNT"], int(os.environ["WORLD_SIZE"])
    if attempt == "1":
        how, first = "fork", "workers"
    names = [ensure_job()] if first == "process" else []
    names += of_workers(how)
    with open(f"{out}/{os.environ['RANK']}.{attempt}.part", "w") as file:
        file.write(" ".join(names))
    os.rename(file.name, file.name.removesuffix(".part"))
    while len([name for name in os.listdir(out) if name.endswith(f".{attempt}")]) < ranks:
        time.sleep(0.01)  # the first that fails ends the others
    sys.exit(int(os.environ["TORCHELASTIC_MAX_RESTARTS"] > attempt))
"""
WRAP = '#!/bin/bash\n"$@"\nexit $?\n'


class Run(NamedTuple):
    """torchrun's process; and what each rank and its workers were told, by attempt."""

    agent: int
    attempts: tuple[list[set[str]], ...]

    def names(self, attempt: int) -> set[str]:
        return set().union(*self.attempts[attempt])


def torchrun(place: Path, ranks: int, *arguments: str, restarts: int = 0, wrapped: bool = False) -> Run:
    """One torchrun with the id 100, whose every attempt but the last fails."""
    (out := place / f"out{len(list(place.iterdir()))}").mkdir()
    (place / "train.py").write_text(TRAIN)
    (place / "wrap.sh").write_text(WRAP)
    (place / "wrap.sh").chmod(0o755)
    command = [sys.executable, str(place / "train.py")]
    command = ["--no-python", str(place / "wrap.sh"), *command] if wrapped else command[1:]
    unnamed = {name: value for name, value in environment(place).items() if name != "FOREBAY_JOB"}
    agent = [
        "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-id=100", "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0", f"--max-restarts={restarts}", *command, str(out), *arguments,
    ]  # fmt: skip
    with python_program(
        agent, {**unnamed, "PYTHONPATH": os.pathsep.join(sys.path)}, place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said[-4000:]
    attempts = range(restarts + 1)
    return Run(process.pid, tuple([set((out / f"{rank}.{attempt}").read_text().split()) for rank in range(ranks)] for attempt in attempts))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Of two ranks, a shell between them and torchrun; in its second attempt the workers, forked ones, ask first."""
    return torchrun(tmp_path_factory.mktemp("run"), 2, "spawn", "process", restarts=1, wrapped=True)


def test_all_of_a_run_agree(run: Run) -> None:
    """All ranks and the workers they spawn have one name, a shell between them or not."""
    (name,) = run.names(0)
    assert name.startswith(f"100-{run.agent}-")


def test_workers_that_ask_first_find_the_same(run: Run) -> None:
    """A worker is a child of its rank, not of the agent."""
    assert len(run.names(1)) == 1


def test_a_new_attempt_is_a_new_run(run: Run) -> None:
    """Restarted ranks agree again, on another name."""
    assert run.names(0) != run.names(1)


def test_two_runs_of_one_id_are_two_jobs(run: Run, tmp_path: Path) -> None:
    """The next torchrun with that id has another name, and the workers of a DataLoader have it, too."""
    (name,) = torchrun(tmp_path, 1, "loader", "process").names(0)
    assert re.fullmatch(r"100-\d+-\d+", name), "of its process, and of when that began"
    assert name not in run.names(0) | run.names(1)
