"""File systems of a test's own under a real sidecar's cache directory, in a mount namespace that goes with it.

    with running(place, …, **file_system(place, "xfs", "320m")) as sidecar:
        inside(sidecar) / "shards" …            # the cache directory as the sidecar sees it; its parent is the file system's root
        within(sidecar, "mount", "-o", "remount,ro", str(sidecar.cache_dir.parent))

Nothing of them is left behind: when the sidecar ends, so does its namespace, and with it mounts and loop devices. Their blocks lie
in memory: the disk of a machine that is shared may hold a sync for ten seconds, and a sidecar is right to take that for a bad one.
"""

from __future__ import annotations

import mmap
import os
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.sidecar import Sidecar

__all__ = ["HANG", "BadDisk", "bad_disk", "can_mount", "delay", "file_system", "inside", "needs_mounts", "within"]


_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-m", "0"),  # mounted to become read-only at its first error, as most are
    "ext2": ("mkfs.ext2", "-q", "-m", "0"),  # cannot allocate before it writes
    "xfs": ("mkfs.xfs", "-q"),  # allocates beyond the end of a file that grows
}


def can_mount() -> bool:
    """Whether this process may make mount namespaces and mount in them."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return done.returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces, for file systems of its own")


def file_system(place: Path, kind: str, size: str, before: str = ":") -> dict[str, Any]:
    """How to start a sidecar whose cache directory lies on such a file system; ``before`` is a shell command run there (``$0``: it).

    Skips the test where the tools or the kernel do not know ``kind``.
    """
    disk, under = place / "disk", place / "under"
    disk.mkdir(exist_ok=True)
    under.mkdir(exist_ok=True)
    if kind == "tmpfs":
        mount = f'mount -t tmpfs -o size={size},mode=700 none "$0"'
    elif kind == "ramfs":  # can neither allocate nor punch, and does not say how full it is
        mount = 'mount -t ramfs -o mode=700 none "$0"'
    elif kind == "overlay":
        dirs = "mkdir -m 700 lower upper work"
        mount = f"mount -t tmpfs -o size={size} none {under} && cd {under} && {dirs} && cd - >/dev/null && "
        mount += f'mount -t overlay -o lowerdir={under}/lower,upperdir={under}/upper,workdir={under}/work none "$0"'
    else:
        make = _MAKE[kind]
        if shutil.which(make[0]) is None:
            pytest.skip(f"needs {make[0]}")
        image, options = under / "image", "loop,errors=remount-ro" if kind == "ext4" else "loop"
        mount = f"mount -t tmpfs none {under} && truncate -s {_bytes(size)} {image} && {shlex.join(make)} {image} && "
        mount += f'mount -o {options} {image} "$0" && chmod 700 "$0"'
    wrapper = ("unshare", "-m", "--propagation", "private", "sh", "-c", f'{mount} && {before}; exec "$@"', str(disk))
    tried = subprocess.run([*wrapper[:-2], mount, str(disk)], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no {kind} can be mounted here: {tried.stderr.strip()}")
    return {"wrapper": wrapper, "cache": "disk/cache"}


def _bytes(size: str) -> int:
    return int(size[:-1]) * {"k": 2**10, "m": 2**20}[size[-1].lower()]


def inside(sidecar: Sidecar) -> Path:
    """The cache directory as the sidecar sees it."""
    return Path(f"/proc/{sidecar.process.pid}/root{sidecar.cache_dir}")


def within(sidecar: Sidecar, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the sidecar's mount namespace."""
    return subprocess.run(["nsenter", "-m", "-t", str(sidecar.process.pid), *command], capture_output=True, text=True, check=True)


# A disk that fails, hangs or crawls on command under a real sidecar: a small C library, preloaded into that process alone.
#
#     with bad_disk(place) as disk, running(place, …, environ=disk.environ) as sidecar:
#         disk.set(write=errno.EIO) … disk.set(read=HANG) … disk.set(write=delay(0.2)) … disk.mend()
#
# Kinds of calls: read, write, allocate, punch, sync, create, look (how full it is). Only files under the cache directory are touched.
HANG = -1
_KINDS = ("read", "write", "allocate", "punch", "sync", "create", "look")
_SOURCE = Path(__file__).with_name("bad_disk.c")


def delay(seconds: float) -> int:
    """Every call takes so much longer."""
    return -max(2, round(seconds * 1000))


@dataclass
class BadDisk:
    """What the library is told, in memory that the sidecar shares."""

    environ: Mapping[str, str]
    control: Any

    def set(self, **kinds: int) -> None:
        """From now on: an errno, ``HANG``, ``delay(…)`` or 0 for each kind named."""
        for kind, told in kinds.items():
            struct.pack_into("i", self.control, 4 * _KINDS.index(kind), told)

    def mend(self) -> None:
        self.set(**dict.fromkeys(_KINDS, 0))


@contextmanager
def bad_disk(place: Path) -> Iterator[BadDisk]:
    """One under ``place / "cache"``; it begins well. The test is marked ``needs("gcc")``."""
    library, told = place / "bad_disk.so", place / "bad_disk"
    compiler = shutil.which("gcc")
    assert compiler is not None, "mark the test with pytest.mark.needs('gcc')"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-D_LARGEFILE64_SOURCE", "-o", library, _SOURCE, "-ldl"], check=True)
    told.write_bytes(bytes(8 * len(_KINDS)))
    with told.open("r+b") as file, mmap.mmap(file.fileno(), 0) as control:
        environ = {"LD_PRELOAD": str(library), "FOREBAY_BAD_DISK": str(told), "FOREBAY_BAD_DISK_DIR": str(place / "cache")}
        disk = BadDisk(environ, control)
        try:
            yield disk
        finally:
            disk.mend()
