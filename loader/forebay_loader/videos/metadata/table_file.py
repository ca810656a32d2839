"""The file that a scan leaves: records, a directory of them by the hash of their names, and a head that says where it lies. Version 1.

| bytes | what |
|---|---|
| 8 | ``FBCLIPS`` and a zero |
| 4, 4 | version; CRC-32 of the head with this field zero |
| 8, 8, 8 | number of records; where the directory begins; length of the file |
| 4 | CRC-32 of the directory |
| … | zeros to 64; then the records |
| 8 n, 8 n, 4 n, 4 n | the directory, by columns: hash of the name (BLAKE2b, 8 bytes), ascending; offset; length; CRC-32 of the record |

It is written beside its place and moved there whole: who has the old one mapped goes on reading that.
"""

from __future__ import annotations

import os
import secrets
import sys
import zlib
from array import array
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import BinaryIO, NamedTuple, Optional, Union

from forebay_loader.videos.metadata.record import RECORD_VERSION, CorruptClipTable

__all__ = ["ENTRY_BYTES", "HEAD_BYTES", "TableHead", "TableWriter", "clip_name", "hash_of", "read_head"]

_MAGIC = b"FBCLIPS\0"
_VERSION = RECORD_VERSION  # the rest of the file has not changed
_HEAD = Struct("<8sIIQQQI")
HEAD_BYTES = 64
ENTRY_BYTES = 24


class TableHead(NamedTuple):
    """How many records, where the directory of them begins, and its CRC-32."""

    records: int
    directory: int
    checksum: int


def clip_name(shard: str, member: str = "") -> str:
    """How a table calls a clip: the shard's URL without its query, and the member's name in it; of a clip that is a file, that alone."""
    return f"{shard.partition('?')[0]}\n{member}" if member else shard.partition("?")[0]


def hash_of(name: bytes) -> int:
    """Where a name stands in the directory."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


def read_head(buffer: Union[bytes, memoryview], length: int, shown: object) -> TableHead:
    """The head of a file of ``length`` bytes. Raises ``CorruptClipTable``, which says ``shown``."""
    if len(buffer) < HEAD_BYTES or bytes(buffer[:8]) != _MAGIC:
        raise CorruptClipTable(f"{shown} is no table of clips; `forebay index --video` writes one")
    _, version, checksum, count, directory, whole, columns = _HEAD.unpack_from(buffer)
    if version != _VERSION:
        raise CorruptClipTable(f"{shown} is a table of clips of version {version}, and this Forebay reads version {_VERSION}: scan again")
    if checksum != _checksum(count, directory, whole, columns):
        raise CorruptClipTable(f"{shown}: the head of the table is damaged: scan again")
    if whole != length or directory + count * ENTRY_BYTES != length:
        raise CorruptClipTable(f"{shown} has {length} of its {whole} bytes: copy it again, or scan again")
    if sys.byteorder != "little":
        raise CorruptClipTable(f"{shown}: tables of clips are mapped as they are, by little-endian machines only")
    return TableHead(count, directory, columns)


class TableWriter:
    """Writes a table at ``path`` when its ``with`` ends without an exception, and nothing else. The last of equal names stays."""

    def __init__(self, path: Union[str, Path]) -> None:
        """Raises ``OSError`` where nothing can be written."""
        self._path = Path(path).resolve()
        self._fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        self._file: BinaryIO = self._fresh.open("xb")
        self._file.write(bytes(HEAD_BYTES))
        self._at = HEAD_BYTES
        self._entries: dict[bytes, tuple[int, int, int]] = {}

    def __contains__(self, name: bytes) -> bool:
        return name in self._entries

    def add(self, name: bytes, record: bytes) -> None:
        """A record as ``packed`` gives it, and the name in it."""
        self._entries[name] = self._at, len(record), zlib.crc32(record)
        self._file.write(record)
        self._at += len(record)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            with self._file:
                if kind is None:
                    self._end()
            if kind is None:
                self._fresh.replace(self._path)
        finally:
            self._fresh.unlink(missing_ok=True)

    def _end(self) -> None:
        """The directory, then the head: a file that is cut has none."""
        padding = -self._at % 8
        self._file.write(bytes(padding))
        directory = self._at + padding
        rows = sorted((hash_of(name), *entry) for name, entry in self._entries.items())
        columns = b"".join(array(code, [row[place] for row in rows]).tobytes() for place, code in enumerate("QQII"))
        whole = directory + len(columns)
        self._file.write(columns)
        self._file.seek(0)
        told = (len(rows), directory, whole, zlib.crc32(columns))
        self._file.write(_HEAD.pack(_MAGIC, _VERSION, _checksum(*told), *told))
        self._file.flush()
        os.fsync(self._file.fileno())


def _checksum(count: int, directory: int, whole: int, columns: int) -> int:
    return zlib.crc32(_HEAD.pack(_MAGIC, _VERSION, 0, count, directory, whole, columns))
