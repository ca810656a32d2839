"""Under Lightning's DDP, two gloo ranks with workers: webdataset's explicit pipeline, as in its own recipe, and ``fb.WebLoader``.

One program trains seven times, the last with examples/lightning_module.py, one after the other, since Lightning is imported for seconds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import lightning_ddp
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.lightning_ddp import SAMPLES, SAVED, SHARDS, SIZES, WORKERS
from support.tars import expected, tar_shard

from make_shards import make_shards

ROOT = Path(__file__).parents[3]
# Each of its spawned workers imports torch and Lightning. What tells it its rank is tested in dataset/test_dataset_workers.py, too.
STARTS = [*WORKERS][: ordinarily(1, of=2, what="ways to start workers under Lightning")]
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS")

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed: pip install lightning==2.6.6 beside torch runs this", allow_module_level=True)


@dataclass(frozen=True)
class Trained:
    """Of each run what both ranks were given: keys of each epoch, steps, samples validated. And who read which path."""

    ranks: dict[str, list[Any]]
    readers: list[tuple[str, str]]
    output: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder, server = tmp_path_factory.mktemp("lightning"), FakeServer()
    with server.running():
        for number, samples in enumerate(SIZES):
            server.put(f"/s3/bucket/steps-{number}.tar", tar_shard(number, samples=samples, size=10))
            for start in STARTS:
                server.put(f"/s3/bucket/{start}-{number}.tar", tar_shard(number, samples=SAMPLES, size=10))
        make_shards(folder, SHARDS, 16)
        for path in folder.glob("train-*.tar"):
            server.put(f"/s3/bucket/{path.name}", path.read_bytes())
        environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
        environ |= {"FOREBAY_URL": server.url, "FOREBAY_FD": "0", "XDG_RUNTIME_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        environ["PYTHONPATH"] = f"{ROOT}/proxy:{ROOT}/loader:{ROOT}/examples"
        command = [sys.executable, lightning_ddp.__file__, str(folder), *STARTS]
        run = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    ranks = {
        name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(2)]
        for name in (*STARTS, "steps", "whole", "ended", "gone-on")
    }
    asked = [request for request in server.requests if request.target.startswith("/s3/")]
    return Trained(ranks, [(request.target, request.headers["Forebay-Reader"].split("/", 1)[1]) for request in asked], run.stdout)


@pytest.mark.parametrize("start", STARTS)
def test_the_recipe(trained: Trained, start: str) -> None:
    """Both ranks together get every sample once an epoch: also in spawned workers, which nobody else tells their rank."""
    (mine, *_), (theirs, *_) = trained.ranks[start]
    for epoch in range(2):
        assert sorted(mine[epoch] + theirs[epoch]) == sorted(expected(SHARDS, samples=SAMPLES, size=10))
    names = {name for target, name in trained.readers if target.startswith(f"/s3/bucket/{start}-")}
    assert {name.rpartition("/")[0] for name in names} == {f"{rank}/{worker}" for rank in range(2) for worker in range(WORKERS[start])}


def test_ranks_take_the_same_steps(trained: Trained) -> None:
    """fb.WebLoader, uneven shards, real gradient all-reduces, three epochs to the end: as many steps on both ranks, no sample twice in an
    epoch, each validates on everything, and no rank waits for another's step.
    """
    (keys, steps, validated), (other, others, _) = trained.ranks["steps"]
    assert steps == others >= 3
    for mine, theirs in zip(keys, other, strict=True):
        assert len(set(mine + theirs)) == len(mine + theirs)
        assert abs(len(mine) - len(theirs)) <= 1
    assert validated == 3 * sum(SIZES) + 4  # a batch in the beginning, to see that it works


def test_a_checkpoint_is_gone_on_from_on_both_ranks(trained: Trained) -> None:
    """Each rank is given what it would have been given, though only rank 0 writes: within an epoch, and in the next one."""
    for rank in range(2):
        whole, ended, rest = ([key for epoch in trained.ranks[name][rank][0] for key in epoch] for name in ("whole", "ended", "gone-on"))
        assert len(whole) > len(ended) > SAVED
        assert ended[:SAVED] + rest == whole


def test_the_example(trained: Trained) -> None:
    """A DataModule with ``fb.WebLoader``: both ranks take as many steps."""
    found = re.findall(r"rank (\d): (\d+) steps", trained.output)
    assert sorted(found) == [("0", "2"), ("1", "2")], trained.output
