"""Reads a shard's tar headers step by step, for its sample index: bounded in time, in memory and in what it asks of the disk.

A hostile tar can hold millions of members, chains of extended headers, names of a gigabyte. A step ends after ``STEP_S`` at the next
member; between two of them the caller pauses, and may give up. Runs in a thread, one step at a time; it holds no descriptor.
"""

from __future__ import annotations

import os
import time

from forebay_proxy.wire.tar.members import BadTar
from forebay_proxy.wire.tar.sample_index import IndexBuilder, NotIndexable, encode
from forebay_proxy.wire.tar.scan import scan

__all__ = ["SampleIndexSteps"]

# The interpreter is the event loop's too: it gets it back at each read, and for good after this. Shorter costs more in handing over.
STEP_S = 0.002
LOOK_EVERY = 16  # members between two looks at the clock
MOST_READS = 1 << 12  # for one member: a chain of headers about the next one, or a gigabyte of zeros behind the end
MOST_READ_BYTES = 1 << 20  # what ``Walk`` compares at a time
MOST_MEMBER_S = 2.0  # of the processor, in one step: what these headers say may take longer to read than they take to come
MOST_TIME_S = 120.0  # of work: a million members take ten

_KINDS = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "a zip archive",
    b"PAR1": "Parquet",
}  # fmt: skip


class SampleIndexSteps:
    """``step`` until it says that it is done, then ``encoded``. Both raise ``NotIndexable``, and ``OSError`` of the disk."""

    def __init__(self, length: int) -> None:
        self.worked_s = 0.0
        self._length = length
        self._fd = -1
        self._reads = 0
        self._until_s = 0.0  # of the processor's time
        self._builder = IndexBuilder()
        self._members = scan(self._read, length)

    def __repr__(self) -> str:
        return f"<SampleIndexSteps {len(self._builder)} members, {self.worked_s:.3f} s>"

    def step(self, fd: int) -> bool:
        """Go on for ``STEP_S`` in the file ``fd``, which holds the shard. True: that was all of it."""
        self._fd = fd
        began = time.perf_counter()
        self._until_s = time.thread_time() + MOST_MEMBER_S
        try:
            return self._go_on(began + STEP_S)
        except BadTar as bad:
            raise NotIndexable(self._described(bad)) from None
        finally:
            self._fd = -1
            self.worked_s += time.perf_counter() - began

    def encoded(self) -> bytes:
        """The index, when ``step`` has said that it is done."""
        return encode(self._builder.finished(self._length))

    def _go_on(self, until: float) -> bool:
        if self.worked_s > MOST_TIME_S:
            raise NotIndexable(f"its {len(self._builder)} files so far took {MOST_TIME_S:g} s to read")
        for count, (name, offset, size) in enumerate(self._members, 1):
            self._builder.add(name, offset, size)
            self._reads = 0
            if count % LOOK_EVERY == 0 and time.perf_counter() > until:
                return False
        return True

    def _read(self, offset: int, size: int) -> bytes:
        self._reads += 1
        if size > MOST_READ_BYTES or self._reads > MOST_READS or time.thread_time() > self._until_s:
            raise NotIndexable(f"a header of its tar is longer than {MOST_READ_BYTES} bytes, or too many of them tell about one file")
        return os.pread(self._fd, size, offset)

    def _described(self, bad: BadTar) -> str:
        if bad.kind != "start":
            return f"its tar is not well formed: {bad}, at byte {bad.at}"
        beginning = os.pread(self._fd, 8, 0)
        kind = next((kind for magic, kind in _KINDS.items() if beginning.startswith(magic)), "")
        return f"it is not a plain tar ({kind or bad})"
