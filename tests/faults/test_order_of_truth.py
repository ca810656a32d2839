"""Bytes before their claim, the claim's end before its bytes': looked at after every single step on the disk, and synced once a shard.

Each blocking leaf that changes a file, and each commit of the index, is one step; between two of them a kill could come. The copy of the
directory taken there must hold nothing false: the next life serves what it claims, and only what is right.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.crashing import Instants, copy_tree
from support.fake_origin import FakeOrigin
from support.house import LAYOUT, SEGMENT, building, data_of, reader, until
from support.seams import disk_does

from forebay_proxy.store.files import file_io
from forebay_proxy.store.index.database import IndexDatabase
from forebay_proxy.store.index.row import Row, decode
from forebay_proxy.store.store import Store

NAMES = [f"https://o/set/{number}.tar" for number in range(5)]
LEAVES = ("create", "allocate", "release", "append", "punch", "unlink")


def at_each_step(monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> None:
    """Call ``look`` after each change on the disk, in its thread, and half-way through each write."""

    def told(name: str, real: Any) -> Any:
        def leaf(*args: Any) -> Any:
            try:
                return real(*args)
            finally:
                look(name)

        return leaf

    def half(fd: int, offset: int, data: bytes | memoryview, *how: Any) -> float:
        os.pwrite(fd, data[: len(data) // 2], offset)
        look("half a write")
        return real_append(fd, offset, data, *how)

    real_append = file_io.append
    disk_does(monkeypatch, append=half)
    disk_does(monkeypatch, **{name: told(name, getattr(file_io, name)) for name in LEAVES})
    monkeypatch.setattr(IndexDatabase, "commit", told("commit", IndexDatabase.commit))


def committed(directory: Path) -> list[Row]:
    """What the index in ``directory`` claims."""
    with closing(sqlite3.connect(f"file:{directory / 'index' / 'cache.db'}?mode=ro", uri=True)) as index:
        made = index.execute("SELECT * FROM sqlite_master WHERE name = 'Cache'").fetchall()
        rows = index.execute("SELECT key, value FROM Cache").fetchall() if made else []
    return [decode(key, text, LAYOUT) for key, text in rows]


async def busy(path: Path, origin: FakeOrigin) -> None:
    """More than fits: fetches, evictions by need and by hand, a shard that changes, one without ranges, one of unknown length."""
    chance = random.Random(5)
    async with building(path, segments=7, origin=origin) as world:
        for step in range(24):
            name = chance.choice(NAMES)
            remote = origin.remotes[name]
            got = await asyncio.gather(world.get(name, reader(job=f"{step}")), world.get(NAMES[step % 5], reader(1, job=f"{step}"), 0, 9))
            assert got[0] == remote.data
            if step % 6 == 5:
                await world.operations.evict([chance.choice(NAMES)])
            if step % 9 == 8:
                origin.put(name, data_of(len(remote.data), 100 + step), etag=f'"v{step}"')


def filled() -> FakeOrigin:
    origin = FakeOrigin()
    for seed, name in enumerate(NAMES):
        origin.put(name, data_of((seed + 1) * SEGMENT - 77 * seed, seed), ranged=seed != 1, length_known=seed != 1)
    return origin


async def test_no_claim_is_ever_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each step, every segment that the committed index claims has the bytes of its checksum."""
    Instants(monkeypatch)  # one step at a time
    steps: list[str] = []
    index_writer = [0]

    def look(step: str) -> None:
        steps.append(step)
        for row in committed(tmp_path / "c"):
            fd = os.open(tmp_path / "c" / "shards" / row.key, os.O_RDONLY)
            for number in row.sums:
                index_writer[0] += 1
                assert real_digest(fd, *LAYOUT.span(number, row.version.length)) == row.sums[number], (step, len(steps), row.url, number)
            os.close(fd)

    real_digest = file_io.digest
    wrong: list[BaseException] = []

    def careful(step: str) -> None:
        try:
            look(step)
        except BaseException as error:
            wrong.append(error)  # a leaf's error would only be one more disk that fails
            raise

    at_each_step(monkeypatch, careful)
    await busy(tmp_path / "c", filled())
    assert not wrong, wrong[0]
    assert index_writer[0] > 500
    assert {"commit", "punch", "unlink", "half a write", "allocate"} <= set(steps)


async def test_killed_after_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next life on a copy of each such moment has all that was claimed, reads every shard right, inside the bound, and leaves no file
    behind.
    """
    Instants(monkeypatch)
    copies: list[Path] = []
    steps = [0]

    def look(step: str) -> None:
        steps[0] += 1
        if steps[0] % 5 == 0:
            copies.append(copy_tree(tmp_path / "c", tmp_path / f"copy {steps[0]} {step}"))

    origin = filled()
    with monkeypatch.context() as patch:
        at_each_step(patch, look)
        await busy(tmp_path / "c", origin)
    assert len(copies) > 40
    kept = 0
    for copy in copies:
        claimed = sum(row.claimed for row in committed(copy))
        async with building(copy, segments=7, origin=origin) as world:
            here = sum(entry.segments.stored_count for entry in world.room.entries.values())
            assert here == claimed, f"{copy.name}: a kill costs what was in the air, not what was stored"
            kept += here
            for name in NAMES:
                assert await world.get(name) == origin.remotes[name].data, copy.name
    assert kept


async def test_a_shard_is_synced_once_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fdatasync after its last segment: none before, none again when it is read or partly evicted."""
    synced: list[int] = []
    real = file_io.sync

    def told(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    disk_does(monkeypatch, sync=told)
    origin = filled()
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get(NAMES[4], None, 0, 2 * SEGMENT)
        await world.quiet()
        assert synced == []
        for _ in range(2):
            await world.get(NAMES[4])
            await world.quiet()
            assert synced == [world.shard_file(NAMES[4]).stat().st_ino]


async def test_a_dropped_row_is_gone_before_its_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that drops a row waits for that commit: killed in between, the old row would speak for the new file."""
    origin = filled()
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get(NAMES[4])
        file = world.shard_file(NAMES[4])
    os.truncate(file, 10)
    store = await Store.open(tmp_path / "c", who="test", layout=LAYOUT)
    loaded = await store.load()
    copy = copy_tree(tmp_path / "c", tmp_path / "copy")
    await store.aclose()
    assert len(loaded.dropped) == 1
    with closing(sqlite3.connect(copy / "index" / "cache.db")) as index:
        assert index.execute("SELECT count(*) FROM Cache").fetchall() == [(0,)]


async def test_an_old_index_beside_newer_files(tmp_path: Path) -> None:
    """The log was lost and the index is of yesterday: what it claims and was evicted since is not served as zeros."""
    origin = filled()
    name = NAMES[4]
    async with building(tmp_path / "c", origin=origin) as world:
        await world.get(name)
        await world.quiet()
        await until(lambda: not world.store.index_writer._pending)
        await world.store.index_writer.committed()
        old = copy_tree(tmp_path / "c" / "index", tmp_path / "old")
        await world.reclaimer.discard(world.entry(name), 1)
        await world.reclaimer.discard(world.entry(name), 3)
        await world.quiet()
    index = tmp_path / "c" / "index"
    for file in index.iterdir():
        file.unlink()
    index.rmdir()
    old.rename(index)
    origin.log.clear()
    async with building(tmp_path / "c", origin=origin) as world:
        assert world.entry(name).segments.stored_count == 5
        assert await world.get(name) == origin.remotes[name].data
        assert {asked for asked in origin.asked(name) if asked} == {(SEGMENT, 2 * SEGMENT - 1), (3 * SEGMENT, 4 * SEGMENT - 1)}
