"""fb.sidecar() with the real sidecar: two cells of a notebook and its workers, and the end a while after the last of them."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sidecar import environment, wait_until
from support.tars import tar_shard
from support.warm_python import python_program

from forebay_proxy.node.runfile import RunDirectory

pytestmark = pytest.mark.once  # what is tried is whose sidecar it is, and how long it stays

SHARDS, SAMPLES = 2, 20
CELLS = """
import json, os, signal, sys
import torch
import forebay_loader as fb

def keys(data):
    return sorted(sample["__key__"] for sample in data)

def main():
    urls, allow, cache, idle_s, how = sys.argv[1:]
    data = fb.WebDataset(urls, shardshuffle=False)
    told = {}
    with fb.sidecar(cache_size="200MB", cache_dir=cache, port=0, allow_origin=[allow], idle_exit_s=idle_s) as first:
        told["first"] = [first.how, keys(data)]
        told["workers"] = keys(torch.utils.data.DataLoader(data, batch_size=None, num_workers=2))
        url = first.url
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    with fb.sidecar() as second:
        told["second"] = [second.how, second.url == url, keys(data)]
        status = second.status()
        told["status"] = [status.found, status.state, status.hit_ratio]
    print(json.dumps(told), flush=True)

if __name__ == "__main__":
    main()
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    files = tmp_path / "www"
    files.mkdir()
    for shard in range(SHARDS):
        (files / f"{shard}.tar").write_bytes(tar_shard(shard, SAMPLES, 20_000))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=files)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def cells(directory: Path, origin: str, idle_s: float, how: str) -> tuple[int, str, str]:
    """Run them, and wait until the sidecar has ended by itself: exit code, stdout, stderr."""
    (directory / "cells.py").write_text(CELLS)
    environ = environment(directory)
    environ.pop("FOREBAY_URL", None)
    urls = f"{origin}/{{0..{SHARDS - 1}}}.tar"
    arguments = ["cells.py", urls, origin, str(directory / "cache"), str(idle_s), how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python_program(arguments, environ, directory, text=True, **pipes) as program:
        said, errors = program.communicate(timeout=240)
    wait_until(lambda: not RunDirectory(directory / "run").live())
    assert f"held and read by nobody for {idle_s:g} s: ending" in (directory / "run" / "forebay.log").read_text()
    return program.returncode, said, errors


def test_two_cells_share_one_sidecar_and_it_ends_after_them(tmp_path: Path, origin: str) -> None:
    """Every sample in each cell and in forked workers; the second cell joins the first one's sidecar and reads from the disk."""
    code, said, errors = cells(tmp_path, origin, 20, "ends")  # longer than a busy machine needs between two cells
    assert code == 0, errors
    told = json.loads(said)
    wanted = sorted(set(told["workers"]))
    assert len(wanted) == SHARDS * SAMPLES == len(told["workers"])
    assert told["first"] == ["started", wanted]
    assert told["second"] == ["joined", True, wanted]
    found, state, ratio = told["status"]
    assert (found, state) == (True, "ready")
    assert ratio > 0.5
