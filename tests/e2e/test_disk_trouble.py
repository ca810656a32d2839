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
from support.sidecar import FOREBAY, Sidecar, environment, forebay, running, wait_until

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


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ('mount -o remount,ro "$0"', "Read-only file system"),
        ('chmod 777 "$0"', "can be written by others"),
        ('chown 1 "$0"', "belongs to uid 1"),
    ],
)
def test_a_directory_that_will_not_do(place: Path, prepare: str, says: str) -> None:
    """Read-only, open to others, somebody else's: exit code 2 and one line that says so."""
    command = [
        *on_small_disk(place, "20m", prepare),
        *FOREBAY,
        "serve",
        "--port",
        "0",
        "--socket",
        "off",
        "--cache-dir",
        str(place / "cache"),
    ]
    done = subprocess.run(command, env=environment(place), capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert says in done.stderr


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


def test_what_takes_the_room_is_told_once_and_while_it_lasts(place: Path, origin: Nginx) -> None:
    """Others fill the disk, and requests pass by: sentences in ``/v1/status`` and ``status`` while it lasts, one line of the log."""
    wrapper = on_small_disk(place, "64m")
    with running(place, "--cache-size", "200MB", allow=[origin.base()], wrapper=wrapper) as sidecar:

        def troubles(words: str) -> list[str]:
            return [text for text in sidecar.status()["troubles"] if words in text]

        assert sidecar.status()["troubles"] == []
        assert fill(inside(sidecar) / "filler") > 0
        (filled,) = wait_until(lambda: troubles("other programs fill the cache's disk: of "))
        assert "make room there, or move the cache (--cache-dir)" in filled
        read_all(sidecar, origin, place)
        wait_until(lambda: troubles("requests of the last minute were not stored: "))
        said = forebay(place, "status", "--url", sidecar.url).stdout
        assert sum(line.startswith("trouble ") for line in said.splitlines()) == 2, said
        (inside(sidecar) / "filler").unlink()
        wait_until(lambda: not troubles("other programs fill the cache's disk: of "))
        log = sidecar.log_text()
    for words in ("other programs fill the cache's disk: of", "the cache's disk has room again"):
        assert log.count(words) == 1, (words, log)


def test_a_directory_that_vanishes(place: Path, origin: Nginx) -> None:
    """Everything in it removed under the sidecar's feet: bytes stay right."""
    with running(place, "--cache-size", "200MB", allow=[origin.base()]) as sidecar:
        read_all(sidecar, origin, place, times=1)
        for path in (sidecar.cache_dir / "shards").iterdir():
            path.unlink()
        read_all(sidecar, origin, place)


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
