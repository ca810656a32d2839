"""What somebody planted in a cache directory: rows, links, pipes. Refused, counted, never opened, run or followed.

Whoever can write there could plant wrong bytes outright, which no check of ours could tell; but a cache that was copied from somewhere,
restored from a backup or shared by mistake must not become a way to run code here, to read other files, or to destroy them.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from support.fake_origin import FakeOrigin
from support.house import SEGMENT, building, data_of, shard_of
from support.stores import make_row, ramp, sum_of, text_of

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.store.files import file_io
from forebay_proxy.store.index.row import MAX_ROW_BYTES, Row
from forebay_proxy.store.store import StartReport, Store

GOOD, BAD = make_row("s3://b/good", sums=[1, 0]), make_row("s3://b/bad", sums=[1, 0])
A = "https://o/set/a.tar"


class Canary:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
async def cache(tmp_path: Path) -> Path:
    """A cache directory with one good row, its file, and nobody in it."""
    path = tmp_path / "cache"
    store = await Store.open(path, who="serve")
    await store.load()
    file = await store.files.create(GOOD.key, GOOD.version.length or 0)
    await file.append(0, ramp(GOOD.key, 0, SEGMENT_BYTES), probe=True)
    store.index_writer.put(GOOD)
    await store.aclose()
    return path


@pytest.fixture
def canary(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "sang"
    yield path
    assert not path.exists(), "what was planted was run"


def plant(cache: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(cache / "index" / "cache.db")) as connection, connection:
        if values:
            connection.execute(sql, values)
        else:
            connection.executescript(sql)


def plant_row(cache: Path, **columns: Any) -> None:
    cells = {"key": BAD.key, "raw": 1, "mode": 1, "filename": None, "value": text_of(BAD), **columns}
    plant(cache, "INSERT INTO Cache (key, raw, mode, filename, value) VALUES (?, ?, ?, ?, ?)", *cells.values())


@asynccontextmanager
async def started(cache: Path) -> AsyncIterator[tuple[Store, StartReport]]:
    store = await Store.open(cache, who="serve")
    try:
        yield store, await store.load()
    finally:
        await store.aclose()


async def next_life(cache: Path) -> StartReport:
    async with started(cache) as (store, loaded):
        await store.sweeping.run()
        return loaded


def changed(**fields: Any) -> str:
    """A row's text with other fields than ``encode`` would give."""
    return json.dumps({**json.loads(text_of(BAD)), **fields})


# Rows


ROWS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a pickled value": lambda canary: {"mode": 4, "value": pickle.dumps(Canary(canary))},
    "a pickled key": lambda canary: {"key": pickle.dumps(Canary(canary)), "raw": 0},
    "a pickle said to be raw": lambda canary: {"mode": 1, "value": pickle.dumps(Canary(canary))},
    "a value in a file": lambda canary: {"mode": 2, "filename": "../../outside", "value": None},
    "a text in a file": lambda canary: {"mode": 3, "filename": "/etc/passwd", "value": None},
    "a pickle in a file": lambda canary: {"mode": 4, "filename": "../../outside", "value": None},
    "a good value and a file name": lambda canary: {"filename": "../../outside"},
    "another shard's key": lambda canary: {"key": GOOD.key[:-1] + "0"},
    "another shard's row": lambda canary: {"value": text_of(make_row("s3://b/other"))},
    "a key that is a path": lambda canary: {"key": "../" * 20 + "etc/pw"},
    "a key in capitals": lambda canary: {"key": BAD.key.upper()},
    "a huge length": lambda canary: {"value": changed(length=2**63, sums="")},
    "a length beyond all shards": lambda canary: {"value": changed(length=2**50, sums="")},
    "a negative length": lambda canary: {"value": changed(length=-1)},
    "a length that is a truth": lambda canary: {"value": changed(length=True)},
    "a length with a point": lambda canary: {"value": changed(length=1e3)},
    "sums for another length": lambda canary: {"value": changed(sums=base64.b64encode(bytes(80)).decode())},
    "sums that are a list": lambda canary: {"value": changed(sums=[1, 2])},
    "sums of other segments": lambda canary: {"value": changed(sums={"segment": 4096, "runs": []})},
    "sums far behind the shard": lambda canary: {"value": changed(sums={"segment": SEGMENT_BYTES, "runs": [[2**60, "BwAAAAAAAAA="]]})},
    "sums one over the other": lambda canary: {"value": changed(sums={"segment": SEGMENT_BYTES, "runs": [[0, "BwAAAAAAAAA="]] * 2})},
    "one more field": lambda canary: {"value": changed(file="../../outside")},
    "a header in the pin": lambda canary: {"value": changed(pin=["etag", '"x"\r\nHost: evil'])},
    "a credential that is none": lambda canary: {"value": changed(access=["*"])},
    "deep nesting": lambda canary: {"value": "[" * 100_000},
    "an endless number": lambda canary: {"value": changed(length=1).replace('"length": 1', '"length": ' + "9" * 100_000)},
    "not a number": lambda canary: {"value": changed(length=float("nan"))},
    "a row of 65 MiB": lambda canary: {"value": changed(url="s3://b/" + "x" * MAX_ROW_BYTES)},
}


@pytest.mark.parametrize("kind", ROWS)
async def test_a_poisoned_row_is_refused(cache: Path, canary: Path, tmp_path: Path, kind: str) -> None:
    """Counted, told, deleted; the good row beside it stays, and what it names is not touched, now or at later commits."""
    outside = tmp_path / "outside"
    outside.write_bytes(pickle.dumps(Canary(canary)))
    plant_row(cache, **ROWS[kind](canary))
    async with started(cache) as (store, loaded):
        assert (loaded.rows, loaded.rows_refused) == ([GOOD], 1)
        assert any("1 index rows refused" in notice for notice in loaded.notices)
        await store.sweeping.run()
        store.index_writer.put(BAD)
        await store.index_writer.committed()
        store.index_writer.drop(BAD.key)
        await store.index_writer.committed()
    assert (await next_life(cache)).rows_refused == 0
    assert pickle.loads.__module__ == "_pickle"
    assert outside.read_bytes()[:1] == b"\x80"


# The database


@pytest.mark.parametrize("name", ["cache.db", "cache.db-wal", "cache.db-shm", "cache.db-journal", "reserve"])
@pytest.mark.parametrize("how", ["link", "second name", "fifo", "directory"])
async def test_what_is_no_plain_file_in_the_index_is_not_opened(cache: Path, tmp_path: Path, name: str, how: str) -> None:
    """A start opens, cuts and fills the files there: never those of somebody else."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious" * 1000)
    place = cache / "index" / name
    place.unlink(missing_ok=True)
    make_odd(place, outside, how)
    loaded = await next_life(cache)
    assert sum("index-broken" in notice for notice in loaded.notices) == 1
    assert outside.read_bytes() == b"precious" * 1000


def make_odd(place: Path, outside: Path, how: str) -> None:
    match how:
        case "link":
            place.symlink_to(outside)
        case "second name":
            place.hardlink_to(outside)
        case "fifo":
            os.mkfifo(place)
        case "directory":
            place.mkdir()


@pytest.mark.parametrize("name", ["lock", "hmac.key"])
@pytest.mark.parametrize("how", ["link", "second name", "fifo", "directory"])
async def test_lock_and_key_are_plain_files(cache: Path, tmp_path: Path, name: str, how: str) -> None:
    """The start is refused in one line: it writes to both."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious" * 1000)
    (cache / name).unlink()
    make_odd(cache / name, outside, how)
    with pytest.raises(ConfigError, match="cannot be used") as told:
        await Store.open(cache, who="serve")
    assert "\n" not in str(told.value)
    assert outside.read_bytes() == b"precious" * 1000


# Shard files


ODD = ["link", "second name", "fifo", "directory"]


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("how", ODD)
async def test_what_is_no_plain_shard_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, claimed: bool) -> None:
    """Planted before a start under a name that is claimed, or will be wanted: nothing is read through it, nothing outside changes."""
    outside, origin, data = tmp_path / "outside", FakeOrigin(), data_of(2 * SEGMENT)
    origin.put(A, data)
    outside.write_bytes(b"!" * len(data))
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get(A)
        key = world.entry(A).key
        if not claimed:
            await world.operations.evict(None)
    file = tmp_path / "c" / "shards" / key
    file.unlink(missing_ok=True)
    make_odd(file, outside, how)
    opened = watch_opening(monkeypatch, file, outside)
    async with building(tmp_path / "c", origin=origin) as world:
        for _ in range(2):
            assert await world.get(A) == data
            await world.quiet()
            world.clock.advance(60)
        assert opened == []
    assert outside.read_bytes() == b"!" * len(data)
    if how == "directory":
        assert stat.S_ISDIR(file.lstat().st_mode), "left alone: the shard is passed through"
    else:
        assert stat.S_ISREG(file.lstat().st_mode)
        assert file.lstat().st_nlink == 1


@pytest.mark.parametrize("how", ODD)
async def test_one_put_in_the_place_of_a_closed_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """While we run: the file is missed, and its shard fetched again."""
    outside, data = tmp_path / "outside", data_of(2 * SEGMENT)
    outside.write_bytes(b"!" * len(data))
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()  # its reader had the last bytes from memory; now they are in the file
        entry, file = world.entry(A), world.shard_file(A)
        assert entry.stored.file is not None
        closing_, entry.stored.file = entry.stored.file, None
        await closing_.aclose()
        file.unlink()
        make_odd(file, outside, how)
        opened = watch_opening(monkeypatch, file, outside)
        assert await world.get(A) == data
        await world.quiet()
        world.clock.advance(60)
        assert await world.get(A) == data
        assert opened == []
        if how == "directory":
            file.rmdir()
    assert outside.read_bytes() == b"!" * len(data)


def watch_opening(monkeypatch: pytest.MonkeyPatch, *places: Path) -> list[str]:
    """Every descriptor that is ever opened on what lies at ``places`` now, or on a pipe. (Numbers of links are used again.)"""
    odd = {place.lstat().st_ino for place in places if place.is_dir() or (place.is_file() and not place.is_symlink())}
    opened: list[str] = []
    real = os.open

    def watched(path: Any, *args: Any, **how: Any) -> int:
        fd = real(path, *args, **how)
        state = os.fstat(fd)
        if state.st_ino in odd or stat.S_ISFIFO(state.st_mode):
            opened.append(str(path))
        return fd

    monkeypatch.setattr(file_io.os, "open", watched)
    return opened


async def test_a_row_cannot_speak_for_another_shard(tmp_path: Path) -> None:
    """The key follows from name and identity: a row renamed to serve evil bytes for a good name is refused, and the origin asked."""
    origin, good, evil = FakeOrigin(), data_of(2 * SEGMENT), data_of(2 * SEGMENT, 1)
    origin.put(A, good)
    origin.put("https://o/set/evil.tar", evil)
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get("https://o/set/evil.tar")
    database = tmp_path / "c" / "index" / "cache.db"
    with closing(sqlite3.connect(database)) as connection, connection:
        ((text,),) = connection.execute("SELECT value FROM Cache").fetchall()
        connection.execute("UPDATE Cache SET value = ?", (json.dumps({**json.loads(text), "url": A}),))
    async with building(tmp_path / "c", origin=origin) as world:
        assert await world.get(A) == good


def test_the_rows_here_are_what_they_seem() -> None:
    """The good ones are good: what is refused above is refused for what was changed."""
    assert Row.of(GOOD.url, GOOD.version, GOOD.access, GOOD.boot, GOOD.sums) == GOOD
    assert sum_of(b"") == 0x2D06800538D394C2
    assert shard_of(A).name == A
