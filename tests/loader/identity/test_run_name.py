"""Which run a process belongs to, under a real torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.sidecar import environment

TRAIN = """
import os, sys
from forebay_loader.identity.reader_name import ensure_job
from torch.utils.data import DataLoader, IterableDataset

class Names(IterableDataset):
    def __iter__(self):
        yield ensure_job()

if __name__ == "__main__":
    late = sys.argv[2] == "late"  # the first to ask are the workers
    names = [] if late else [ensure_job()]
    loader = DataLoader(Names(), num_workers=1 if sys.argv[2] == "spawn" else 2, batch_size=None,
                        multiprocessing_context="fork" if late else sys.argv[2])  # a spawned one imports torch again
    names += loader
    with open(f"{sys.argv[1]}/{os.environ['RANK']}.{os.environ.get('TORCHELASTIC_RESTART_COUNT')}", "w") as file:
        file.write(" ".join(names))
    if len(sys.argv) > 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
"""
WRAP = '#!/bin/bash\n"$@"\nexit $?\n'


def torchrun(place: Path, ranks: int, *arguments: str, wrapped: bool = False) -> dict[str, set[str]]:
    """The names told by each rank (and attempt) of one torchrun with the id 100."""
    out = place / f"out{len(list(place.iterdir()))}"
    out.mkdir()
    (place / "train.py").write_text(TRAIN)
    (place / "wrap.sh").write_text(WRAP)
    (place / "wrap.sh").chmod(0o755)
    command = [sys.executable, str(place / "train.py")]
    command = ["--no-python", str(place / "wrap.sh"), *command] if wrapped else command[1:]
    unnamed = {name: value for name, value in environment(place).items() if name != "FOREBAY_JOB"}
    restarts = "1" if "again" in arguments else "0"
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-id=100", "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0", f"--max-restarts={restarts}", *command, str(out), *arguments,
        ],
        env={**unnamed, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}, check=True, capture_output=True,
        timeout=240,
    )  # fmt: skip
    return {file.name: set(file.read_text().split()) for file in out.iterdir()}


def test_two_runs_of_one_id_are_two_jobs(tmp_path: Path) -> None:
    """All ranks and workers of one torchrun agree on a name, a shell between them or not; the next torchrun with that id has another."""
    runs = [torchrun(tmp_path, ranks, "spawn", wrapped=True) for ranks in (2, 1)]
    names = [set().union(*run.values()) for run in runs]
    assert [len(run) for run in runs] == [2, 1]
    assert [len(found) for found in names] == [1, 1]
    assert names[0] != names[1]
    assert all(name.startswith("100-") for name in names[0] | names[1])


def test_workers_that_ask_first_find_the_same(tmp_path: Path) -> None:
    """A worker is a child of its rank, not of the agent."""
    assert len(set().union(*torchrun(tmp_path, 2, "late").values())) == 1


def test_a_new_attempt_is_a_new_run(tmp_path: Path) -> None:
    """Restarted ranks agree again, on another name."""
    told = torchrun(tmp_path, 2, "fork", "again")
    first, second = ({*told[f"0.{attempt}"], *told[f"1.{attempt}"]} for attempt in "01")
    assert len(first) == len(second) == 1
    assert first != second
