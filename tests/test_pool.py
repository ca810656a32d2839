"""Who shares a worker of the tests' pool, and in what order tests begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import pool
from support.pool import grouped


class Item:
    """A test as far as the pool looks at it."""

    def __init__(self, file: str, name: str = "test_a", *fixtures: str) -> None:
        self.path, self.nodeid, self.fixturenames = Path(f"/tests/{file}"), f"tests/{file}::{name}", fixtures
        self.group = ""

    def add_marker(self, mark: Any) -> None:
        (self.group,) = mark.args

    def __repr__(self) -> str:
        return self.nodeid.removeprefix("tests/")


def test_what_takes_longest_begins_first_and_a_file_stays_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one length, and those that are not listed, stay as they were collected."""
    (file := tmp_path / "slowest.txt").write_text("# seconds\n27 y/test_long.py\n9 x/test_medium.py\n9 z/test_medium.py\n")
    monkeypatch.setattr(pool, "SLOWEST", file)
    files = ["test_a.py", "x/test_medium.py", "test_b.py", "y/test_long.py", "z/test_medium.py"]
    items: list[Any] = [Item(file, name) for file in files for name in ("test_2", "test_1")]
    grouped(items, sort=True)
    began = ["y/test_long.py", "x/test_medium.py", "z/test_medium.py", "test_a.py", "test_b.py"]
    assert list(map(repr, items)) == [f"{file}::{name}" for file in began for name in ("test_2", "test_1")]


@pytest.mark.parametrize(
    ("item", "group"),
    [
        (Item("a/test_x.py"), "tests/a/test_x.py"),
        (Item("a/test_x.py", "test_a", "tmp_path", "rados_gateway"), "rados_gateway"),
        (Item("b/test_y.py", "test_a", "moto"), "moto"),
        (Item(min(pool.HEAVY)), "heavy"),
        (Item(min(pool.APART)), ""),
        (Item(min(pool.APART), "test_a", "moto"), "moto"),
    ],
    ids=repr,
)
def test_who_shares_a_worker(item: Any, group: str) -> None:
    """A file; all that use one server; what would take the machine for itself; and nobody, where tests need nothing of each other."""
    grouped([item], sort=False)
    assert item.group == group


@pytest.mark.parametrize("names", [pool.HEAVY, pool.APART], ids=["heavy", "apart"])
def test_files_that_are_named_are_there(names: frozenset[str]) -> None:
    """One that was renamed would be run beside another."""
    assert all((Path(__file__).parent / name).exists() for name in names)
