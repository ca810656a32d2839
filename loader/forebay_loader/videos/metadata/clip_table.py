"""What scans found of clips, by the clips' names: one SQLite file, which scans and trainings read and add to at the same time.

It has one table, ``clips``: a clip's name, its record (``record``) and the record's CRC-32. Each look-up opens the file: decoding a clip
takes a hundred times as long, and no connection is carried over a fork.

Rejected: a ``multiprocessing.Manager`` dict, as loaders of this kind often have. Each look-up is a message to one process, which pickles
the answer and can die, and it takes seconds to fill in each training.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import zlib
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Iterable, Iterator, Optional, Union

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.record import RECORD_VERSION, ClipRecord, CorruptClipTable, packed, unpacked

__all__ = ["ClipTable"]

_APPLICATION = 0x46424331  # "FBC1", in the head of the file
_SCHEMA = "CREATE TABLE clips (name BLOB PRIMARY KEY, record BLOB NOT NULL, checksum INTEGER NOT NULL)"
_WAIT_S = 60.0  # for other processes that write


class ClipTable:
    """The table at ``path``, which ``forebay index --video`` or ``scan_clips`` writes.

    Raises ``CorruptClipTable`` for another file or a damaged one, ``FileNotFoundError`` where nothing was scanned yet, and ``OSError``
    where it cannot be read: at each look-up.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<ClipTable {self.path}>"

    def __len__(self) -> int:
        with self._read() as db:
            return int(db.execute("SELECT count(*) FROM clips").fetchone()[0])

    def find(self, name: str, clip_bytes: Optional[int] = None) -> Optional[ClipInfo]:
        """What is known of the clip ``name`` (``clip_name``); None where no scan saw it, or it had another length than ``clip_bytes``."""
        found = self.record(name)
        return found.info if found is not None and clip_bytes in (None, found.clip_bytes) else None

    def record(self, name: str) -> Optional[ClipRecord]:
        """All that is known of it, the version of its shard with it."""
        with self._read() as db:
            row = db.execute("SELECT record, checksum FROM clips WHERE name = ?", (_key(name),)).fetchone()
        found = None if row is None else self._unpacked(*row)
        if found is not None and found.name != name:
            raise CorruptClipTable(f"{self.path}: the record of {name!r} is another's: scan again")
        return found

    def records(self) -> Iterator[ClipRecord]:
        """Each of them, in no order."""
        with self._read() as db:
            for row in db.execute("SELECT record, checksum FROM clips"):
                yield self._unpacked(*row)

    def add(self, records: Iterable[ClipRecord]) -> None:
        """All of them or none, which take the places of those of the same names. They survive a kill, and a power failure. Raises
        ``OSError``."""
        rows = [(_key(record.name), data, zlib.crc32(data)) for record in records for data in (packed(record),)]
        with self._opened("mode=rwc") as db:
            db.execute("BEGIN IMMEDIATE")
            if _is_empty(db):
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {RECORD_VERSION}")
                db.execute(_SCHEMA)
            self._check(db)
            db.executemany("INSERT OR REPLACE INTO clips VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")

    @contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        self.path.stat()  # SQLite does not say that a file is missing
        with self._opened("mode=rw") as db:  # where it may: what a kill left half written is taken back
            if _is_empty(db):
                raise FileNotFoundError(errno.ENOENT, "no clip was scanned into it", str(self.path))
            self._check(db)
            yield db

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?{mode}", _WAIT_S, isolation_level=None, uri=True)) as db:
                db.execute("PRAGMA trusted_schema = OFF")  # a file from elsewhere runs nothing
                yield db
        except sqlite3.OperationalError as error:
            number, why = (errno.ENOSPC, os.strerror(errno.ENOSPC)) if "full" in str(error) else (errno.EIO, str(error))
            raise OSError(number, why, str(self.path)) from error
        except sqlite3.DatabaseError as error:  # "file is not a database", "database disk image is malformed"
            raise CorruptClipTable(f"{self.path} is no table of clips, or a damaged one ({error}): remove it, and scan again") from error

    def _check(self, db: sqlite3.Connection) -> None:
        if db.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            raise CorruptClipTable(f"{self.path} is no table of clips; `forebay index --video` writes one")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != RECORD_VERSION:
            raise CorruptClipTable(
                f"{self.path} has records of version {version}, and this Forebay reads version {RECORD_VERSION}: scan again"
            )

    def _unpacked(self, record: bytes, checksum: int) -> ClipRecord:
        if not isinstance(record, bytes) or zlib.crc32(record) != checksum:
            raise CorruptClipTable(f"{self.path}: a record is damaged: scan again")
        return unpacked(record)


def _is_empty(db: sqlite3.Connection) -> bool:
    return not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")  # a name in a tar may be of any bytes
