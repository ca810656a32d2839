"""A map is touched only where its pages are there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_loader.stream import shard_descriptor as shard_map
from forebay_loader.stream.shard_descriptor import ShardMap, file_ends

CONTENT = os.urandom(100_000)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "shard").write_bytes(CONTENT)
    number = os.open(tmp_path / "shard", os.O_RDWR)
    yield number
    os.close(number)


def never(start: int, end: int) -> None:
    raise AssertionError("read although the kernel brings pages")


def test_all_of_it_is_there(file: int) -> None:
    """Read only."""
    held = ShardMap(file, len(CONTENT))
    held.present(0, len(CONTENT), never)
    assert bytes(held.memory) == CONTENT
    assert memoryview(held.memory).readonly


def test_a_view_outlives_the_file(tmp_path: Path) -> None:
    """A decoder may still hold a slice."""
    (tmp_path / "shard").write_bytes(CONTENT)
    number = os.open(tmp_path / "shard", os.O_RDONLY)
    held = ShardMap(number, len(CONTENT))
    view = memoryview(held.memory)[10:20]
    os.close(number)
    del held
    assert bytes(view) == CONTENT[10:20]


def test_a_shorter_file_is_not_mapped(file: int) -> None:
    """It says where it ends."""
    with pytest.raises(OSError, match="the file ends at byte 100000 of 100001"):
        ShardMap(file, len(CONTENT) + 1)


def test_a_file_that_shrank_is_not_touched(file: int) -> None:
    """What is still there may be."""
    held = ShardMap(file, len(CONTENT))
    os.ftruncate(file, 50_000)
    held.present(0, 50_000, never)
    with pytest.raises(OSError, match="the file ends at byte 50000 of 100000"):
        held.present(50_000, 50_001, never)


def test_where_pages_cannot_be_asked_for_they_are_read(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start of the first one."""
    monkeypatch.setattr(shard_map, "_POPULATE_READ", 250)  # no such advice
    read = list[tuple[int, int]]()
    ShardMap(file, len(CONTENT)).present(5000, 6000, lambda start, end: read.append((start, end)))
    assert read == [(4096, 6000)]


class Advised:
    """A map that writes down which advice it is given about which bytes, and takes it or fails."""

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.advice = list[tuple[int, int, int]]()

    def madvise(self, *advice: int) -> None:
        self.advice.append(advice)  # type: ignore[arg-type]
        if self.fails:
            raise OSError(self.fails, "as told")


def test_the_kernel_is_asked_for_the_pages_of_these_bytes(file: int) -> None:
    """To bring them for reading (22 of Linux's advice), from the start of the first one."""
    held, advised = ShardMap(file, len(CONTENT)), Advised()
    held.memory = advised  # type: ignore[assignment]
    held.present(5000, 6000, never)
    assert advised.advice == [(22, 4096, 6000 - 4096)]


def test_pages_that_cannot_be_brought_are_an_error(file: int) -> None:
    """A disk that cannot read them; reading them otherwise would fail as well, or not know it."""
    held = ShardMap(file, len(CONTENT))
    held.memory = Advised(errno.EFAULT)  # type: ignore[assignment]
    with pytest.raises(OSError, match="as told"):
        held.present(5000, 6000, never)


def test_an_end_is_an_error_of_the_disk() -> None:
    with pytest.raises(OSError, match="ends at byte 3 of 5"):
        file_ends(3, 5)
