"""What a scan has found so far, beside the table it is for: the next run goes on from there.

``PATH.partial``: records one behind the other, each with its length and CRC-32 (begun with the version of records, so that those of another
version count as torn) in front, in the order in which they were found. It is only
ever appended to, under a lock, by any number of processes, until one of them has written all of it to the table. What a kill tore off ends
it: reading stops there, and whoever appends next cuts it there.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Iterator, Union

from forebay_loader.videos.metadata.record import RECORD_VERSION

__all__ = ["ScanJournal"]

_FRAME = Struct("<II")


class ScanJournal:
    """The journal of the table at ``path``. Nothing is created before something is appended."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(f"{os.fspath(path)}.partial")
        self._whole = 0  # so far it is known to be whole
        self._last = (0, b"")  # where the last record before that begins, and its head: another file, of whatever length, has another

    def append(self, record: bytes) -> None:
        """Add ``record``, as ``packed`` gives it, at the end. Raises ``OSError``."""
        with self._alone() as file:
            for _ in self._read(file):
                pass
            file.truncate(self._whole)
            head = _FRAME.pack(len(record), _checksum(record))
            file.write(head + record)
            self._last = self._whole, head
            self._whole += _FRAME.size + len(record)

    def records(self) -> Iterator[bytes]:
        """The records that are whole, in their order; none where there is no journal. Raises ``OSError``."""
        try:
            with self.path.open("rb") as file:
                self._whole = 0
                yield from self._read(file)
        except FileNotFoundError:
            return

    @contextmanager
    def ending(self) -> Iterator[Iterator[bytes]]:
        """Its records, while nobody else can append; when the ``with`` ends they stand in the table, and the journal goes."""
        with self._alone() as file:
            self._whole = 0
            yield self._read(file)
            self.path.unlink()
            self._whole = 0

    @contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """The file, locked. Whoever waited for one that ended meanwhile takes the next: what was written to the old one would be lost."""
        while True:
            with self.path.open("a+b") as file:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                if self._is(file):
                    yield file
                    return

    def _is(self, file: BinaryIO) -> bool:
        """Whether ``file`` still has the journal's name."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        """The whole records behind those that are known; they are known then."""
        length = os.fstat(file.fileno()).st_size
        begin, head = self._last
        file.seek(begin)
        if length < self._whole or file.read(len(head)) != head:
            self._whole = 0  # another one: it was removed, and begun again
        file.seek(self._whole)
        while len(head := file.read(_FRAME.size)) == _FRAME.size:
            size, checksum = _FRAME.unpack(head)
            if size > length - file.tell():
                return  # torn, or no length at all: nothing is allocated by it
            record = file.read(size)
            if _checksum(record) != checksum:
                return
            self._last, self._whole = (self._whole, head), file.tell()
            yield record


def _checksum(record: bytes) -> int:
    return zlib.crc32(record, RECORD_VERSION)
