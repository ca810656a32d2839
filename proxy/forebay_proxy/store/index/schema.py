"""Whether an SQLite file is a database that diskcache made for us: its tables, indexes, triggers and settings, to the letter.

diskcache creates missing tables and uses existing ones as they are. A trigger would run with each of our commits, an expression in an index
or a generated column with each read, a view can stand where a table is expected, and of the settings each one whose name begins with
``sqlite_`` is run as a PRAGMA. So nothing is opened for writing that is not exactly what diskcache itself creates. What a trigger or an
index does stands only in its text, so it is the text that is compared, and pyproject.toml bounds diskcache to the minor that writes it so.
"""

from __future__ import annotations

import sqlite3

import diskcache

__all__ = ["OBJECTS", "SETTINGS", "IndexBroken", "is_ours"]

_CHECKPOINT_PAGES = 256  # 1 MiB of log: what the ledger sets aside for it stays small
SETTINGS: dict[str, int | str] = {
    "eviction_policy": "none",
    "cull_limit": 0,
    "size_limit": 2**62,
    "statistics": 0,
    "disk_min_file_size": 2**30,  # every row lies in the table
    "sqlite_mmap_size": 0,  # a truncated file must be an error, not a bus error
    "sqlite_cache_size": -2000,  # KiB
    "sqlite_wal_autocheckpoint": _CHECKPOINT_PAGES,
    "sqlite_journal_size_limit": _CHECKPOINT_PAGES * 4096,  # a large commit does not keep its log for ever
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 1,  # survives a kill without fsync; after a power cut the boot id sends every segment to its checksum
    "sqlite_secure_delete": 1,  # what a row said is overwritten, not left in a free page: an older version may have written secrets
    "sqlite_auto_vacuum": 1,  # dropped rows give their pages back: the index counts against the bound
}
_KNOWN_SETTINGS = frozenset(name.encode() for name in {*diskcache.DEFAULT_SETTINGS, *SETTINGS, "count", "size", "hits", "misses"})
_KNOWN_WORDS = (b"wal", b"none")


def _trigger(name: str, event: str, change: str, row: str) -> tuple[str, str]:
    head = f"CREATE TRIGGER Settings_{name} AFTER {event} ON Cache FOR EACH ROW BEGIN"
    return f"Settings_{name}", f'{head} UPDATE Settings SET value = value {change} WHERE key = "{row}"; END'  # noqa: S608 -- words of ours


OBJECTS: dict[str, str | None] = {  # as SQLite keeps them of diskcache 5.6.3; a test compares them with what it makes now
    "Settings": "CREATE TABLE Settings ( key TEXT NOT NULL UNIQUE, value)",
    "sqlite_autoindex_Settings_1": None,
    "Cache": (
        "CREATE TABLE Cache ( rowid INTEGER PRIMARY KEY, key BLOB, raw INTEGER, store_time REAL, expire_time REAL, access_time REAL,"
        " access_count INTEGER DEFAULT 0, tag BLOB, size INTEGER DEFAULT 0, mode INTEGER DEFAULT 0, filename TEXT, value BLOB)"
    ),
    "Cache_key_raw": "CREATE UNIQUE INDEX Cache_key_raw ON Cache(key, raw)",
    "Cache_expire_time": "CREATE INDEX Cache_expire_time ON Cache (expire_time)",
    **dict(
        _trigger(*words)
        for words in (
            ("count_insert", "INSERT", "+ 1", "count"),
            ("count_delete", "DELETE", "- 1", "count"),
            ("size_insert", "INSERT", "+ NEW.size", "size"),
            ("size_update", "UPDATE", "+ NEW.size - OLD.size", "size"),
            ("size_delete", "DELETE", "- OLD.size", "size"),
        )
    ),
}


class IndexBroken(Exception):
    """The database is not one of ours, or damaged."""


def is_ours(connection: sqlite3.Connection) -> bool:
    """Whether there are rows to read; False for a database that is empty or half made. Raises IndexBroken; sqlite3.Error.

    ``connection`` gives text as bytes.
    """
    objects = connection.execute("SELECT name, sql FROM sqlite_master").fetchall()
    for name, sql in objects:
        known = OBJECTS.get(_text(name), "")
        if sql != (None if known is None else known.encode()):
            raise IndexBroken("other tables or triggers than ours")
    names = {_text(name) for name, _ in objects}
    if "Settings" in names:
        _check_settings(connection)
    elif "Cache" in names:
        raise IndexBroken("no settings")
    return "Cache" in names  # not so: killed while it was made


def _check_settings(connection: sqlite3.Connection) -> None:
    for name, value in connection.execute("SELECT key, value FROM Settings"):
        if name not in _KNOWN_SETTINGS or not (isinstance(value, int) or value in _KNOWN_WORDS):
            raise IndexBroken("other settings")


def _text(name: bytes) -> str:
    return name.decode("ascii", "replace")
