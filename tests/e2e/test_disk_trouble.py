"""Disks that refuse: at the start one clear line and exit code 2, or bypass with a notice; in the middle every byte is still right.

The file systems are tiny ones in memory, mounted in a mount namespace of the sidecar's own: nothing of them is left behind.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support import nginx as servers
from support.nginx import Nginx
from support.readers import make_shard, many, read
from support.sidecar import Sidecar, running, wait_until

from forebay_proxy.core.segments import SEGMENT_BYTES


def can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = [
    pytest.mark.needs("nginx", "unshare"),
    pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces, for file systems of its own"),
]

SIZES = [3_000_000, 20_000_000, 9_000_001, 33_000_000]


@pytest.fixture
def origin(place: Path) -> Iterator[Nginx]:
    (place / "files").mkdir()
    for number, size in enumerate(SIZES):
        make_shard(place / f"files/{number}.tar", size, number)
    with servers.nginx(place / "nginx", place / "files") as made:
        yield made


def on_small_disk(place: Path, size: str, before: str = ":") -> tuple[str, ...]:
    """What stands before the sidecar's command line: its cache directory is a tmpfs, and ``before`` has been done in it (``$0``)."""
    (place / "cache").mkdir(mode=0o700, exist_ok=True)
    script = f'mount -t tmpfs -o size={size},mode=700 none "$0" && {before}; exec "$@"'
    return ("unshare", "-m", "--propagation", "private", "sh", "-c", script, str(place / "cache"))


def inside(sidecar: Sidecar) -> Path:
    """The cache directory as the sidecar sees it."""
    return Path(f"/proc/{sidecar.process.pid}/root{sidecar.cache_dir}")


def read_all(sidecar: Sidecar, origin: Nginx, place: Path, times: int = 2) -> None:
    work = [partial(read, sidecar.proxied(origin.url(f"{number}.tar")), place / f"files/{number}.tar") for number in range(len(SIZES))]
    answers = many(8, work * times)
    assert all(got.whole for got in answers)
    assert sum(got.count for got in answers) == times * sum(SIZES)


def test_a_disk_that_is_full_at_the_start(place: Path, origin: Nginx) -> None:
    """It starts, says that it stores nothing, and serves."""
    wrapper = on_small_disk(place, "16m", 'head -c 100m /dev/zero > "$0/filler" 2>/dev/null')
    with running(place, "--cache-size", "200MB", allow=[origin.base()], wrapper=wrapper) as sidecar:
        notices = " ".join(sidecar.status()["notices"])
        read_all(sidecar, origin, place)
        requests = sidecar.status()["requests"]
    assert "full" in notices, notices
    assert requests["bypass"] == 2 * len(SIZES), requests


def test_a_disk_that_fills_while_shards_are_read(place: Path, origin: Nginx) -> None:
    """Another program takes all that is free, and gives it back: bytes stay right, and afterwards shards are stored again."""
    wrapper = on_small_disk(place, "64m")
    with running(place, "--cache-size", "200MB", allow=[origin.base()], wrapper=wrapper) as sidecar:
        seen = [0]

        def fill_up(count: int) -> None:
            if count > SEGMENT_BYTES // 2 and not seen[0]:
                seen[0] = fill(inside(sidecar) / "filler")

        got = read(sidecar.proxied(origin.url("3.tar")), place / "files/3.tar", seen=fill_up)
        assert (got.whole, got.count) == (True, SIZES[3])
        assert seen[0] > 0
        read_all(sidecar, origin, place)
        tight = sidecar.status()["requests"], sidecar.metric("forebay_cache_disk_errors_total", errno="ENOSPC")
        (inside(sidecar) / "filler").unlink()
        stored = read_until_stored(sidecar, origin, place)
    print(f"{seen[0] / 1e6:.0f} MB taken by another; {tight}; stored again: {stored}")


def fill(path: Path) -> int:
    """Write until the disk is full; how much that was."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 18))
    return path.stat().st_size


def read_until_stored(sidecar: Sidecar, origin: Nginx, place: Path) -> dict[str, object]:
    """The sidecar looks at the disk once a second, and tries a failed one again after a while; each try reads a shard, always rightly."""

    def stored() -> dict[str, object] | None:
        assert read(sidecar.proxied(origin.url("0.tar")), place / "files/0.tar").whole
        found = sidecar.shards().get(origin.url("0.tar"), {})
        return found if found.get("complete") else None

    return wait_until(stored)
