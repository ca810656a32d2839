"""Each store alike: what was put comes back, what is damaged is told, what is foreign is refused."""

from __future__ import annotations

import io
import json
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import numpy
import pytest

from forebay_loader.memos.entry import EntryDamaged, packed
from forebay_loader.memos.errors import MemoError, StoreFull
from forebay_loader.memos.kept_value import put_together, taken_apart
from forebay_loader.memos.stores.choice import STORES, check_store, opened_store
from forebay_loader.memos.stores.lmdb_store import LmdbStore, _file_system

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
    """Bit for bit, from another opening too; what was dropped does not; of an entry that was put anew the last counts."""
    store = opened_store(kind, str(tmp_path / "memo"), SIZE)
    store.put([entry(1), entry(2, "old"), entry(3)])
    store.put([entry(2, "new")])
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
    again = store.get(key(2))
    assert again is not None
    assert put_together(again) == "new"
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


@pytest.mark.parametrize(("mode", "taken"), [(0o755, True), (0o1777, True), (0o777, False), (0o775, False)])
@pytest.mark.parametrize("deep", [1, 2])
def test_a_folder_that_others_could_replace_is_refused(tmp_path: Path, kind: str, mode: int, taken: bool, deep: int) -> None:
    """At any height: others may write there without the sticky bit. The folder itself becomes private."""
    above = tmp_path / "above"
    folder = above.joinpath(*["in"] * (deep - 1), "memo")
    folder.mkdir(parents=True, mode=0o755)
    above.chmod(mode)
    if taken:
        opened_store(kind, str(folder), SIZE).close()
        assert folder.stat().st_mode & 0o777 == 0o700
        return
    with pytest.raises(MemoError, match=rf"above \(uid \d+, mode {mode:o}\) belongs to another user, or others may write to it.*chmod \+t"):
        opened_store(kind, str(folder), SIZE)


def test_a_folder_below_another_user_s_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """He may rename it."""
    folder = tmp_path / "memo"
    folder.mkdir(mode=0o700)
    owned = os.stat(folder)
    real = os.stat

    def stat(path: Any, **how: Any) -> Any:
        found = real(path, **how)
        return os.stat_result([*found[:4], 12345, *found[5:10]]) if str(path) == str(tmp_path) else found

    monkeypatch.setattr("forebay_loader.memos.stores.choice.os.stat", stat)
    with pytest.raises(MemoError, match="uid 12345"):
        opened_store(kind, str(folder), SIZE)
    assert owned.st_uid == os.geteuid()


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


def test_several_parts_hold_what_one_would(tmp_path: Path) -> None:
    """Each key in its own."""
    store = LmdbStore(str(tmp_path), SIZE, 3)
    store.put([entry(number << 56 | number) for number in range(9)])
    assert all(os.path.getsize(tmp_path / f"{part:02}.mdb") > 60_000 for part in range(3))
    assert all(store.get(key(number << 56 | number)) for number in range(9))
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


CUT = """
import os, sys
from forebay_loader.memos.entry import EntryDamaged, packed
from forebay_loader.memos.kept_value import taken_apart
from forebay_loader.memos.stores.lmdb_store import LmdbStore
folder, cut = sys.argv[1], int(sys.argv[2])
key = lambda number: number.to_bytes(8, "little") * 3
entry = lambda number: packed(key(number), taken_apart([number, bytes(300 + 37 * number % 9000)]))
store = LmdbStore(folder, 8 << 20, 1)
for number in range(300):
    store.put([entry(number)])
store.close()
path = folder + "/00.mdb"
os.truncate(path, max(os.path.getsize(path) - cut, 8192))
try:
    store = LmdbStore(folder, 8 << 20, 1)
    for number in range(300):
        try:
            kept = store.get(key(number))
            assert kept is None or packed(key(number), kept) == entry(number)
        except EntryDamaged:
            pass
    store.put([entry(1)])
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize("cut", [1, 4096, 3 * 4096, 300_000, 1 << 30])
def test_a_cut_lmdb_ends_no_process(tmp_path: Path, cut: int) -> None:
    """What lay behind the cut is damaged or not there, or the store fails as a disk does: no signal, no wrong value."""
    done = subprocess.run([sys.executable, "-c", CUT, str(tmp_path), str(cut)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_lmdb_s_lock_file_has_its_blocks(tmp_path: Path) -> None:
    """A disk that fills up later has none for its map."""
    LmdbStore(str(tmp_path), SIZE, 1).close()
    assert os.stat(tmp_path / "00.mdb-lock").st_blocks * 512 >= 66_000


@pytest.mark.parametrize(
    ("line", "refused"), [("/ / rw - ext4", False), (r"/x/a\040b / rw - nfs4", True), ("/x / rw - nfs", True), ("/xy / - nfs", False)]
)
def test_an_lmdb_on_a_network_is_refused(monkeypatch: pytest.MonkeyPatch, line: str, refused: bool) -> None:
    """By the file system of the longest mount above; with what to give instead."""
    at, _, rest = line.partition(" ")
    mounts = f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {at} rw - {rest.rpartition(' ')[2]} x rw\n"
    monkeypatch.setattr("builtins.open", lambda *given, **how: io.StringIO(mounts))
    if refused:
        with pytest.raises(MemoError, match=r"lies on nfs4?, .*give fb\.memo\(…, folder=…\)"):
            LmdbStore("/x/a b/memo", SIZE, 1)
    else:
        assert _file_system("/x/a b/memo") == "ext4"


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


def test_what_a_killed_writer_left_of_a_file_is_removed(tmp_path: Path) -> None:
    """By the next that looks at all, once no living one can be writing it."""
    store: Any = opened_store("npz", str(tmp_path / "memo"), SIZE)
    store.put([entry(1)])
    (path,) = tmp_path.rglob("*.npz")
    old, new = path.parent / f"{path.name}.77.partial", path.parent / f"{path.name}.78.partial"
    for rest in (old, new):
        rest.write_bytes(b"PK")
    os.utime(old, (0, 0))
    (tmp_path / "memo" / "held-bytes").unlink()
    store.put([entry(2)])
    assert [rest.exists() for rest in (old, new)] == [False, True]


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_files_end_at_the_store_s_size(tmp_path: Path, kind: str) -> None:
    """By all processes together; what is removed gives room again."""
    folder = tmp_path / "memo"
    stores = [opened_store(kind, str(folder), 1 << 20) for _ in range(2)]
    put = 0
    with pytest.raises(StoreFull):  # noqa: PT012  # at which it is full is counted
        for put in range(1000):
            stores[put % 2].put([entry(put)])
    assert put > 5
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 1 << 20
    for path in folder.rglob(f"*.{stores[0].suffix}"):
        path.unlink()
    opened_store(kind, str(folder), 1 << 20).put([entry(200)])


def test_the_mark_tells_the_parts(tmp_path: Path) -> None:
    """Another size, another day: the same files."""
    opened_store("lmdb", str(tmp_path / "memo"), 40 << 30).close()
    opened_store("lmdb", str(tmp_path / "memo"), SIZE).close()
    assert json.loads((tmp_path / "memo" / "memo.json").read_text())["parts"] == 3
    assert len(list(tmp_path.glob("memo/*.mdb"))) == 3
