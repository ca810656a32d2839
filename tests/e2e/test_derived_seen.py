"""A real training with two workers and ``fb.memo`` beside a real sidecar: all who are asked say the same numbers as ``fb.counters()``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.sidecar import environment, running, wait_until
from support.tars import tar_shard
from support.warm_python import python_program

from forebay_proxy.cli.sidecars.status import status
from forebay_proxy.wire.protocol.meter import DERIVED

pytest.importorskip("torch.utils.data")
pytest.importorskip("lmdb")
pytestmark = [pytest.mark.webdataset, pytest.mark.timeout(120)]

TRAIN = """
import json, os, signal, sys
import forebay_loader as fb

folder = sys.argv[2]

def twice(sample):
    return {"__key__": sample["__key__"], "twice": 2 * sample["bin"]}

data = fb.WebDataset(sys.argv[1], shardshuffle=False).map(fb.memo(folder=folder, key="bin", size="10MB")(twice))
for kill in (False, True):
    loader = fb.WebLoader(data, batch_size=4, num_workers=2, timeout=20)
    batches = iter(loader)
    for number, batch in enumerate(batches):
        if kill and number == 1:
            break
    if kill:
        from multiprocessing import active_children
        os.kill(active_children()[0].pid, signal.SIGKILL)
    del batches
print(json.dumps(fb.counters()), flush=True)
"""
NAMES = DERIVED["memo"]


def trained(place: Path, url: str, *arguments: str) -> dict[str, int]:
    environ = environment(place, FOREBAY_URL=url, FOREBAY_JOB="train-7", RANK="0", WORLD_SIZE="1")
    program = python_program(["-c", TRAIN, *arguments], environ, place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    with program:
        counted = json.loads(program.communicate(timeout=90)[0])
    return {name: counted[f"memo_{name}"] for name in NAMES}


@pytest.mark.once
def test_all_say_what_the_loader_counted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, status as JSON and in words, after a worker was killed and the job has ended; no path is told."""
    folder = place / "secret" / "frames"
    urls = []
    for number in range(2):
        path = place / f"{number}.tar"
        path.write_bytes(tar_shard(number, 20, 500))
        urls.append(str(path))
    with running(place, "--cache-size", "100MB") as sidecar:
        wanted = trained(place, sidecar.url, "::".join(urls), str(folder))
        assert wanted["made"] == wanted["kept"] == 40
        assert wanted["hits"] > 0
        wait_until(lambda: {name: sidecar.metric(f"forebay_memo_{name}_total", job="train-7") for name in NAMES} == wanted)
        (row,) = sidecar.status()["derived"]
        assert {name: row[name] for name in ("job", "kind", *NAMES)} == {
            "job": "train-7",
            "kind": "memo",
            **wanted,
        }
        held = sum(512 * os.stat(path).st_blocks for path in folder.rglob("*") if path.is_file())
        assert row["folders"] == [{"folder": "frames", "bytes": row["bytes"], "limit_bytes": 10_000_000}]
        assert row["bytes"] == pytest.approx(held, abs=1 << 20)
        assert row["bytes"] > 0
        assert sidecar.metric("forebay_memo_bytes", job="train-7") == row["bytes"]
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        said = CliRunner().invoke(status, catch_exceptions=False).stdout
        (line,) = [line for line in said.splitlines() if line.startswith("train-7 memo ")]
        assert line.split()[-5:] == [str(wanted[name]) for name in ("hits", "made", "kept", "dropped", "damaged")]
        assert "frames" in line
        page = sidecar.ask("/").decode()
        assert "<td>memo</td>" in page
        assert "secret" not in page + said + json.dumps(sidecar.status()["derived"]) + sidecar.ask("/metrics").decode()
