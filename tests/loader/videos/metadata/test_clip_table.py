"""The table of clips: written whole, found by name, mapped; and files that are none."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata import clip_table, table_file
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord, CorruptClipTable, packed
from forebay_loader.videos.metadata.table_file import TableWriter, clip_name


def info_of(number: int) -> ClipInfo:
    return steady(number % 7 + 1, motion=array("f", [number % 3]))


def written(path: Path, names: list[str]) -> Path:
    with TableWriter(path) as writer:
        for number, name in enumerate(names):
            writer.add(name.encode(), packed(ClipRecord(name, number, "v", info_of(number))))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written(tmp_path / "a.clips", [f"clip {number}" for number in range(100)])


@given(st.lists(st.text(max_size=8), max_size=30), st.lists(st.text(max_size=8), max_size=9))
def test_a_dict_says_the_same(names: list[str], others: list[str]) -> None:
    """The last of equal names, and None for every other name."""
    plain = {name: number for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder, ClipTable(written(Path(folder, "t"), names)) as table:
        assert len(table) == len(plain)
        for name in [*names, *others]:
            assert table.find(name) == (info_of(plain[name]) if name in plain else None)


def test_another_length_is_another_clip(table: Path) -> None:
    """The file at its name was replaced: nothing is known of the new one."""
    assert ClipTable(table).find("clip 7", 7) == info_of(7)
    assert ClipTable(table).find("clip 7", 8) is None


def test_names_with_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 bits are enough for a million clips, and not believed all the same."""
    monkeypatch.setattr(table_file, "hash_of", len)
    monkeypatch.setattr(clip_table, "hash_of", len)
    table = ClipTable(written(tmp_path / "t", ["aa", "bb", "c"]))
    assert [table.find(name) for name in ("aa", "bb", "c", "dd")] == [info_of(0), info_of(1), info_of(2), None]


def test_it_travels_as_its_path(table: Path) -> None:
    """Open or not; the map stays here."""
    opened = ClipTable(table)
    assert opened.find("clip 3") == pickle.loads(pickle.dumps(opened)).find("clip 3")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_look_up(table: Path, method: str) -> None:
    """Forked with the map, or spawned with the path."""
    opened = ClipTable(table)
    opened.find("clip 3")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(opened.find, ["clip 5"]) == info_of(5)


def test_closed_it_opens_again(table: Path) -> None:
    """And closing twice is once."""
    opened = ClipTable(table)
    assert opened.find("clip 1")
    opened.close()
    opened.close()
    assert opened.find("clip 1") == info_of(1)


def test_a_mapped_table_outlives_its_replacement(table: Path) -> None:
    """Workers go on with what they began with."""
    opened = ClipTable(table)
    assert len(opened) == 100
    written(table, ["other"])
    assert opened.find("clip 99") == info_of(99)
    assert ClipTable(table).find("clip 99") is None


def _write_half(path: Path) -> None:
    with TableWriter(path) as writer:
        writer.add(b"x", b"y")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_one(table: Path) -> None:
    """And nothing beside it."""
    with pytest.raises(RuntimeError):
        _write_half(table)
    assert len(ClipTable(table)) == 100
    assert [path.name for path in table.parent.glob("*.clips*")] == ["a.clips"]


def test_each_byte_counts(tmp_path: Path) -> None:
    """Wherever one is changed, what it is of is refused, or all of it; nothing wrong is ever told."""
    table = written(tmp_path / "t", [f"clip {number}" for number in range(4)])
    whole = table.read_bytes()
    refused = 0
    for at in range(len(whole)):
        table.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        for number in range(4):
            try:
                assert ClipTable(table).find(f"clip {number}") == info_of(number)
            except CorruptClipTable:
                refused += 1
    assert refused > len(whole)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: b"", "is no table of clips"),
        (lambda data: b"PK\3\4" + data, "is no table of clips"),
        (lambda data: data[:-1], "of its"),
        (lambda data: data + b"\0", "of its"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2, and this Forebay reads version 1"),
        (lambda data: data[:16] + b"\xff" + data[17:], "the head of the table is damaged"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "the directory of the table is damaged"),
        (lambda data: data[:70] + b"\xff" + data[71:], "the record at byte 64 is damaged"),
    ],
)
def test_another_file_is_named(table: Path, change: Any, told: str) -> None:
    """What it is, and what to do."""
    table.write_bytes(change(table.read_bytes()))
    with pytest.raises(CorruptClipTable, match=told) as caught:
        ClipTable(table).find("clip 0")
    assert str(table) in str(caught.value)


def test_an_absent_file_is_an_oserror(tmp_path: Path) -> None:
    """Named by the system."""
    with pytest.raises(FileNotFoundError, match=r"none\.clips"):
        ClipTable(tmp_path / "none.clips").find("a")


def test_an_empty_table_knows_nothing(tmp_path: Path) -> None:
    """No clip is no fault."""
    assert ClipTable(written(tmp_path / "t", [])).find("a") is None


@pytest.mark.parametrize(
    ("shard", "member", "name"),
    [
        ("s3://b/1.tar?x=secret", "a.mp4", "s3://b/1.tar\na.mp4"),
        ("https://h/a.mp4?token=1", "", "https://h/a.mp4"),
        ("1.tar", "a", "1.tar\na"),
    ],
)
def test_names_hold_no_query(shard: str, member: str, name: str) -> None:
    """A signature is of the request, and a secret."""
    assert clip_name(shard, member) == name
