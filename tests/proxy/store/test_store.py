"""The store: one owner, a start from whatever a kill left behind, and failures that are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.seams import refuses
from support.stores import held_by_a_child, make_row, ramp, sum_of

from forebay_proxy.core.errors import ConfigError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES, SegmentLayout
from forebay_proxy.store.facts import CommitFailed
from forebay_proxy.store.files import fallocate
from forebay_proxy.store.index.row import Row
from forebay_proxy.store.store import StartReport, Store

LENGTH = 2 * SEGMENT_BYTES
MIB = 2**20


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def store(tmp_path: Path, events: Events) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "cache", who="serve", events=events)
    await store.load()
    yield store
    await store.aclose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=700", "none", path], check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


async def stored(store: Store, name: str, present: set[int]) -> Row:
    """A shard with these segments written and claimed; its file is closed again."""
    empty = make_row(name, boot=store.boot_id)
    file = await store.files.create(empty.key, LENGTH)
    sums = [0, 0]
    for index in present:
        data = ramp(empty.key, index, LENGTH)
        await file.allocate(index * SEGMENT_BYTES, len(data))
        await file.append(index * SEGMENT_BYTES, data, probe=True)
        sums[index] = sum_of(data)
    row = make_row(name, sums=sums, boot=store.boot_id)
    store.index_writer.put(row)
    await store.index_writer.committed()
    await file.aclose()
    return row


def fill_up(disk: Path) -> Path:
    """Leave no room at all; the file that takes it."""
    path = disk / "ballast"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


async def next_life(path: Path, layout: SegmentLayout = DEFAULT_LAYOUT) -> StartReport:
    store = await Store.open(path, who="serve", layout=layout)
    try:
        loaded = await store.load()
        await store.sweeping.run()
        return loaded
    finally:
        await store.aclose()


async def test_what_was_claimed_is_there_in_the_next_life(store: Store) -> None:
    """Rows, bytes and figures."""
    row = await stored(store, "s3://b/0", {0, 1})
    await store.aclose()
    again = await Store.open(store.path, who="serve")
    loaded = await again.load()
    assert loaded.rows == [row]

    file = await again.files.reopen(row.key)
    assert await file.digest(SEGMENT_BYTES, SEGMENT_BYTES) == row.sums[1]
    await again.aclose()


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES // 128, SEGMENT_BYTES // 2, 2 * SEGMENT_BYTES])
async def test_what_was_cut_otherwise_is_fetched_anew(store: Store, segment_bytes: int) -> None:
    """Its row says what its sums are of: it is refused, and its file removed."""
    await stored(store, "s3://b/0", {0, 1})
    await store.aclose()
    loaded = await next_life(store.path, SegmentLayout(segment_bytes))
    assert (loaded.rows, loaded.rows_refused, len(loaded.garbage)) == ([], 1, 1)
    assert list((store.path / "shards").iterdir()) == []


async def test_a_refused_open_leaves_no_thread(tmp_path: Path) -> None:
    """What was started for it ends with it."""
    (tmp_path / "file").touch()
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(ConfigError):
        await Store.open(tmp_path / "file", who="serve")
    assert {thread.name for thread in threading.enumerate()} == before


async def test_a_directory_where_no_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found at the start, in one line, and the lock is given back."""
    with monkeypatch.context() as patch:
        refuses(patch, fallocate, OSError(30, "Read-only file system"), "probe")
        with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
            await Store.open(tmp_path, who="serve")
    await next_life(tmp_path)


async def test_one_file_is_open_once(store: Store) -> None:
    """Two descriptors of one shard would be two owners of it."""
    row = make_row()
    file = await store.files.create(row.key, LENGTH)
    with pytest.raises(ValueError, match="open already"):
        await store.files.reopen(row.key)
    await file.aclose()
    await (await store.files.reopen(row.key)).aclose()


async def test_a_missing_file_is_a_disk_failure(store: Store) -> None:
    """And it may be tried again."""
    for _ in range(2):
        with pytest.raises(DiskFailed, match="ENOENT"):
            await store.files.reopen(make_row().key)


async def test_a_file_of_an_earlier_life_does_not_show_through(store: Store) -> None:
    """create() begins with holes, whatever lay there."""
    row = make_row()
    (store.path / "shards" / row.key).write_bytes(b"old" * 1000)
    file = await store.files.create(row.key, LENGTH)
    assert await file.read(0, 100) == bytes(100)
    assert file.allocated_bytes() == 0


async def test_a_file_without_row_is_removed_and_told(store: Store) -> None:
    """Created, never claimed; what is not ours is named and left."""
    await store.files.create(make_row().key, LENGTH)
    (store.path / "shards" / "notes\n").touch()
    await store.aclose()
    loaded = await next_life(store.path)
    assert len(loaded.garbage) == 1
    assert loaded.unknown == ["shards/notes\n"]
    assert all("\n" not in notice for notice in loaded.notices)
    assert any("1 shard files that nothing claims" in notice for notice in loaded.notices)
    assert (store.path / "shards" / "notes\n").exists()


async def test_a_row_without_file_leaves_the_index(store: Store) -> None:
    """Dropped at the start, and not found again by the next."""
    row = await stored(store, "s3://b/0", {0})
    await store.aclose()
    (store.path / "shards" / row.key).unlink()
    assert len((await next_life(store.path)).dropped) == 1
    assert len((await next_life(store.path)).dropped) == 0


@pytest.mark.parametrize("damage", ["text", "half", "folder"])
async def test_a_damaged_index_does_not_stop_the_start(store: Store, damage: str) -> None:
    """It is kept aside, the shards are fetched again, and the notice says so; the new index works."""
    await stored(store, "s3://b/0", {0})
    await store.aclose()
    database = store.path / "index" / "cache.db"
    if damage == "half":
        os.truncate(database, 5000)
    else:
        database.unlink()
        database.write_text("not a database" * 100) if damage == "text" else database.mkdir()
    again = await Store.open(store.path, who="serve")
    loaded = await again.load()
    assert (loaded.rows, len(loaded.garbage)) == ([], 1)
    assert "damaged" in loaded.notices[0]
    assert "index-broken" in loaded.notices[0]
    assert (store.path / "index-broken" / "cache.db").exists()
    row = await stored(again, "s3://b/0", {0})
    await again.aclose()
    assert (await next_life(store.path)).rows == [row]


async def test_a_stuck_file_that_is_free_gives_way(store: Store) -> None:
    """create() takes its place, and it counts no longer."""
    row = await stored(store, "s3://b/0", {0})
    store.index_writer.drop(row.key)
    await store.aclose()
    again = await Store.open(store.path, who="serve")
    with held_by_a_child(store.path / "shards" / row.key):
        await again.load()
    await again.files.create(row.key, LENGTH)
    assert again.measure() < 2 * MIB
    assert await again.sweeping.run() == 0
    assert (store.path / "shards" / row.key).exists()
    await again.aclose()


async def test_allocation_on_a_full_disk(small_disk: Path) -> None:
    """ENOSPC is told by name, nothing of the range stays taken, and what was stored is still right."""
    store = await Store.open(small_disk, who="serve")
    await store.load()
    row = await stored(store, "s3://b/0", {0, 1})
    file = await store.files.create(make_row("s3://b/1", length=4 * SEGMENT_BYTES).key, 4 * SEGMENT_BYTES)
    await file.allocate(0, SEGMENT_BYTES)
    before = file.allocated_bytes()
    with pytest.raises(DiskFailed) as caught:
        await file.allocate(SEGMENT_BYTES, 2 * SEGMENT_BYTES)
    assert (caught.value.operation, caught.value.errno_name) == ("allocate", "ENOSPC")
    assert file.allocated_bytes() == before
    with pytest.raises(DiskFailed, match="write failed with ENOSPC"):
        await file.append(SEGMENT_BYTES, bytes(2 * SEGMENT_BYTES), probe=True)
    reader = await store.files.reopen(row.key)
    assert await reader.digest(0, SEGMENT_BYTES) == row.sums[0]
    await store.aclose()


async def test_the_index_on_a_full_disk(small_disk: Path, events: Events) -> None:
    """A commit that finds no room is told, kept, and made once there is room; a reserved range is not touched."""
    store = await Store.open(small_disk, who="serve", events=events)
    await store.load()
    await stored(store, "s3://b/0", {0})
    ballast = fill_up(small_disk)
    failures: list[CommitFailed] = []
    events.on(CommitFailed, failures.append)
    big = [make_row(f"s3://c/{number}", length=2**33, sums=[7] * 1024, boot=store.boot_id) for number in range(100)]
    for row in big:
        store.index_writer.put(row)
    with pytest.raises(DiskFailed, match="index commit failed with ENOSPC"):
        await store.index_writer.committed()
    assert failures
    ballast.unlink()
    await store.index_writer.committed()
    await store.aclose()
    loaded = await next_life(small_disk)
    assert len(loaded.rows) == 1
    assert len(loaded.dropped) == 100


async def test_a_claim_is_withdrawn_on_a_full_disk(small_disk: Path) -> None:
    """Somebody else took all there is: room kept for the index lets us evict all the same, again and again."""
    store = await Store.open(small_disk, who="serve")
    await store.load()
    rows = [await stored(store, f"s3://b/{number}", {0}) for number in range(3)]
    for row in rows:
        fill_up(small_disk)
        store.index_writer.drop(row.key)
        await store.index_writer.committed()
        file = await store.files.reopen(row.key)
        await file.remove()
        store.index_writer.drop(row.key)
        await store.index_writer.committed()  # the next commit, whatever it is, takes the room again
    await store.aclose()
    (small_disk / "ballast").unlink()
    assert (await next_life(small_disk)).rows == []


async def test_a_directory_removed_under_us(store: Store) -> None:
    """Every change is a DiskFailed with ENOENT; closing still works."""
    file = await store.files.create(make_row().key, LENGTH)
    shutil.rmtree(store.path)
    store.index_writer.put(make_row())
    write, create = file.append(0, b"x", probe=True), store.files.create("b" * 64, 10)
    for attempt in (write, create, store.files.reopen("c" * 64), store.index_writer.committed()):
        with pytest.raises(DiskFailed, match="ENOENT"):
            await attempt
    assert store.measure() >= 0


@pytest.mark.parametrize("gone", ["lock", "shards", ""])
async def test_another_owners_index_is_not_written(store: Store, tmp_path: Path, gone: str) -> None:
    """Without its lock file a second sidecar owns the directory: what the first one has to say of its own goes nowhere."""
    (store.path / gone).rename(tmp_path / "aside")
    if gone == "shards":
        (store.path / "lock").unlink()
    other = await Store.open(store.path, who="serve")
    await other.load()
    row = await stored(other, "s3://b/0", {0})
    store.index_writer.drop(row.key)
    store.index_writer.put(make_row("s3://b/1", boot=store.boot_id))
    with pytest.raises(DiskFailed, match="ENOENT"):
        await store.index_writer.committed()
    await other.aclose()
    assert [row.key for row in (await next_life(store.path)).rows] == [row.key]


async def test_closing_says_goodbye(store: Store) -> None:
    """The lock file names nobody, no descriptor into the directory is left, and the next owner may come."""
    await store.files.create(make_row().key, LENGTH)
    await store.aclose()
    assert (store.path / "lock").read_text() == ""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    assert not [link for link in links if os.path.islink(link) and str(store.path) in os.readlink(link)]
    await next_life(store.path)
