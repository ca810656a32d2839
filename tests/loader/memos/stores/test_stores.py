"""Each store alike: what was put comes back, what is damaged is told, what is foreign is refused."""

from __future__ import annotations

import json
import mmap
import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import lmdb
import numpy
import pytest

from forebay_loader.memos.entry import EntryDamaged, packed
from forebay_loader.memos.errors import MemoError
from forebay_loader.memos.kept_value import put_together, taken_apart
from forebay_loader.memos.stores.choice import STORES, check_store, opened_store
from forebay_loader.memos.stores.lmdb_store import LmdbStore, parts_of
from forebay_loader.memos.stores.memo_store import StoreFull

SIZE = 8 << 20
VALUE = {
    "__key__": "a", "frames": numpy.arange(60_000, dtype="u1").reshape(4, 100, 150), "half": numpy.ones((), "<f2"), "none": None,
    "when": numpy.array(["2026-01-02", "NaT"], "<M8[s]"), "names": numpy.array(["a", "bc"]), "empty": numpy.zeros((0, 3)), "data": b"\x00x",
    "big": numpy.arange(3, dtype=">i4"), "z": numpy.ones((2, 2), "c8"), "truth": numpy.array([True, False]), "text": "é", "rate": 1.5,
}  # fmt: skip


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * 3


def entry(number: int, value: Any = VALUE) -> bytes:
    return packed(key(number), taken_apart(value))


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_what_was_put_comes_back(tmp_path: Path, kind: str) -> None:
    """Bit for bit, from another opening too; what was dropped does not; entries have sizes."""
    store = opened_store(kind, str(tmp_path / "memo"), SIZE)
    store.put([entry(1), entry(2, [1]), entry(3)])
    store.drop([key(3), key(9)])
    store.close()
    store = opened_store(kind, str(tmp_path / "memo"), SIZE)
    kept = store.get(key(1))
    assert kept is not None
    found = put_together(kept)
    assert list(found) == list(VALUE)
    for name, one in VALUE.items():
        assert type(found[name]) is type(one)
        if isinstance(one, numpy.ndarray):
            assert (found[name].dtype.str, found[name].shape, found[name].tobytes()) == (one.dtype.str, one.shape, one.tobytes())
            assert found[name].flags.writeable
        else:
            assert found[name] == one
    assert store.get(key(3)) is None
    sizes = dict(store.entries())
    assert sorted(sizes) == [key(1), key(2)]
    assert sizes[key(1)] > (0 if kind == "hdf5" else 60_000)
    assert sizes[key(2)] > 0
    store.close()


def test_an_entry_is_put_anew(tmp_path: Path, kind: str) -> None:
    """The last counts."""
    store = opened_store(kind, str(tmp_path / "memo"), SIZE)
    store.put([entry(1, "old")])
    store.put([entry(1, "new")])
    kept = store.get(key(1))
    assert kept is not None
    assert put_together(kept) == "new"
    store.close()


def test_a_folder_of_another_store_is_refused(tmp_path: Path, kind: str) -> None:
    """By its mark, by its files, by who may write to it; a damaged mark says so."""
    folder = tmp_path / "memo"
    opened_store("npz" if kind != "npz" else "lmdb", str(folder), SIZE).close()
    with pytest.raises(MemoError, match="is that of a store"):
        opened_store(kind, str(folder), SIZE)
    (folder / "memo.json").write_text("{")
    with pytest.raises(MemoError, match="is damaged"):
        opened_store(kind, str(folder), SIZE)
    (folder / "memo.json").unlink()
    (folder / "else").touch()
    with pytest.raises(MemoError, match="holds other files"):
        opened_store(kind, str(folder), SIZE)
    folder.chmod(0o777)
    with pytest.raises(MemoError, match="others may write"):
        opened_store(kind, str(folder), SIZE)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """With the extra that brings it."""
    import importlib.util  # noqa: PLC0415

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == STORES[kind] else name)
    with pytest.raises(ModuleNotFoundError, match=rf"store='{kind}' needs {STORES[kind]}: install forebay\[memo\]"):
        check_store(kind)
    with pytest.raises(ValueError, match="store takes 'lmdb', 'npz'"):
        check_store("redis")


def test_an_lmdb_grows_and_ends_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is never larger than asked; what was put before the end is there; another process's growth is seen."""
    monkeypatch.setattr("forebay_loader.memos.stores.lmdb_store._FIRST_MAP", 1 << 20)
    store = opened_store("lmdb", str(tmp_path / "memo"), SIZE)
    put = 0
    with pytest.raises(StoreFull):  # noqa: PT012  # at which it is full is counted
        for put in range(1000):
            store.put([entry(put)])
    assert put > 90
    assert os.path.getsize(tmp_path / "memo" / "00.mdb") <= SIZE
    assert all(store.get(key(number)) is not None for number in range(put))
    store.drop([key(number) for number in range(60)])
    store.put([entry(2000)])
    assert store.get(key(2000)) is not None
    store.close()


@pytest.mark.parametrize(("size", "parts"), [(1, 1), (16 << 30, 1), (17 << 30, 2), (200_000_000_000, 12), (1 << 50, 64)])
def test_a_large_lmdb_is_several(size: int, parts: int) -> None:
    """Of some 16 GB each."""
    assert parts_of(size) == parts


def test_several_parts_hold_what_one_would(tmp_path: Path) -> None:
    """Each key in its own."""
    store = LmdbStore(str(tmp_path), SIZE, 3)
    store.put([entry(number << 56 | number) for number in range(9)])
    assert all(os.path.getsize(tmp_path / f"{part:02}.mdb") > 60_000 for part in range(3))
    assert all(store.get(key(number << 56 | number)) for number in range(9))
    assert len(list(store.entries())) == 9
    store.close()


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [(16, 0, "is no LMDB"), (20, 77, "of another version"), (40, 4 * mmap.PAGESIZE, "and this machine has")],
)
def test_an_lmdb_of_another_kind_is_refused(tmp_path: Path, at: int, value: int, said: str) -> None:
    """Another format, version, or size of a page: with what to do, not with what LMDB makes of it."""
    store = LmdbStore(str(tmp_path), SIZE, 1)
    store.put([entry(1)])
    store.close()
    path = tmp_path / "00.mdb"
    data = bytearray(path.read_bytes())
    for page in (0, mmap.PAGESIZE):
        data[page + at : page + at + 4] = struct.pack("=I", value)
    path.write_bytes(data)
    with pytest.raises(MemoError, match=said):
        LmdbStore(str(tmp_path), SIZE, 1)


def test_a_damaged_value_of_an_lmdb_is_told(tmp_path: Path) -> None:
    """By its checksum: LMDB has none."""
    store = LmdbStore(str(tmp_path), SIZE, 1)
    store.put([entry(1)])
    store.close()
    with lmdb.open(str(tmp_path / "00.mdb"), SIZE, subdir=False) as base, base.begin(write=True) as transaction:
        data = bytearray(transaction.get(key(1)))
        data[-1] ^= 1
        transaction.put(key(1), bytes(data))
    store = LmdbStore(str(tmp_path), SIZE, 1)
    with pytest.raises(EntryDamaged):
        store.get(key(1))
    store.close()


@pytest.mark.parametrize("files", ["npz", "hdf5"])
def test_a_damaged_file_is_told(tmp_path: Path, files: str) -> None:
    """Cut anywhere, or with a bit turned: it is damaged or, where the bit means nothing, whole; never another value."""
    store = opened_store(files, str(tmp_path / "memo"), SIZE)
    store.put([entry(1, [numpy.arange(100), "x"])])
    (path,) = [one for one in tmp_path.rglob("*") if one.suffix in (".npz", ".h5")]
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:at])
        with pytest.raises(EntryDamaged):
            store.get(key(1))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            kept = store.get(key(1))
        except EntryDamaged:
            continue
        assert kept is not None
        assert repr(put_together(kept)) == repr([numpy.arange(100), "x"])


def test_an_npz_of_objects_is_refused(tmp_path: Path) -> None:
    """It would be unpickled: it is damaged instead."""
    store = opened_store("npz", str(tmp_path / "memo"), SIZE)
    store.put([entry(1)])
    (path,) = tmp_path.rglob("*.npz")
    with path.open("wb") as file:
        numpy.savez(file, text=numpy.array([print], dtype=object), checksum=numpy.zeros(16, "u1"))
    with pytest.raises(EntryDamaged, match="allow_pickle"):
        store.get(key(1))


def test_what_a_killed_writer_left_of_a_file_is_no_entry(tmp_path: Path) -> None:
    """And is removed by the next writer."""
    store: Any = opened_store("npz", str(tmp_path / "memo"), SIZE)
    store.put([entry(1)])
    (path,) = tmp_path.rglob("*.npz")
    rest = path.parent / f"{path.name}.77.partial"
    rest.write_bytes(b"PK")
    assert [one for one, _ in store.entries()] == [key(1)]
    store.clear_rests()
    assert not rest.exists()
    assert path.exists()


@pytest.mark.parametrize("change", ["mode = 4", "mode = 2", "filename = 'x'", "value = 'text'", "value = x'00'"])
def test_a_crafted_row_is_damaged(tmp_path: Path, change: str) -> None:
    """Whatever it asks diskcache to do: to unpickle, to open a file."""
    store = opened_store("diskcache", str(tmp_path / "memo"), SIZE)
    store.put([entry(1, "x")])
    with sqlite3.connect(tmp_path / "memo" / "rows" / "cache.db") as connection:
        connection.execute(f"UPDATE Cache SET {change}")
    with pytest.raises(EntryDamaged):
        store.get(key(1))
    store.close()


def test_the_mark_tells_the_parts(tmp_path: Path) -> None:
    """Another size, another day: the same files."""
    opened_store("lmdb", str(tmp_path / "memo"), 40 << 30).close()
    opened_store("lmdb", str(tmp_path / "memo"), SIZE).close()
    assert json.loads((tmp_path / "memo" / "memo.json").read_text())["parts"] == 3
    assert len(list(tmp_path.glob("memo/*.mdb"))) == 3
