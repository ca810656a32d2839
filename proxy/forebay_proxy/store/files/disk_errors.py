"""What the operating system and SQLite say when a disk fails, in one word each: the errno's name. Pure."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from forebay_proxy.core.errors import DiskFailed

__all__ = ["disk_errors", "disk_failed"]

# SQLite's primary codes. It tells a full disk apart, not an exceeded quota; any other failed system call is its "disk I/O error".
_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CORRUPT: errno.EUCLEAN,
    sqlite3.SQLITE_NOTADB: errno.EUCLEAN,
}


@contextmanager
def disk_errors(operation: str, detail: str) -> Iterator[None]:
    """Raise DiskFailed in place of an OSError. ``detail`` says which file and range."""
    try:
        yield
    except OSError as error:
        raise disk_failed(operation, error, detail) from error


def disk_failed(operation: str, error: BaseException, detail: str) -> DiskFailed:
    """The DiskFailed that says what ``error`` means."""
    code = error.errno if isinstance(error, OSError) else _sqlite_errno(error)
    code = code or errno.EIO
    return DiskFailed(operation, errno.errorcode.get(code, str(code)), f"{os.strerror(code)} ({detail})")


def _sqlite_errno(error: BaseException) -> int:
    """From the first SQLite error that says something: a failed ROLLBACK, and diskcache's Timeout, hide the one they follow."""
    codes = []
    link: BaseException | None = error
    while link is not None:
        codes.append(getattr(link, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF)
        link = link.__cause__ or link.__context__
    return next((_SQLITE[code] for code in reversed(codes) if code in _SQLITE), errno.EIO)
