"""The index on disk: diskcache as a table of JSON rows, one per shard version. Blocking; used by one thread alone.

diskcache provides SQLite with crash-safe defaults. Its other features are off: it bounds nothing, evicts nothing, writes no value files,
and reads no unchecked row. Its own reading would unpickle what a crafted row contains and open the file that it names, even under
``JSONDisk``. So one plain SELECT loads all rows at the start, plain SQL deletes bad ones, and ``RowDisk`` refuses everything but text.

The directory is named by its open descriptor (``/proc/self/fd/N``): diskcache expands ``$`` and ``~`` in names.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import diskcache

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.files.fallocate import Reserve
from forebay_proxy.store.index.row import MAX_ROW_BYTES, InvalidRow, Row, decode

__all__ = ["IndexBroken", "IndexDatabase", "LoadedIndex", "RowDisk", "RowRefused"]

DATABASE = "cache.db"  # diskcache's name for it
_RAW = 1  # diskcache's mode of a value that is in the row itself
_CHECKPOINT_PAGES = 256  # 1 MiB of log, so the ledger sets little aside for it
SETTINGS: dict[str, int | str] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "disk_min_file_size": 2**30,  # every value is in the table
    "sqlite_mmap_size": 0,  # a truncated file must be an error, not a bus error
    "sqlite_cache_size": -2000,  # KiB
    "sqlite_wal_autocheckpoint": _CHECKPOINT_PAGES,
    "sqlite_journal_size_limit": _CHECKPOINT_PAGES * 4096,  # the log of a large commit is truncated later
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 1,  # survives a kill without fsync; after a power cut the boot id differs, and every segment is verified
    "sqlite_secure_delete": 1,  # a deleted row is overwritten, not left in a free page: an older version may have written secrets
    "sqlite_auto_vacuum": 1,  # deleted rows give their pages back: the index counts against the bound
}
_BUSY_S = 5.0  # we are the only owner; somebody with sqlite3 may hold it for a moment

_HAS_ROWS = "SELECT 1 FROM sqlite_master WHERE name = 'Cache'"  # otherwise the database is empty, or we were killed while making it
# A value longer than any row of ours is not even read, nor is a file name.
_SELECT = f"""
SELECT rowid, typeof(key), CASE WHEN length(CAST(key AS BLOB)) = 64 THEN key END, raw, mode, filename IS NOT NULL,
    typeof(value), CASE WHEN length(CAST(value AS BLOB)) <= {MAX_ROW_BYTES} THEN value END,
    CASE WHEN typeof(store_time) = 'real' THEN store_time ELSE 0.0 END
FROM Cache ORDER BY rowid
"""  # noqa: S608 -- a number of ours


class IndexBroken(Exception):
    """The database is damaged, or not one of ours."""


class RowRefused(ValueError):
    """A value that is not a JSON text row was given to diskcache, or found by it."""


@dataclass(slots=True)
class LoadedIndex:
    """The rows, when each was committed (seconds of the wall clock by key), and how many were refused (and deleted)."""

    rows: list[Row] = field(default_factory=list)
    committed_at: dict[str, float] = field(default_factory=dict)
    refused: int = 0


class RowDisk(diskcache.Disk):
    """Keys and values are text in the table; nothing is ever pickled, unpickled, or kept in a file."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise RowRefused("a key that is not text")
        return key, True

    def get(self, key: object, raw: object) -> str:
        if not raw or type(key) is not str:
            raise RowRefused("a key that is not text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, str]:
        if type(value) is not str or read:
            raise RowRefused("a value that is not text")
        return 0, _RAW, None, value

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> str:
        if mode != _RAW or filename is not None or type(value) is not str or read:
            raise RowRefused("a value that is not text")
        return value

    def filename(self, key: object = None, value: object = None) -> NoReturn:
        raise RowRefused("a value kept in a file")

    def remove(self, file_path: str) -> None:
        """Does nothing: no row of ours has a file, and a crafted row must not name one to delete."""


class IndexDatabase:
    """The database in one directory, given as an open descriptor. Always used by the same thread."""

    def __init__(self, directory: int, layout: SegmentLayout) -> None:
        self._layout = layout
        self._directory = directory
        self._reserve = Reserve(directory)
        self._cache: Any = None

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._directory}"

    def load(self) -> LoadedIndex:
        """All rows; refused ones are deleted. Raises IndexBroken, or sqlite3.Error or OSError if the disk fails."""
        self._make()
        try:
            loaded, refused = self._read_rows()
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise IndexBroken(str(error)) from error
            raise
        if refused:
            self._delete(refused)
            loaded.refused = len(refused)
        self._reserve.allocate()
        return loaded

    def _make(self) -> None:
        """Make an empty file of mode 0600, if there is none: SQLite would make one that others may read.

        Raises IndexBroken for other files.
        """
        for name in os.listdir(self._path):
            state = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
                raise IndexBroken("not a plain file in the index folder")
        fd = os.open(DATABASE, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        os.close(fd)

    def _read_rows(self) -> tuple[LoadedIndex, list[int]]:
        try:
            return self._judge(self._connect("ro"))
        except sqlite3.OperationalError as error:
            if _is_damage(error):
                raise
        connection = self._connect("rw")  # a full disk has no room for the file that readers share: use the database exclusively
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        return self._judge(connection)

    def _judge(self, reader: sqlite3.Connection) -> tuple[LoadedIndex, list[int]]:
        loaded = LoadedIndex()
        refused: list[int] = []
        with closing(reader) as connection:
            for rowid, *columns, committed_at in connection.execute(_SELECT) if connection.execute(_HAS_ROWS).fetchone() else ():
                try:
                    row = _row(columns, self._layout)
                except InvalidRow:
                    refused.append(rowid)
                else:
                    loaded.rows.append(row)
                    loaded.committed_at[row.key] = committed_at
        return loaded, refused

    def _delete(self, rowids: list[int]) -> None:
        with suppress(sqlite3.OperationalError), closing(self._connect("rw")) as connection, connection:
            connection.executemany("DELETE FROM Cache WHERE rowid = ?", ((rowid,) for rowid in rowids))

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{self._path}/{DATABASE}?mode={mode}", uri=True, timeout=_BUSY_S)
        connection.text_factory = bytes  # text that is not UTF-8 refuses its row, not the whole load
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def commit(self, changes: Mapping[str, str | None]) -> None:
        """Put (text) or delete (None) rows in one transaction, all or none. Raises sqlite3.Error, OSError or diskcache.Timeout."""
        try:
            self._commit(changes)
        except (sqlite3.Error, diskcache.Timeout):
            if not self._reserve.give_up():
                raise
            self._commit(changes)
        else:
            self._reserve.allocate()

    def _commit(self, changes: Mapping[str, str | None]) -> None:
        try:
            os.stat(DATABASE, dir_fd=self._directory)  # SQLite would go on writing into a deleted file
            cache = self._open()
            with cache.transact():
                for key, text in changes.items():
                    if text is None:
                        cache.delete(key)
                    else:
                        cache.set(key, text)
        except BaseException:
            self.close()  # the state of the connection depends on where SQLite failed
            raise

    def _open(self) -> Any:
        if self._cache is None:
            kind: Any = diskcache.Cache  # untyped
            cache = kind.__new__(kind)
            try:
                cache.__init__(self._path, timeout=_BUSY_S, disk=RowDisk, **SETTINGS)
            except BaseException:
                cache.close()  # else the error keeps the connection, and so the blocks of a database that was moved away
                raise
            self._cache = cache
        return self._cache

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()
            self._cache = None


def _row(columns: Iterable[Any], layout: SegmentLayout) -> Row:
    key_type, key, raw, mode, is_file, value_type, value = columns
    if key_type != b"text" or value_type != b"text" or raw != 1 or mode != _RAW or is_file or key is None or value is None:
        raise InvalidRow("not a text row")
    try:
        return decode(key.decode("ascii"), value.decode("ascii"), layout)
    except UnicodeDecodeError as error:
        raise InvalidRow("not ASCII") from error


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the database itself is damaged, as opposed to a disk that fails or is full."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
