"""The disk bound is hard on every file system: sampled from outside, every 50 ms, while many times its size pours through it."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import nginx as servers
from support.disk_sampler import sampling
from support.disks import file_system, inside, needs_mounts
from support.lengths import LONG, ordinarily
from support.nginx import Nginx
from support.readers import Got, make_shard, many, read
from support.sidecar import Sidecar, running, small_segments, wait_until

from forebay_proxy.core.segments import SEGMENT_BYTES

pytestmark = [pytest.mark.needs("nginx")]

POURED_MB = ordinarily(32, of=128, what="MB of shards poured over each file system")
AGAIN = ordinarily(1, of=2, what="times that each is poured")
SHRINK = 128 // POURED_MB  # shards, segments, limits and disks alike: as many come and go with so many fewer bytes
PROGRAM = small_segments(SEGMENT_BYTES // SHRINK)
UNIT = 10**6 // SHRINK  # a megabyte at full size
LIMIT = 48 * UNIT
SIZES = [1, 5_000, 3 * UNIT, 9 * UNIT, 20 * UNIT + 1]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for number, size in enumerate(itertools.islice(itertools.cycle(SIZES), 20)):
        make_shard(folder / f"{number}.tar", size, number)
    return folder


@pytest.fixture
def origin(place: Path, shards: Path) -> Iterator[Nginx]:
    options = {"plain": "", "without_range": servers.NO_RANGE}
    with servers.nginx(place / "nginx", shards, **options) as made:
        yield made


def pour(sidecar: Sidecar, origin: Nginx, shards: Path, name: str = "plain", times: int = 2) -> None:
    """Every shard, several times, by eight readers in an order of its own; every byte right."""
    files = sorted(shards.iterdir())
    work = [partial(read, sidecar.proxied(origin.url(file.name, name)), file) for file in files] * times
    random.Random(1).shuffle(work)
    answers: list[Got] = many(8, work)
    assert all(got.whole for got in answers)


def held_bytes(sidecar: Sidecar) -> int:
    """What the ledger counts."""
    cache = sidecar.status()["cache"]
    return sum(int(cache[f"{state}_bytes"]) for state in ("stored", "reserved", "doomed", "overhead"))


HERE = "the directory of the test"
# ext4 allocates and punches, ext2 can do neither, ramfs has no blocks to count; the next two tests pour over tmpfs.
KINDS = [HERE, *(pytest.param(kind, marks=needs_mounts) for kind in ("ext4", "ext2", "ramfs", "xfs", "tmpfs", "overlay"))]
SMALL = ["tmpfs", "ext4"]


@pytest.mark.parametrize("kind", KINDS[: ordinarily(4, of=7, what="file systems under a cache at its bound")])
def test_the_limit_holds_on_every_file_system(place: Path, origin: Nginx, shards: Path, kind: str) -> None:
    """Whether it can allocate and punch or not, and whatever it allocates unasked; also where a shard comes whole or not at all."""
    disk: dict[str, Any] = {} if kind == HERE else file_system(place, kind, "320m" if kind == "xfs" else "128m")
    allow = [origin.base(name) for name in ("plain", "without_range")]
    with running(place, "--cache-size", str(LIMIT), allow=allow, program=PROGRAM, **disk) as sidecar:
        with sampling(inside(sidecar), sidecar.process.pid) as seen:
            pour(sidecar, origin, shards, times=AGAIN)
            pour(sidecar, origin, shards, "without_range", times=1)
        status = sidecar.status()["cache"]
    print(f"{kind}: {vars(seen)}, {status}")
    assert seen.peak_bytes <= LIMIT
    assert seen.peak_bytes > LIMIT // 2 or kind == "ramfs", "the cache was used (ramfs says that no file has a block)"
    assert status["disk_state"] == "normal"


@needs_mounts
@pytest.mark.parametrize("kind", SMALL[: ordinarily(1, of=2, what="file systems smaller than the cache")])
def test_a_file_system_smaller_than_what_was_asked(place: Path, origin: Nginx, shards: Path, kind: str) -> None:
    """What fits above the floor is the limit, and stays it while segments come and go; no reader notices."""
    size = 64 // SHRINK
    disk = file_system(place, kind, f"{size}m")
    with running(place, "--cache-size", "10GB", allow=[origin.base()], program=PROGRAM, **disk) as sidecar:
        bound = sidecar.status()["cache"]["effective_bytes"]
        found = os.statvfs(inside(sidecar))
        floor = found.f_blocks * found.f_frsize // 20
        with sampling(inside(sidecar), sidecar.process.pid) as seen:
            pour(sidecar, origin, shards, times=2 * AGAIN)
        errors = sidecar.metric("forebay_cache_disk_errors_total")
    print(f"{kind}: {vars(seen)}, bound {bound}, floor {floor}, {errors} disk errors")
    assert bound < size * 2**20
    assert bound // 2 < seen.peak_bytes <= bound
    assert seen.least_free_bytes >= floor
    assert errors == 0


@needs_mounts
def test_a_disk_that_is_full_at_the_start(place: Path, origin: Nginx, shards: Path) -> None:
    """It starts, says that it stores nothing, and serves."""
    disk = file_system(place, "tmpfs", "16m", 'head -c 100m /dev/zero > "$0/filler" 2>/dev/null')
    with running(place, "--cache-size", "200MB", allow=[origin.base()], program=PROGRAM, **disk) as sidecar:
        notices = " ".join(sidecar.status()["notices"])
        pour(sidecar, origin, shards)
        requests = sidecar.status()["requests"]
    assert "full" in notices, notices
    assert requests["bypass"] == 2 * len(list(shards.iterdir())), requests


@needs_mounts
def test_others_fill_the_disk_and_leave_again(place: Path, origin: Nginx, shards: Path) -> None:
    """The capacity follows what they leave, is worked off, and grows back; the configured one is never exceeded, and no reader notices."""
    disk = file_system(place, "tmpfs", f"{96 // SHRINK}m")
    with running(place, "--cache-size", str(64 * UNIT), allow=[origin.base()], program=PROGRAM, **disk) as sidecar:
        pour(sidecar, origin, shards, times=1)
        filler, ended, over = inside(sidecar).parent / "filler", threading.Event(), threading.Event()

        def fill() -> None:
            with filler.open("wb", buffering=0) as file:
                while file.tell() < 64 * UNIT and not over.is_set():
                    with suppress(OSError):  # it is faster than we look: it tries again, as another program would
                        file.write(bytes(UNIT))
                    time.sleep(0.02)
            ended.set()

        filling = threading.Thread(target=fill)
        with sampling(inside(sidecar), sidecar.process.pid) as seen:
            filling.start()
            try:
                while not ended.is_set():
                    pour(sidecar, origin, shards, times=1)
            finally:
                over.set()  # also where a reader failed, or the time is over
                filling.join()
            floor = os.statvfs(inside(sidecar)).f_blocks * 4096 // 20
            wait_until(lambda: os.statvfs(inside(sidecar)).f_bavail * 4096 >= floor - UNIT)
            wait_until(lambda: sidecar.status()["cache"]["effective_bytes"] <= 100 * UNIT - 64 * UNIT)  # 0 where the disk refused early
            tight = sidecar.status()["cache"]["effective_bytes"]
            pour(sidecar, origin, shards, times=1)
            filler.unlink()
            wait_until(lambda: sidecar.status()["cache"]["effective_bytes"] == 64 * UNIT)
            pour(sidecar, origin, shards)
    print(f"{vars(seen)}, {tight} bytes effective while the disk was full")
    assert seen.peak_bytes <= 64 * UNIT


def test_a_limit_lowered_at_a_restart(place: Path, origin: Nginx, shards: Path) -> None:
    """What stands above it leaves before anybody is served: the directory only ever shrinks until it fits."""
    with running(place, "--cache-size", str(150 * UNIT), allow=[origin.base()], program=PROGRAM) as sidecar:
        pour(sidecar, origin, shards, times=1)
        before = held_bytes(sidecar)  # readers may be ahead of the last segments' writes
    assert before > 100 * UNIT
    lowered = running(place, "--cache-size", str(LIMIT), allow=[origin.base()], program=PROGRAM)
    with lowered as sidecar, sampling(sidecar.cache_dir, sidecar.process.pid) as seen:
        pour(sidecar, origin, shards)
    print(f"{before} before, then {vars(seen)}")
    assert seen.peak_bytes <= LIMIT


def test_thousands_of_tiny_shards(place: Path) -> None:
    """5,000 bytes take two blocks and 13,000 four, a file a place in its folder and a row in the index: all of it counts."""
    (place / "files").mkdir()
    count, size = ordinarily(400, of=2400, what="tiny shards"), 5_000 if LONG else 13_000
    limit = (16 if LONG else 8) * 2**20  # some 1,500 of them fill it, or 260 to 320, as the index has grown by then
    for number in range(count):
        make_shard(place / f"files/{number}.tar", size, number)
    with (
        servers.nginx(place / "nginx", place / "files") as origin,
        running(place, "--cache-size", str(limit), allow=[origin.base()], program=small_segments(1 << 20)) as sidecar,
    ):
        work = [partial(read, sidecar.proxied(origin.url(f"{number}.tar")), place / f"files/{number}.tar") for number in range(count)]
        with sampling(sidecar.cache_dir, sidecar.process.pid) as seen:
            answers = many(1, work)
        assert all(got.whole for got in answers)
        status = sidecar.status()["cache"]
    print(f"{vars(seen)}, {status}")
    assert seen.peak_bytes <= limit
    assert 200 < status["shards"] < count, "it is full of them"
