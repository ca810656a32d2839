"""Who shares a worker of the tests' pool, in what order tests begin, and what a fork of a worker may not change."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import pytest
from support import huge_pages, pool
from support.huge_pages import collapse
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


@pytest.fixture
def slowest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file := tmp_path / "slowest.txt").write_text(
        "# seconds\n27 y/test_long.py\n9 x/test_medium.py\n9 z/test_medium.py\n12 one.py\n18 two.py\n"
    )
    monkeypatch.setattr(pool, "SLOWEST", file)


@pytest.mark.usefixtures("slowest")
def test_what_takes_longest_begins_first_and_a_file_stays_in_its_order() -> None:
    """Files of one length, and those that are not listed, stay as they were collected."""
    files = ["test_a.py", "x/test_medium.py", "test_b.py", "y/test_long.py", "z/test_medium.py"]
    items: list[Any] = [Item(file, name) for file in files for name in ("test_2", "test_1")]
    grouped(items, sort=True)
    began = ["y/test_long.py", "x/test_medium.py", "z/test_medium.py", "test_a.py", "test_b.py"]
    assert list(map(repr, items)) == [f"{file}::{name}" for file in began for name in ("test_2", "test_1")]


@pytest.mark.usefixtures("slowest")
def test_a_group_begins_by_what_all_its_files_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow one another in one worker, however short each is."""
    monkeypatch.setattr(pool, "HEAVY", {"one.py", "two.py"})
    items: list[Any] = [Item(file) for file in ("test_a.py", "one.py", "y/test_long.py", "two.py")]
    grouped(items, sort=True)
    assert list(map(repr, items)) == [f"{file}::test_a" for file in ("two.py", "one.py", "y/test_long.py", "test_a.py")]


@pytest.mark.usefixtures("slowest")
def test_who_hands_tests_out_keeps_their_order() -> None:
    """It goes by what the workers say."""
    items: list[Any] = [Item("test_a.py"), Item("y/test_long.py")]
    grouped(items, sort=False)
    assert list(map(repr, items)) == ["test_a.py::test_a", "y/test_long.py::test_a"]


@pytest.mark.parametrize(
    ("item", "group"),
    [
        (Item("a/test_x.py"), "tests/a/test_x.py"),
        (Item("a/test_x.py", "test_a[1]"), "tests/a/test_x.py"),
        (Item("a/test_x.py", "test_a", "tmp_path", "rados_gateway"), "rados_gateway"),
        (Item("b/test_y.py", "test_a", "rados_gateway"), "rados_gateway"),
        (Item("b/test_y.py", "test_a", "moto"), "moto"),
        (Item(min(pool.HEAVY)), "heavy"),
        (Item(max(pool.HEAVY), "test_a", "moto"), "heavy"),
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


def test_the_slowest_files_are_there_most_of_them() -> None:
    """The list says what begins first; a new one is written by tests/support/pool.py --listed."""
    listed = [line.split()[1] for line in pool.SLOWEST.read_text().splitlines() if not line.startswith("#")]
    assert sum((Path(__file__).parent / name).exists() for name in listed) > 0.8 * len(listed)


def huge_kb() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


def test_memory_is_gathered_into_huge_pages_and_stays_what_it_was() -> None:
    """Eight megabytes of small pages."""
    with mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        pattern = bytes(range(256)) * 16
        for at in range(0, len(memory), len(pattern)):
            memory[at : at + len(pattern)] = pattern
        memory.madvise(mmap.MADV_HUGEPAGE)
        before_kb = huge_kb()
        collapse()
        assert memory[:] == pattern * (len(memory) // len(pattern))
        if not can_collapse():
            pytest.skip("this kernel gathers no pages when asked (Linux 6.1 does)")
        assert huge_kb() - before_kb >= 4 << 10  # the region begins anywhere


def can_collapse() -> bool:
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return bool(advise(None, 0, huge_pages._COLLAPSE) == 0)
