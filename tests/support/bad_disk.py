"""A disk that fails, hangs or crawls on command under a real sidecar: a small C library, preloaded into that process alone.

    with bad_disk(place) as disk, running(place, …, environ=disk.environ) as sidecar:
        disk.set(write=errno.EIO) … disk.set(read=HANG) … disk.set(write=delay(0.2)) … disk.mend()

Kinds of calls: read, write, allocate, punch, sync, create, look (how full it is). Only files under the cache directory are touched.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["HANG", "BadDisk", "bad_disk", "delay"]

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

    def everything(self, told: int) -> None:
        self.set(**dict.fromkeys(_KINDS, told))

    def mend(self) -> None:
        self.everything(0)

    def struck(self, kind: str) -> int:
        """How many calls of this kind failed, hung or were held."""
        return int(struct.unpack_from("i", self.control, 4 * (len(_KINDS) + _KINDS.index(kind)))[0])


@contextmanager
def bad_disk(place: Path, cache: str = "cache") -> Iterator[BadDisk]:
    """One under ``place / cache``; it begins well. The test is marked ``needs("gcc")``."""
    library, told = place / "bad_disk.so", place / "bad_disk"
    compiler = shutil.which("gcc")
    assert compiler is not None, "mark the test with pytest.mark.needs('gcc')"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-D_LARGEFILE64_SOURCE", "-o", library, _SOURCE, "-ldl"], check=True)
    told.write_bytes(bytes(8 * len(_KINDS)))
    with told.open("r+b") as file, mmap.mmap(file.fileno(), 0) as control:
        environ = {"LD_PRELOAD": str(library), "FOREBAY_BAD_DISK": str(told), "FOREBAY_BAD_DISK_DIR": str(place / cache)}
        disk = BadDisk(environ, control)
        try:
            yield disk
        finally:
            disk.mend()
