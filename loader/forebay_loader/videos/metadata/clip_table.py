"""What a scan found, looked up by a clip's name: the file is mapped read-only, so that all workers of a machine share one copy of it.

Rejected: a ``multiprocessing.Manager`` dict, as loaders of this kind often have. Each look-up is a message to one process, which pickles
the answer: 1.3 to 6 times slower than this table for four workers on two cores, the less the busier these are with other things, and 5 s
until 20,000 clips are in it, where the table is mapped in 0.04 s. Its process is one more thing that
can die. A plain dict that forked workers inherit is faster still; but it is copied to each of them, page by page as its reference counts
are written, whole where they are spawned, and it has to be read in before the first of them starts.
"""

from __future__ import annotations

import mmap
import os
import zlib
from bisect import bisect_left
from pathlib import Path
from typing import Any, Iterator, Optional, Union

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.record import ClipRecord, CorruptClipTable, name_in, unpacked
from forebay_loader.videos.metadata.table_file import ENTRY_BYTES, HEAD_BYTES, TableHead, hash_of, read_head

__all__ = ["ClipTable"]


class ClipTable:
    """The table at ``path``. It travels to workers as its path, and is mapped when it is first asked; close it, or use ``with``.

    - ``path``: what ``forebay index --video`` or ``scan_clips`` wrote.

    Raises ``CorruptClipTable`` for another file, an incomplete or a damaged one, and ``OSError`` where it cannot be read: at the first
    look-up, and of one damaged record at its own.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(path)
        self._opened: Optional[_Map] = None

    def __repr__(self) -> str:
        return f"<ClipTable {self.path}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_opened": None}

    def __len__(self) -> int:
        return self._mapped().head.records

    def find(self, name: str, clip_bytes: Optional[int] = None) -> Optional[ClipInfo]:
        """What is known of the clip ``name`` (``clip_name``); None where no scan saw it, or it had another length than ``clip_bytes``."""
        found = self.record(name)
        return found.info if found is not None and clip_bytes in (None, found.clip_bytes) else None

    def record(self, name: str) -> Optional[ClipRecord]:
        """All that is known of it, the version of its shard with it."""
        for data in self._mapped().candidates(hash_of(name.encode("utf-8", "surrogateescape"))):
            found = unpacked(data)
            if found.name == name:
                return found
        return None

    def records(self) -> Iterator[tuple[bytes, memoryview]]:
        """Each name and its record as bytes, in the order of the directory. The bytes are valid while the table is open."""
        mapped = self._mapped()
        for place in range(mapped.head.records):
            data = mapped.at(place)
            yield name_in(data), data

    def close(self) -> None:
        """Let go of the map. Safe to repeat; it is mapped again when it is asked again."""
        self._opened = None

    def __enter__(self) -> ClipTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _mapped(self) -> _Map:
        if self._opened is None:
            self._opened = _Map(self.path)
        return self._opened


class _Map:
    """A mapped table: its head and directory checked, its records checked one by one. The map ends with the last view of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            self.head: TableHead = read_head(file.read(HEAD_BYTES), length, path)
            self._map = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)
        directory = self._view[self.head.directory :]
        if zlib.crc32(directory) != self.head.checksum:
            raise CorruptClipTable(f"{path}: the directory of the table is damaged: scan again")
        count = self.head.records
        assert len(directory) == count * ENTRY_BYTES
        self._hashes = directory[: 8 * count].cast("Q")
        self._offsets = directory[8 * count : 16 * count].cast("Q")
        self._lengths = directory[16 * count : 20 * count].cast("I")
        self._checksums = directory[20 * count :].cast("I")

    def candidates(self, hashed: int) -> Iterator[memoryview]:
        """The records whose names have that hash: mostly one, or none."""
        place = bisect_left(self._hashes, hashed)
        while place < self.head.records and self._hashes[place] == hashed:
            yield self.at(place)
            place += 1

    def at(self, place: int) -> memoryview:
        """The record that stands at ``place`` in the directory. Raises ``CorruptClipTable``."""
        offset, length = self._offsets[place], self._lengths[place]
        data = self._view[offset : offset + length]
        if offset < HEAD_BYTES or offset + length > self.head.directory or zlib.crc32(data) != self._checksums[place]:
            raise CorruptClipTable(f"{self._path}: the record at byte {offset} is damaged: scan again")
        return data
