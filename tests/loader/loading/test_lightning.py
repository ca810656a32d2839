"""webdataset's explicit pipeline under Lightning's DDP, two gloo ranks with workers, as in its own recipe."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.tars import expected, tar_shard

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "support" / "lightning_ddp.py"
SHARDS = 4  # one for each worker of both ranks, so that all ranks have as many batches: equal steps are another matter
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS")

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed: pip install lightning==2.6.6 beside torch runs this", allow_module_level=True)


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_the_recipe(tmp_path: Path, start: str, workers: int) -> None:
    """Both ranks together get every sample once an epoch: also in spawned workers, which nobody else tells their rank."""
    server = FakeServer()
    with server.running():
        for number in range(SHARDS):
            server.put(f"/s3/bucket/{number}.tar", tar_shard(number, samples=4, size=10))
        environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
        environ |= {"FOREBAY_URL": server.url, "PYTHONPATH": f"{ROOT}/proxy:{ROOT}/loader", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(SCRIPT), f"s3://bucket/{{0..{SHARDS - 1}}}.tar", str(tmp_path), start]
        run = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == sorted(expected(SHARDS, samples=4, size=10))
    names = {request.headers["Forebay-Reader"].split("/", 1)[1] for request in server.requests if request.target.startswith("/s3/")}
    assert {name.rpartition("/")[0] for name in names} == {f"{rank}/{worker}" for rank in range(2) for worker in range(workers)}
