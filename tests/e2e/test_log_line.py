"""Two ranks of a training beside a real sidecar: the one line of rank 0 is about both, and one scrape has both."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.cli import environment
from support.sidecar import running, wait_until
from support.warm_python import python_program

pytest.importorskip("torch.utils.data")
pytestmark = pytest.mark.once

TRAIN = """
import os, time
import torch.utils.data as data
import forebay_loader as fb

class Numbers(data.Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, number):
        time.sleep(0.0005 if os.environ["RANK"] == "0" else 3.5 if number == 120 else 0.02)
        return number

fb.enable()
for batch in data.DataLoader(Numbers(), batch_size=4, num_workers=1):
    time.sleep(0.08 if os.environ["RANK"] == "0" else 0.01)  # both train for about as long
print(fb.postfix(), flush=True)
"""


def test_the_line_is_about_all_ranks_of_the_node(tmp_path: Path) -> None:
    """Rank 1 is slow in its own stages, and rank 0 says so, without any logging set up; metrics, status and the exit's totals agree."""
    with running(tmp_path, "--cache-size", "50MB") as sidecar:
        told = {"FOREBAY_URL": sidecar.url, "FOREBAY_JOB": "two", "WORLD_SIZE": "2"}
        told |= {"FOREBAY_METER_LINE_S": "1", "FOREBAY_WATCHDOG_S": "1"}
        ranks = [
            python_program(
                ["-c", TRAIN], environment(tmp_path, **told, RANK=rank), tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for rank in "01"
        ]
        said = [rank.communicate(timeout=240) for rank in ranks]
        lines = [line for line in said[0][1].splitlines() if line.startswith("forebay: stall ")]
        assert lines, said
        assert any(" (user code " in line and "| slowest rank 1 worker 0 |" in line and "Data (t): 0.0" in line for line in lines), lines
        assert "forebay: stall" not in said[1][1]
        hung = [line for line in said[1][1].splitlines() if line.startswith("forebay: rank 1: ")]
        assert any(" no batch for " in line and " is in the user's own stages (map) since " in line for line in hung), said[1]
        assert any(" batches come again, after " in line for line in hung), said[1]
        assert said[1][0].startswith("{'stall': '")
        assert " map'" in said[1][0]
        wait_until(lambda: sidecar.metric("forebay_rank_steps_total", job="two") == 120)
        stalls = [sidecar.metric("forebay_stall_seconds_total", job="two", rank=rank, cause="map") for rank in "01"]
        assert stalls[1] > 1.5 > stalls[0]
        assert "(two rank 1, worker 0)" in sidecar.status()["verdict"]["sentence"]
