"""Which databases are ours: those that diskcache makes, whole or half made, and no others."""

from __future__ import annotations

import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import diskcache
import pytest
from packaging.specifiers import SpecifierSet

from forebay_proxy.store.index.database import RowDisk
from forebay_proxy.store.index.schema import OBJECTS, SETTINGS, IndexBroken, is_ours

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """What diskcache makes with our settings."""
    make: Any = diskcache.Cache  # untyped
    make(str(tmp_path), disk=RowDisk, **SETTINGS).close()
    connection = sqlite3.connect(tmp_path / "cache.db")
    connection.text_factory = bytes
    yield connection
    connection.close()


def test_what_diskcache_makes_is_ours(database: sqlite3.Connection) -> None:
    """To the letter: another release of it that creates something else shows here, not as a cache lost at each start."""
    made = {name.decode(): sql and sql.decode() for name, sql in database.execute("SELECT name, sql FROM sqlite_master")}
    assert made == OBJECTS, (
        f"diskcache {diskcache.__version__} makes other tables than those that store/index/schema.py knows: put these there, and bound"
        " diskcache in pyproject.toml to the minor that makes them"
    )
    assert is_ours(database)


def test_diskcache_is_bound_to_the_minor_that_is_known() -> None:
    """One that makes other tables is not installed beside us: each start would set the index aside and fetch all shards again."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bound,) = (SpecifierSet(need.removeprefix("diskcache")) for need in needs if need.startswith("diskcache"))
    major, minor = diskcache.__version__.split(".")[:2]
    assert diskcache.__version__ in bound
    assert f"{major}.{int(minor) + 1}.0" not in bound


def test_an_empty_file_is_not_broken() -> None:
    """It was made a moment before the kill."""
    connection = sqlite3.connect(":memory:")
    assert not is_ours(connection)
    connection.close()


def test_a_half_made_database_is_not_broken(database: sqlite3.Connection) -> None:
    """diskcache creates its tables one by one; killed between two of them, there is nothing to read and nothing to refuse."""
    made = [name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")]
    assert made[:2] == ["Settings", "Cache"]
    for name in reversed(made[2:]):
        kind = "INDEX" if name.startswith("Cache_") else "TRIGGER"
        database.execute(f"DROP {kind} {name}")
        assert is_ours(database)
    database.execute("DROP TABLE Cache")
    assert not is_ours(database)
    database.execute("DELETE FROM Settings")
    assert not is_ours(database)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER Settings_size_update2 AFTER UPDATE ON Cache BEGIN SELECT 1; END",
        "DROP TRIGGER Settings_count_insert; CREATE TRIGGER Settings_count_insert AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
        "CREATE TABLE other (a)",
        "CREATE VIEW other AS SELECT * FROM Cache",
        "CREATE INDEX other ON Cache (abs(raw))",
        "DROP INDEX Cache_expire_time; CREATE INDEX Cache_expire_time ON Cache (abs(raw))",
        "ALTER TABLE Cache ADD COLUMN extra",
        "ALTER TABLE Cache ADD COLUMN extra AS (hex(value))",
        "DROP TABLE Cache; CREATE VIEW Cache AS SELECT 1 AS key",
        "INSERT INTO Settings VALUES ('sqlite_temp_store_directory', 1)",
        "UPDATE Settings SET value = 'delete; VACUUM' WHERE key = 'sqlite_journal_mode'",
        "DROP TABLE Settings",
    ],
)
def test_anything_else_is_broken(database: sqlite3.Connection, sql: str) -> None:
    """Triggers, views, expressions, columns, settings: what SQLite or diskcache would run or follow."""
    database.executescript(sql)
    with pytest.raises(IndexBroken):
        is_ours(database)
