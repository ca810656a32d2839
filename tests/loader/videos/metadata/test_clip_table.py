"""The table of clips: found by name, added to by anybody; and files that are none."""

from __future__ import annotations

import multiprocessing
import sqlite3
import tempfile
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata import clip_table
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord, CorruptClipTable


def info_of(number: int) -> ClipInfo:
    return steady(number % 7 + 1, motion=array("f", [number % 3]))


def written(path: Path, *names: str) -> Path:
    ClipTable(path).add(ClipRecord(name, number, "v", info_of(number)) for number, name in enumerate(names))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("clips") / "t", *(f"clip {number}" for number in range(9))).read_bytes()


@pytest.fixture
def table(tmp_path: Path, whole: bytes) -> Path:
    (tmp_path / "a.clips").write_bytes(whole)
    return tmp_path / "a.clips"


@given(st.lists(st.text(max_size=8), max_size=9), st.lists(st.text(max_size=8), max_size=9))
def test_a_dict_says_the_same(names: list[str], others: list[str]) -> None:
    """The last of equal names, and None for every other name."""
    plain = {name: number for number, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        table = ClipTable(written(Path(folder, "t"), *names))
        assert len(table) == len(plain)
        for name in [*names, *others]:
            assert table.find(name) == (info_of(plain[name]) if name in plain else None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_look_up(table: Path, method: str) -> None:
    """Forked after a look-up, or spawned with the path; the file may be read-only."""
    table.chmod(0o400)
    opened = ClipTable(table)
    opened.find("clip 3")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(opened.find, ["clip 5"]) == info_of(5)


def test_each_byte_counts(table: Path, whole: bytes) -> None:
    """Wherever one is changed, nothing wrong is ever told: the record, nothing, or an error."""
    refused = 0
    for at in range(0, len(whole), 37):
        table.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            assert ClipTable(table).find("clip 4") in (info_of(4), None)
        except OSError:
            refused += 1
    assert refused > 3


def other_database(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE clips (name, record, checksum)")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.write_bytes(b"PK\3\4" + path.read_bytes()), "is no table of clips, or a damaged one"),
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "is no table of clips, or a damaged one"),
        (other_database, "is no table of clips"),
    ],
)
def test_another_file_is_named(table: Path, change: Callable[[Path], object], told: str) -> None:
    """And nothing is added to it."""
    change(table)
    before = table.read_bytes()
    for ask in (lambda: ClipTable(table).find("clip 0"), lambda: written(table, "new")):
        with pytest.raises(CorruptClipTable, match=told) as caught:
            ask()
        assert str(table) in str(caught.value)
    assert table.read_bytes() == before


def test_a_damaged_record_is_an_error(table: Path, whole: bytes) -> None:
    """Its checksum says so; the others are read."""
    at = whole.index(b'"clip 4"') + 4
    table.write_bytes(whole[: at - 1] + b"\xff" + whole[at:])
    assert ClipTable(table).find("clip 5") == info_of(5)
    with pytest.raises(CorruptClipTable, match="a record is damaged: scan again"):
        ClipTable(table).find("clip 4")


def test_records_of_another_version_are_not_read(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are other bytes."""
    monkeypatch.setattr(clip_table, "RECORD_VERSION", 3)
    with pytest.raises(CorruptClipTable, match="version 2, and this Forebay reads version 3: scan again"):
        ClipTable(table).find("clip 0")


@pytest.mark.parametrize("there", [False, True])
def test_an_absent_file_is_an_oserror(tmp_path: Path, there: bool) -> None:
    """It is named; an empty one, which a kill may leave, is as good as none."""
    table = tmp_path / "none.clips"
    if there:
        table.touch()
    with pytest.raises(FileNotFoundError, match=r"none\.clips"):
        ClipTable(table).find("a")
    assert table.exists() == there
    assert ClipTable(written(table, "a")).find("a") == info_of(0)


def test_a_table_gets_what_is_found_later(table: Path) -> None:
    """What it held stays, but for what is found again; nothing is left beside it."""
    for _ in range(2):
        written(table, "clip 4", "new")
    found = ClipTable(table)
    assert (len(found), found.find("clip 4"), found.find("clip 5"), found.find("new")) == (10, info_of(0), info_of(5), info_of(1))
    assert [path.name for path in table.parent.glob("a.clips*")] == ["a.clips"]


def _add(path: Path, process: int) -> None:
    for number in range(30):
        written(path, f"{process}/{number}")


def test_processes_at_once(tmp_path: Path) -> None:
    """Every record of each, while others read."""
    written(tmp_path / "t")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(tmp_path / "t", process)) for process in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert ClipTable(tmp_path / "t").find("0/0") in (None, info_of(0))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert {record.name for record in ClipTable(tmp_path / "t").records()} == {f"{i}/{number}" for i in range(3) for number in range(30)}
