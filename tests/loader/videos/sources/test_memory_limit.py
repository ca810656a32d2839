"""The memory of this process, by files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay_loader.videos.sources.frame_room import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1048576\n"}, 1 << 20),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4096\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 4096),
        ({"proc/self/cgroup": "0::/kubepods/x\n", "sys/fs/cgroup/memory.max": "8192\n"}, 8192),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/x/memory.max": "8192\n"}, 8192),
        ({"proc/self/cgroup": "4:memory:/j\n0::/\n", "sys/fs/cgroup/memory/j/memory.limit_in_bytes": "12288\n"}, 12_288),
        ({"proc/self/cgroup": "4:cpu,memory:/j\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ({"proc/self/cgroup": "of another system", "sys/fs/cgroup/memory.max": "1"}, MACHINE),
    ],
    ids=["none", "max", "its own", "the one around", "a container", "a way up", "version 1", "without a limit", "no group"],
)
def test_the_smallest_counts(tmp_path: Path, files: dict[str, str], found: int) -> None:
    """Of the machine and each group."""
    put(tmp_path, files)
    assert memory_bytes(tmp_path) == found


def test_here() -> None:
    """As it is: something, and no more than the machine has."""
    assert 0 < memory_bytes() <= MACHINE
