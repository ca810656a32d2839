"""fb.WebLoader under Lightning's DDP: uneven shards, real gradient all-reduces, and no rank that waits for another's step."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.tars import tar_shard

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "support" / "lightning_steps.py"
SIZES = (9, 2, 7, 1)
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_PROCID", "SLURM_NTASKS")

if importlib.util.find_spec("lightning") is None:
    pytest.skip("lightning is not installed: pip install lightning==2.6.6 beside torch runs this", allow_module_level=True)


def test_ranks_take_the_same_steps(tmp_path: Path) -> None:
    """Three epochs to the end: as many steps on both ranks, no sample twice in an epoch, each validates on everything."""
    server = FakeServer()
    with server.running():
        for number, samples in enumerate(SIZES):
            server.put(f"/s3/bucket/{number}.tar", tar_shard(number, samples=samples, size=10))
        environ = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
        environ |= {"FOREBAY_URL": server.url, "PYTHONPATH": f"{ROOT}/proxy:{ROOT}/loader", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, str(SCRIPT), f"s3://bucket/{{0..{len(SIZES) - 1}}}.tar", str(tmp_path)]
        run = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    (keys, steps, validated), (other, others, _) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert steps == others >= 3
    for mine, theirs in zip(keys, other, strict=True):
        assert len(set(mine + theirs)) == len(mine + theirs)
        assert abs(len(mine) - len(theirs)) <= 1
    assert validated == 3 * sum(SIZES) + 4  # a batch in the beginning, to see that it works
