"""fb.sidecar() with the real sidecar: two cells of a notebook and its workers, and the end a while after the last of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.sidecar import environment, wait_until
from support.tars import tar_shard
from support.warm_python import python_program

from forebay_proxy.node.runfile import RunDirectory

pytestmark = pytest.mark.once  # what is tried is whose sidecar it is, and how long it stays

SHARDS, SAMPLES = 2, 20
CELLS = """
import json, sys
import torch
import forebay_loader as fb

def keys(data):
    return sorted(sample["__key__"] for sample in data)

def main():
    urls, allow, cache, idle_s = sys.argv[1:]
    data = fb.WebDataset(urls, shardshuffle=False)
    told = {}
    with fb.sidecar(cache_size="200MB", cache_dir=cache, port=0, allow_origin=[allow], idle_exit_s=idle_s) as first:
        told["first"] = [first.how, keys(data)]
        told["workers"] = keys(torch.utils.data.DataLoader(data, batch_size=None, num_workers=2))
        url = first.url
    with fb.sidecar() as second:
        told["second"] = [second.how, second.url == url, keys(data)]
        status = second.status()
        told["status"] = [status.found, status.state, status.hit_ratio]
    print(json.dumps(told), flush=True)

if __name__ == "__main__":
    main()
"""


def cells(directory: Path, origin: str, idle_s: float) -> tuple[int, str, str]:
    """Run them, and wait until the sidecar has ended by itself: exit code, stdout, stderr."""
    (directory / "cells.py").write_text(CELLS)
    environ = environment(directory)
    environ.pop("FOREBAY_URL", None)
    urls = f"{origin}/{{0..{SHARDS - 1}}}.tar"
    arguments = ["cells.py", urls, origin, str(directory / "cache"), str(idle_s)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python_program(arguments, environ, directory, text=True, **pipes) as program:
        said, errors = program.communicate(timeout=240)
    wait_until(lambda: not RunDirectory(directory / "run").live())
    assert f"held and read by nobody for {idle_s:g} s: ending" in (directory / "run" / "forebay.log").read_text()
    return program.returncode, said, errors


def test_two_cells_share_one_sidecar_and_it_ends_after_them(tmp_path: Path) -> None:
    """Every sample in each cell and in forked workers; the second cell joins the first one's sidecar and reads from the disk."""
    with FakeServer().running() as origin:
        for shard in range(SHARDS):
            origin.put(f"/{shard}.tar", tar_shard(shard, SAMPLES, 20_000))
        code, said, errors = cells(tmp_path, origin.url, 6)  # longer than a busy machine needs between two cells
    assert code == 0, errors
    told = json.loads(said)
    wanted = sorted(set(told["workers"]))
    assert len(wanted) == SHARDS * SAMPLES == len(told["workers"])
    assert told["first"] == ["started", wanted]
    assert told["second"] == ["joined", True, wanted]
    found, state, ratio = told["status"]
    assert (found, state) == (True, "ready")
    assert ratio > 0.5
