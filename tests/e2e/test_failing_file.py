"""A shard's file in the cache that cannot be read any further while a training reads it: no process dies, no sample is lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.lengths import ordinarily
from support.sidecar import environment, forebay, running, wait_until
from support.tarmaking import written
from support.warm_python import python_program

COUNT = 300
SHARD = written([(f"k{number:04d}.bin", bytes([number % 251]) * 80_000) for number in range(COUNT)])

_MAIN = """
import json, sys
import forebay_loader as fb

def samples(url):
    return fb.WebDataset([url], shardshuffle=False)

def told(sample):
    data = bytes(sample["bin"])
    return [sample["__key__"], len(data), data[0], data == data[:1] * len(data)]
"""

_ITSELF = """
found = iter(map(told, samples(sys.argv[1])))
"""

_WORKER = """
from torch.utils.data import DataLoader

class Told:
    def __call__(self, sample):
        return [*told(sample), fb.counters()["opened_descriptor"], fb.counters()["descriptor_failed"]]

found = iter(DataLoader(samples(sys.argv[1]).map(Told()), batch_size=None, num_workers=1, prefetch_factor=1))
"""

_REST = """
seen = [next(found) for _ in range(3)]
print("begun", flush=True)
sys.stdin.readline()
seen += found
print(json.dumps({"seen": seen, "counters": fb.counters()}), flush=True)
"""

_BY_NUMBER = """
shard = fb.IndexedShard(sys.argv[1])
assert shard.mapped
seen = [told(shard[number]) for number in range(3)]
print("begun", flush=True)
sys.stdin.readline()
half = len(shard) // 2
seen += map(told, shard.samples(3, half))
seen += [told(shard[number]) for number in range(half, len(shard))]
print(json.dumps({"seen": seen, "counters": fb.counters()}), flush=True)
"""

WAYS = {
    "itself": _MAIN + _ITSELF + _REST,
    "in a worker": _MAIN + _WORKER + _REST,
    "by number": _MAIN + _BY_NUMBER,
}


FOUND_BY = ("the training", "the sidecar")
# Each way, and by turns who finds it: the one reads what the other has fetched again.
SHRINKS = [(way, FOUND_BY[(number + turn) % 2]) for turn in range(2) for number, way in enumerate(WAYS)]


@pytest.mark.parametrize(("way", "found_by"), SHRINKS[: ordinarily(3, of=6, what="readers of a file that shrinks")])
def test_a_file_that_shrinks_under_a_training(way: str, found_by: str, place: Path) -> None:
    """Cut off in the middle of an epoch, as a disk that rots or a mistaken root does it: a map would be SIGBUS, and the process gone."""
    (place / "shards").mkdir()
    (place / "shards" / "a.tar").write_bytes(SHARD)
    flags = ["--cache-size", "200MB", "--file-root", str(place / "shards"), "--socket", str(place / "s")]
    with running(place, *flags) as sidecar:
        url = f"file://{place}/shards/a.tar"
        path = f"/file{place}/shards/a.tar"
        assert sidecar.ask(path) == SHARD
        sidecar.wait_complete(1)
        wait_until(lambda: len(sidecar.ask("/v1/index" + path)) > 0)
        environ = environment(place, FOREBAY_SOCKET=str(place / "s"))
        arguments = ["-c", WAYS[way], f"pipe:cat {place}/shards/a.tar" if way != "by number" else url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with python_program(arguments, environ, place, text=True, **pipes) as training:
            assert training.stdin is not None
            assert training.stdout is not None
            begun = training.stdout.readline()
            (cached,) = [each for each in sidecar.cache_dir.rglob("*") if each.is_file() and each.stat().st_size == len(SHARD)]
            os.truncate(cached, 9 << 20)
            if found_by == "the sidecar":  # which has fetched the lost segments again before the training comes to them
                assert forebay(place, "verify", FOREBAY_URL=sidecar.url).returncode == 1
                assert sidecar.ask(path) == SHARD
            out, err = training.communicate("\n", timeout=240)
        assert (begun, training.returncode) == ("begun\n", 0), err
        told = json.loads(out)
        expected = [[f"k{number:04d}", 80_000, number % 251, True] for number in range(COUNT)]
        assert [each[:4] for each in told["seen"]] == expected
        if "worker" in way:
            assert told["seen"][-1][4:] == [1, 1]
        else:
            assert (told["counters"]["opened_descriptor"], told["counters"]["descriptor_failed"]) == (1, 1)
        assert "cannot be read from the cache's disk" in err
        assert sidecar.ask(path) == SHARD
