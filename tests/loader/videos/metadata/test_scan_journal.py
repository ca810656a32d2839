"""What is found so far: appended by anybody, read up to where it is whole."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.videos.metadata import scan_journal
from forebay_loader.videos.metadata.scan_journal import ScanJournal


@given(st.lists(st.binary(max_size=50), max_size=9), st.data())
def test_wherever_it_is_torn_the_whole_ones_stay(records: list[bytes], data: st.DataObject) -> None:
    """And what is appended next stands behind them."""
    with tempfile.TemporaryDirectory() as folder:
        journal = ScanJournal(Path(folder, "t"))
        for record in records:
            journal.append(record)
        length = sum(8 + len(record) for record in records)
        torn = data.draw(st.integers(0, length))
        if records:
            journal.path.write_bytes(journal.path.read_bytes()[:torn])
        whole = [record for number, record in enumerate(records) if sum(8 + len(one) for one in records[: number + 1]) <= torn]
        for writer in (journal, ScanJournal(Path(folder, "t"))):
            assert list(writer.records()) == whole
            writer.append(b"next")
            whole = [*whole, b"next"]
            assert list(ScanJournal(Path(folder, "t")).records()) == whole


def test_a_changed_byte_ends_it(tmp_path: Path) -> None:
    """Nothing behind it is believed, and nothing wrong is read."""
    journal = ScanJournal(tmp_path / "t")
    for record in (b"one", b"two", b"three"):
        journal.append(record)
    data = bytearray(journal.path.read_bytes())
    data[8 + 3 + 8] ^= 1
    journal.path.write_bytes(data)
    assert list(ScanJournal(tmp_path / "t").records()) == [b"one"]


def test_records_of_another_version_count_as_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are other bytes, which nobody reads as if they were these."""
    ScanJournal(tmp_path / "t").append(b"one")
    monkeypatch.setattr(scan_journal, "RECORD_VERSION", 2)
    journal = ScanJournal(tmp_path / "t")
    assert list(journal.records()) == []
    journal.append(b"two")
    assert list(journal.records()) == [b"two"]


def test_an_absurd_length_ends_it(tmp_path: Path) -> None:
    """Nothing is allocated by a number that nobody checked."""
    journal = ScanJournal(tmp_path / "t")
    journal.append(b"one")
    with journal.path.open("ab") as file:
        file.write(b"\xff" * 12)
    assert list(ScanJournal(tmp_path / "t").records()) == [b"one"]


def test_two_writers_by_turns(tmp_path: Path) -> None:
    """Each knows less than is there, and neither cuts off what the other wrote."""
    first, second = ScanJournal(tmp_path / "t"), ScanJournal(tmp_path / "t")
    for number in range(6):
        (first if number % 2 else second).append(b"%d" % number)
    assert list(first.records()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def _append(path: str, name: int) -> None:
    journal = ScanJournal(path)
    for number in range(50):
        journal.append(b"%d/%d" % (name, number))


def test_processes_at_once(tmp_path: Path) -> None:
    """Every record of each, whole."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(str(tmp_path / "t"), name)) for name in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(ScanJournal(tmp_path / "t").records()) == sorted(b"%d/%d" % (name, number) for name in range(3) for number in range(50))


def test_ended_it_begins_again(tmp_path: Path) -> None:
    """The same object, and another one's."""
    journal, other = ScanJournal(tmp_path / "t"), ScanJournal(tmp_path / "t")
    for one in (journal, other):
        one.append(b"long enough to be longer")
    with journal.ending() as records:
        assert len(list(records)) == 2
    assert list(journal.records()) == []
    other.append(b"b")
    assert list(journal.records()) == [b"b"]


def test_a_later_one_may_be_longer(tmp_path: Path) -> None:
    """Whoever knew the one before believes nothing of it: what others wrote since stays whole."""
    journal, other, third = (ScanJournal(tmp_path / "t") for _ in range(3))
    for record in (b"ten bytes.", b"and fourteen .."):
        journal.append(record)
    with other.ending() as records:
        assert len(list(records)) == 2
    for number in range(6):
        third.append(b"%05d" % number)
    journal.append(b"new")
    assert list(ScanJournal(tmp_path / "t").records()) == [*(b"%05d" % number for number in range(6)), b"new"]


def test_a_table_that_was_not_written_keeps_it(tmp_path: Path) -> None:
    """A full disk, say."""
    journal = ScanJournal(tmp_path / "t")
    journal.append(b"a")
    with pytest.raises(OSError, match="full"), journal.ending():
        raise OSError("full")
    assert list(journal.records()) == [b"a"]


def test_whoever_waits_for_the_end_writes_to_the_next(tmp_path: Path) -> None:
    """Not to a file that has no name any more."""
    journal, other = ScanJournal(tmp_path / "t"), ScanJournal(tmp_path / "t")
    journal.append(b"a")
    with ThreadPoolExecutor(1) as pool:
        with journal.ending() as records:
            assert list(records) == [b"a"]
            waiting = pool.submit(other.append, b"b")
            while not _waits_for_a_lock():
                time.sleep(0.001)
        waiting.result(30)
    assert list(journal.records()) == [b"b"]


def _waits_for_a_lock() -> bool:
    """Whether a thread of this process stands before a lock that another holds."""
    return any("->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize("name", ["t", "folder"])
def test_nothing_is_created_by_reading(tmp_path: Path, name: str) -> None:
    """An empty journal is none."""
    assert list(ScanJournal(tmp_path / name).records()) == []
    assert list(tmp_path.glob("*.partial")) == []
