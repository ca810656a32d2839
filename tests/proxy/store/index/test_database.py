"""The index on disk: text rows go in and come out; whatever else lies in the database is refused, and never run."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import diskcache
import pytest
from support.stores import make_row, text_of

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.store.index.database import IndexBroken, IndexDatabase, RowDisk, RowRefused
from forebay_proxy.store.index.row import MAX_ROW_BYTES

ROW = make_row()
OTHER = make_row("s3://b/1.tar")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[IndexDatabase]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    index = IndexDatabase(fd, DEFAULT_LAYOUT)
    index.load()
    yield index
    index.close()
    os.close(fd)


def edit(folder: Path, *statements: str, cells: Mapping[str, Any] | None = None) -> None:
    """Change the database as whoever can write the file could."""
    with closing(sqlite3.connect(folder / "cache.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement, cells or {})


def plant(folder: Path, **columns: Any) -> None:
    cells = {"key": OTHER.key, "raw": 1, "mode": 1, "filename": None, "value": text_of(OTHER), **columns}
    edit(folder, "INSERT INTO Cache (key, raw, mode, filename, value) VALUES (:key, :raw, :mode, :filename, :value)", cells=cells)


def test_a_row_is_replaced_and_dropped(index: IndexDatabase) -> None:
    """The newest text of a key holds; None takes it away; dropping twice is no error."""
    newer = make_row(sums=[1, 2])
    index.commit({ROW.key: text_of(ROW)})
    index.commit({ROW.key: text_of(newer)})
    assert index.load().rows == [newer]
    index.commit({ROW.key: None})
    index.commit({ROW.key: None})
    assert index.load().rows == []


def test_a_commit_is_all_or_nothing(index: IndexDatabase) -> None:
    """A change that cannot be written takes the whole commit with it, and the next one works."""
    changes: dict[str, Any] = {ROW.key: text_of(ROW), OTHER.key: b"no text"}
    with pytest.raises(RowRefused):
        index.commit(changes)
    assert index.load().rows == []
    index.commit({ROW.key: text_of(ROW)})
    assert index.load().rows == [ROW]


def test_a_name_with_a_dollar_is_that_name(tmp_path: Path) -> None:
    """diskcache would expand variables in the directory's name."""
    folder = tmp_path / "$HOME"
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    index = IndexDatabase(fd, DEFAULT_LAYOUT)
    index.load()
    index.commit({ROW.key: text_of(ROW)})
    index.close()
    os.close(fd)
    assert (folder / "cache.db").stat().st_size > 0


@pytest.mark.parametrize(
    "columns",
    [
        {"value": "{"}, {"value": "{}"}, {"value": b"{}"}, {"value": 7}, {"value": None}, {"value": 1.5}, {"value": "\x00"},
        {"value": text_of(ROW)}, {"value": "é"}, {"value": " " * (MAX_ROW_BYTES + 1)},
        {"key": 7}, {"key": OTHER.key.encode()}, {"key": "../../x"}, {"key": None}, {"raw": None},
        {"raw": 2}, {"mode": 0}, {"mode": None}, {"mode": "1x"}, {"filename": ""},
    ],
)  # fmt: skip
def test_a_row_of_another_shape_is_refused(index: IndexDatabase, tmp_path: Path, columns: dict[str, Any]) -> None:
    """Counted and deleted; the good row beside it is loaded."""
    index.commit({ROW.key: text_of(ROW)})
    plant(tmp_path, **columns)
    loaded = index.load()
    assert (loaded.rows, loaded.refused) == ([ROW], 1)
    assert index.load().refused == 0


def test_text_that_is_not_utf8_refuses_its_row_only(index: IndexDatabase, tmp_path: Path) -> None:
    """SQLite stores any bytes as text."""
    index.commit({ROW.key: text_of(ROW)})
    edit(tmp_path, "INSERT INTO Cache (key, raw, mode, value) VALUES (CAST(x'ff' AS TEXT), 1, 1, CAST(x'fe' AS TEXT))")
    loaded = index.load()
    assert (loaded.rows, loaded.refused) == ([ROW], 1)


def test_the_disk_stores_text_only(tmp_path: Path) -> None:
    """Through diskcache itself nothing but text goes in or comes out."""
    make: Any = RowDisk  # untyped base
    disk = make(str(tmp_path))
    assert disk.fetch(1, None, "text", False) == "text"
    for attempt in (
        lambda: disk.put(("a",)), lambda: disk.get(b"x", 0), lambda: disk.get("x", 0), lambda: disk.store({"a": 1}, False),
        lambda: disk.store(b"x", False), lambda: disk.store("x", True), lambda: disk.fetch(4, None, b"x", False),
        lambda: disk.fetch(4, None, "text", False),
        lambda: disk.fetch(3, "../x", None, False), lambda: disk.fetch(1, "x", "text", False), disk.filename,
    ):  # fmt: skip
        with pytest.raises(RowRefused):
            attempt()
    (tmp_path / "file").touch()
    disk.remove("file")
    assert (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: edit(folder, "DROP TABLE Cache", "CREATE TABLE Cache (key, value)"),
        lambda folder: (folder / "cache.db").write_bytes(b"x" * 8192),
        lambda folder: os.truncate(folder / "cache.db", (folder / "cache.db").stat().st_size // 2),
    ],
    ids=["another table", "no database", "half of one"],
)
def test_what_is_no_database_is_broken(index: IndexDatabase, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """Told from a failing disk, so that the start can go on without it."""
    index.commit({row.key: text_of(row) for row in (make_row(f"s3://b/{number}") for number in range(200))})
    index.close()
    damage(tmp_path)
    with pytest.raises(IndexBroken):
        index.load()


def test_a_deleted_database_is_missed_at_the_next_commit(index: IndexDatabase, tmp_path: Path) -> None:
    """SQLite alone would go on writing into a file without a name."""
    index.commit({ROW.key: text_of(ROW)})
    (tmp_path / "cache.db").unlink()
    with pytest.raises(FileNotFoundError):
        index.commit({ROW.key: text_of(ROW)})


def test_the_log_stays_small(index: IndexDatabase, tmp_path: Path) -> None:
    """Many commits of large rows do not let the write-ahead log outgrow what the ledger sets aside (1 MiB a step)."""
    rows = [make_row(f"s3://b/{number}.tar", length=2**33) for number in range(4)]
    for number in range(200):
        index.commit({row.key: text_of(row) for row in rows[: number % 4 + 1]})
    assert (tmp_path / "cache.db-wal").stat().st_size < 2 * 2**20


def test_settings_hold(index: IndexDatabase, tmp_path: Path) -> None:
    """Nothing is evicted, mapped, or kept in files, whatever diskcache's defaults are."""
    index.commit({ROW.key: text_of(ROW)})
    make: Any = diskcache.Cache  # untyped
    with make(str(tmp_path), disk=RowDisk) as cache:
        assert (cache.eviction_policy, cache.cull_limit, cache.size_limit, cache.statistics) == ("none", 0, 2**62, 0)
        assert (cache.disk_min_file_size, cache.sqlite_mmap_size, cache.sqlite_cache_size) == (2**30, 0, -2000)
        assert cache.sqlite_wal_autocheckpoint == 256


def test_a_database_that_cannot_be_opened_leaves_no_descriptor(index: IndexDatabase, tmp_path: Path) -> None:
    """Its error may be kept for long; the blocks of the file it was about must not be."""
    index.commit({ROW.key: text_of(ROW)})
    index.close()
    for name in ("cache.db-wal", "cache.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "cache.db").write_bytes(b"x" * 8192)
    with pytest.raises(sqlite3.DatabaseError) as kept:
        index.commit({ROW.key: text_of(ROW)})
    held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in held if path.startswith(str(tmp_path / "cache.db"))], kept
