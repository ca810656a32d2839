"""Rows and bytes for tests of the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.store.index.row import Row, encode

BOOT = "5c6d1a34-0000-4000-8000-000000000000"


def make_row(name: str = "s3://b/0.tar", length: int | None = 2 * SEGMENT_BYTES, sums: list[int] | None = None, boot: str = BOOT) -> Row:
    """A row of version ``etag:"1"``; by default nothing of it is claimed."""
    version = Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), length, "", "application/x-tar")
    return Row.of(name, version, (), boot, Checksums(sums or ()))


def text_of(row: Row) -> str:
    """Of a row of ``make_row``, as the index has it."""
    return encode(row, DEFAULT_LAYOUT)


def ramp(key: str, index: int, length: int) -> bytes:
    """The bytes of one segment in tests: other in every file and segment, never zero."""
    unit = (key[:15] + f"{index:017d}").encode()
    size = DEFAULT_LAYOUT.span(index, length)[1]
    return (unit * (size // len(unit) + 1))[:size]


def sum_of(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data) or 1


_HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_by_a_child(path: Path) -> Iterator[None]:
    """A process holds ``path`` open under LOCK_SH, as a client does with a passed descriptor."""
    child = subprocess.Popen([sys.executable, "-S", "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield
        assert child.stdin is not None
        child.stdin.close()
