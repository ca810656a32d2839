"""Small entries as rows of one SQLite, by diskcache, which is held back from all but bytes: it would unpickle what a row tells it to."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from typing import Any, Iterator, NoReturn, Optional, Sequence, Tuple

import diskcache

from forebay_loader.memos.entry import KEY_BYTES, EntryDamaged, key_in, unpacked
from forebay_loader.memos.kept_value import KeptValue
from forebay_loader.memos.stores.memo_store import StoreFull

__all__ = ["BytesDisk", "DiskcacheStore"]

_RAW = 1  # diskcache's mode of a value that lies in the row itself
_BUSY_S = 5.0
_SETTINGS = {"eviction_policy": "none", "cull_limit": 0, "size_limit": 1 << 62, "statistics": 0, "disk_min_file_size": 1 << 40}
_ROW = 64  # bytes of a row beside its value


class BytesDisk(diskcache.Disk):
    """Keys are text and values bytes in the table; nothing is pickled, unpickled or kept in a file of its own."""

    def put(self, key: object) -> Tuple[str, bool]:
        if type(key) is not str:
            raise EntryDamaged("a key that is not text")
        return key, True

    def get(self, key: object, raw: object) -> str:
        if not raw or type(key) is not str:
            raise EntryDamaged("a key that is not text")
        return key

    def store(self, value: object, read: bool, key: object = None) -> Tuple[int, int, None, Any]:
        if type(value) is not bytes or read:
            raise EntryDamaged("a value that is not bytes")
        return 0, _RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        if mode != _RAW or filename is not None or type(value) is not bytes or read:
            raise EntryDamaged("a value that is not bytes")
        return value

    def filename(self, key: object = None, value: object = None) -> NoReturn:
        raise EntryDamaged("a value kept in a file")

    def remove(self, file_path: str) -> None:
        """Nothing: no row of ours has a file, and a crafted row must not name one to delete."""


class DiskcacheStore:
    """In ``folder``. For entries of some kilobytes."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "rows")
        with _named():
            kind: Any = diskcache.Cache  # untyped
            self._cache: Any = kind(self._path, timeout=_BUSY_S, disk=BytesDisk, **_SETTINGS)

    def get(self, key: bytes) -> Optional[KeptValue]:
        with _named():
            found = self._cache.get(key.hex())
        return None if found is None else unpacked(key, found)

    def put(self, entries: Sequence[bytes]) -> None:
        with _named(), self._cache.transact():
            for entry in entries:
                self._cache.set(key_in(entry).hex(), entry)

    def drop(self, keys: Sequence[bytes]) -> None:
        with _named(), self._cache.transact():
            for key in keys:
                self._cache.delete(key.hex())

    def entries(self) -> Iterator[Tuple[bytes, int]]:
        with _named(), closing(sqlite3.connect(os.path.join(self._path, "cache.db"), timeout=_BUSY_S)) as connection:
            for key, size in connection.execute("SELECT key, length(value) FROM Cache WHERE typeof(key) = 'text' ORDER BY rowid"):
                if len(key) == 2 * KEY_BYTES:
                    yield bytes.fromhex(key), _ROW + (size or 0)

    def close(self) -> None:
        self._cache.close()


@contextmanager
def _named() -> Iterator[None]:
    """SQLite's errors as those of a store."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise (StoreFull if "full" in str(error) else OSError)(f"SQLite: {error}") from error
    except (sqlite3.Error, diskcache.Timeout) as error:
        raise OSError(f"SQLite: {error}") from error
