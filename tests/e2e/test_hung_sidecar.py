"""A sidecar that is stopped: it costs one silence, is then known not to answer, and is used again when it does."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import nginx as servers
from support.lengths import ordinarily
from support.nginx import Nginx
from support.sidecar import Sidecar, environment, start
from support.tars import tar_shard
from support.warm_python import python_program

AT_A_TIME = 3  # trainings, which wait for most of their time
STOPPED_S = 12.0  # more than a look and the question behind it, at the door and by HTTP
SHARDS, SAMPLES, SIZE = 8, 16, 1_200_000  # 19 MB a shard: more than sockets and buffers hold, so the stop is felt

_TRAINING = """
import json, sys, time
import forebay_loader as fb
from torch.utils.data import DataLoader

def told(sample):
    return sample["__url__"], sample["__key__"], len(sample["bin"]), dict(fb.counters())

stop_at, workers, urls = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
limits = fb.Limits(silence_s=4)
data = fb.WebDataset(urls, shardshuffle=False, limits=limits).map(told)
found = iter(DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=1) if workers else data)
seen, began = [], time.monotonic()

def wait(word):
    print(word, flush=True)
    sys.stdin.readline()

while True:
    if len(seen) == stop_at:
        wait("stop")
    if len(seen) == 6 * 16:
        wait("continue")
        time.sleep(0.5)
    before = time.monotonic()
    sample = next(found, None)
    if sample is None:
        break
    seen.append([*sample, time.monotonic() - before])
print(json.dumps(seen), flush=True)
"""


@pytest.fixture(scope="module")
def origin() -> Iterator[Nginx]:
    """The same shards for all; each training has a sidecar of its own."""
    with tempfile.TemporaryDirectory(prefix="forebay-e2e-") as directory:
        place = Path(directory)
        (place / "files").mkdir()
        (place / "files/bucket").symlink_to(".")  # for s3, whose paths begin with it
        for shard in range(SHARDS):
            (place / f"files/{shard:03d}.tar").write_bytes(tar_shard(shard, SAMPLES, SIZE))
        with servers.nginx(place / "nginx", place / "files") as made:
            yield made


Trained = tuple[list[Any], str]
# When the sidecar stops (before which sample), whether shards come by descriptor, and in how many workers.
_MOMENTS = {
    "before the first shard": (0, False, 0),
    "door, before the first shard, worker": (0, True, 1),
    "inside one, worker": (18, False, 1),
    "door, inside one": (18, True, 0),
    "between two": (32, False, 0),
    "door, between": (32, True, 0),
}
MOMENTS = dict([*_MOMENTS.items()][: ordinarily(4, of=6, what="moments at which a sidecar stops")])
_WAITED = {
    "waited for inside one": (18, False, 2),
    "waited for at the door": (0, True, 2),
    "waited for before the first shard": (0, False, 0),
    "waited for at the door, between": (32, True, 0),
}
WAITED = dict([*_WAITED.items()][: ordinarily(2, of=4, what="moments at which one stops that is waited for")])


@pytest.fixture(scope="module")
def trained(origin: Nginx) -> Iterator[Mapping[str, Future[Trained]]]:
    """All of them, a few at a time."""
    plain, s3 = origin.url("{:03d}.tar"), f"s3://bucket/{{:03d}}.tar?endpoint={origin.base()}&unsigned=1"
    with tempfile.TemporaryDirectory(prefix="forebay-e2e-") as directory, ThreadPoolExecutor(AT_A_TIME) as pool:

        def begin(name: str, url: str, stopped_s: float | None) -> Trained:
            place = Path(tempfile.mkdtemp(dir=directory))
            stop_at, door, workers = (MOMENTS | WAITED)[name]
            return train(place, origin, url, stop_at, workers, door=door, stopped_s=stopped_s)

        futures = {name: pool.submit(begin, name, plain, None) for name in MOMENTS}
        futures |= {name: pool.submit(begin, name, s3, STOPPED_S) for name in WAITED}
        try:
            yield futures
        finally:
            pool.shutdown(cancel_futures=True)


def train(place: Path, origin: Nginx, url: str, stop_at: int, workers: int, *, door: bool, stopped_s: float | None) -> Trained:
    """What it read, every sample once, and said. The sidecar is stopped before sample ``stop_at``, and goes on before the seventh shard, or
    ``stopped_s`` later. ``door``: shards are here when it begins, and come by descriptor."""
    urls = [url.format(shard) for shard in range(SHARDS)]
    sidecar = start(place, "--cache-size", "400MB", "--socket", str(place / "s"), allow=[origin.base()])
    try:
        for each in urls if door else ():
            sidecar.ask(sidecar.proxied(each).removeprefix(sidecar.url))
        environ = {"FOREBAY_SOCKET": str(place / "s")} if door else {"FOREBAY_URL": sidecar.url, "FOREBAY_FD": "0"}
        seen, said = _trained(place, sidecar, urls, stop_at, workers, stopped_s, environ)
    finally:
        sidecar.process.send_signal(signal.SIGCONT)
        sidecar.terminate()
    keys = [(url, key, size) for url, key, size, *_ in seen]
    assert len(keys) == len(set(keys)) == SHARDS * SAMPLES
    assert {size for *_, size in keys} == {SIZE}
    return seen, said


def _trained(
    place: Path, sidecar: Sidecar, urls: list[str], stop_at: int, workers: int, stopped_s: float | None, environ: dict[str, str]
) -> tuple[list[Any], str]:
    arguments = ["-c", _TRAINING, str(stop_at), str(workers), *urls]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python_program(arguments, environment(place, **environ), place, text=True, **pipes) as training:
        assert training.stdin is not None
        assert training.stdout is not None
        assert training.stderr is not None
        for line in training.stdout:
            if line not in ("stop\n", "continue\n"):
                break
            sidecar.process.send_signal(signal.SIGSTOP if line == "stop\n" else signal.SIGCONT)
            if line == "continue\n":
                sidecar.ask("/healthz")  # on a busy machine it has to come to itself
            if line == "stop\n" and stopped_s is not None:
                threading.Timer(stopped_s, sidecar.process.send_signal, [signal.SIGCONT]).start()
            training.stdin.write("\n")
            training.stdin.flush()
        said = training.stderr.read()
    assert training.returncode == 0, said
    return json.loads(line), said


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_silence_and_no_more(moment: str, trained: Mapping[str, Future[Trained]]) -> None:
    """Every sample once; the first shard waits for one silence, none of those behind it for more than 5 s; later it serves again."""
    seen, said = trained[moment].result()
    waits = sorted((wait for *_, wait in seen), reverse=True)
    assert waits[1] < max(5, waits[0] / 2), waits[:4]  # beside the one silence, which is as long as the machine is busy
    assert waits[0] < 60, waits[:4]
    counters = seen[-1][3]
    assert 1 <= counters["fallback_total"] < SHARDS
    assert counters["opened"] >= 1 + MOMENTS[moment][0] // 16
    assert "runs but does not answer" in said
    first, last = seen[6 * SAMPLES - 1][3], counters
    assert last["opened"] > first["opened"]  # it is used again


@pytest.mark.parametrize("moment", WAITED)
def test_one_that_goes_on_is_waited_for_where_no_other_way_leads_to_the_shard(moment: str, trained: Mapping[str, Future[Trained]]) -> None:
    """s3, which neither webdataset nor this machine can open: every sample once, and one warning, however many wait."""
    seen, said = trained[moment].result()
    assert all(counts["fallback_total"] == counts["failed"] == 0 for *_, counts, _ in seen)
    assert said.count("runs but does not answer") == 1, said
    assert "no other way leads to it: waiting" in said
