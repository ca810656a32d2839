"""One stored shard: bytes go in and come out, blocks are taken and given back, and nothing leaves while a client holds it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.house import until
from support.seams import disk_does, held_in_thread, refuses
from support.stores import held_by_a_child, make_row, ramp, sum_of

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.store import store as store_module
from forebay_proxy.store.files import fallocate, file_io, shard_file
from forebay_proxy.store.files.file_io import Leased
from forebay_proxy.store.files.shard_file import QUICK_FOR_S, QUICK_S, SLOW_FOR_S, ShardFile
from forebay_proxy.store.store import Store

LENGTH = 2 * SEGMENT_BYTES + 5000  # the tail ends inside a block
KEY = make_row(length=LENGTH).key


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path, who="serve")
    yield store
    await store.aclose()


@pytest.fixture
async def file(store: Store) -> ShardFile:
    if not (store.abilities.punch and store.abilities.allocate):
        pytest.skip("the file system of the temporary directory has no fallocate")
    return await store.files.create(KEY, LENGTH)


async def fill(file: ShardFile) -> None:
    for index in range(3):
        data = ramp(KEY, index, LENGTH)
        await file.allocate(index * SEGMENT_BYTES, len(data))
        await file.append(index * SEGMENT_BYTES, data, probe=True)


async def test_a_new_file_is_sparse_and_of_full_length(file: ShardFile, tmp_path: Path) -> None:
    """No blocks yet; on ext4 a punch beyond the size would free nothing, so the size is there from the start."""
    assert file.allocated_bytes() == 0
    assert (tmp_path / "shards" / KEY).stat().st_size == LENGTH
    assert (tmp_path / "shards" / KEY).stat().st_mode & 0o777 == 0o600


async def test_two_ranges_given_back_at_once_are_both_freed(
    tmp_path: Path, store: Store, file: ShardFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One left allocated and unwritten would be taken for a segment that is here by the next start."""
    for index in range(2):
        await file.allocate(index * SEGMENT_BYTES, SEGMENT_BYTES)
    gate = held_in_thread(monkeypatch, fallocate, "punch")
    fd = os.open(tmp_path / "shards" / KEY, os.O_RDWR)
    releases = [asyncio.create_task(store._pools.writes.run(file_io.release, fd, 0, SEGMENT_BYTES))]
    await until(gate.reached.is_set)
    releases.append(asyncio.create_task(store._pools.writes.run(file_io.release, fd, SEGMENT_BYTES, SEGMENT_BYTES)))
    await asyncio.wait(releases[1:], timeout=0.2)  # it must not have given up by then; it may wait
    gate.open()
    await asyncio.gather(*releases)
    os.close(fd)
    assert file.allocated_bytes() == 0


async def test_bytes_read_back(file: ShardFile) -> None:
    """Written in any order, read across segments."""
    await fill(file)
    expected = b"".join(ramp(KEY, index, LENGTH) for index in range(3))
    assert await file.read(0, LENGTH) == expected
    assert await file.read(SEGMENT_BYTES - 10, 20) == expected[SEGMENT_BYTES - 10 : SEGMENT_BYTES + 10]


async def test_read_now_has_what_was_just_written(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm bytes come without a thread, where the file system can tell: whole or not at all."""
    assert not file.read_now(LENGTH - 10, memoryview(bytearray(20)))
    await fill(file)
    data = bytearray(2**20)
    if not file.read_now(0, memoryview(data)):
        pytest.skip("no RWF_NOWAIT here")
    assert data == ramp(KEY, 0, LENGTH)[: 2**20]
    refuses(monkeypatch, os, OSError(errno.EOPNOTSUPP, "no such flag"), "preadv")
    assert not file.read_now(0, memoryview(bytearray(10)))


async def test_a_file_cut_under_us_is_a_disk_failure(file: ShardFile, tmp_path: Path) -> None:
    """Fewer bytes than asked for never pass as all."""
    os.truncate(tmp_path / "shards" / KEY, 100)
    with pytest.raises(DiskFailed, match="ENODATA"):
        await file.read(0, 200)
    with pytest.raises(DiskFailed, match="ENODATA"):
        await file.digest(0, 200)


async def test_digest_is_that_of_the_range(file: ShardFile) -> None:
    """Whole segments and the short tail."""
    await fill(file)
    for index in range(3):
        data = ramp(KEY, index, LENGTH)
        assert await file.digest(index * SEGMENT_BYTES, len(data)) == sum_of(data)


async def test_punch_frees_a_segment_and_leaves_its_neighbours(file: ShardFile) -> None:
    """Its blocks are gone, the bytes beside it are not."""
    await fill(file)
    before = file.allocated_bytes()
    await file.punch(SEGMENT_BYTES, SEGMENT_BYTES)
    assert before - file.allocated_bytes() >= SEGMENT_BYTES
    assert await file.read(0, SEGMENT_BYTES) == ramp(KEY, 0, LENGTH)
    assert await file.read(2 * SEGMENT_BYTES, 5000) == ramp(KEY, 2, LENGTH)
    assert await file.read(SEGMENT_BYTES, 10) == bytes(10)


async def test_punch_frees_the_last_block_too(file: ShardFile) -> None:
    """A tail that ends inside a block leaves nothing behind."""
    await fill(file)
    await file.punch(2 * SEGMENT_BYTES, 5000)
    await file.punch(0, 2 * SEGMENT_BYTES)
    assert file.allocated_bytes() == 0


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("allocated", [(), (5, 999)], ids=str)
@pytest.mark.parametrize("written", [(), (3, 4, 9), (0, 999)], ids=str)
async def test_a_long_file_is_punched_by_what_is_in_it(
    store: Store, file: ShardFile, monkeypatch: pytest.MonkeyPatch, written: tuple[int, ...], allocated: tuple[int, ...], tells: bool
) -> None:
    """And not by its length, which an origin may have made up. All of it, in order; also where a file system tells no data from holes."""
    calls, real, seek = list[tuple[int, int]](), fallocate.punch, os.lseek
    length = 999 * SEGMENT_BYTES + 5000

    def noted(fd: int, offset: int, size: int) -> None:
        calls.append((offset, size))
        real(fd, offset, size)

    def untold(fd: int, offset: int, kind: int) -> int:
        if kind in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "no such kind")
        return seek(fd, offset, kind)

    await file.remove()
    long = await store.files.create(KEY, length)
    for index in {*written, *allocated}:
        await long.allocate(index * SEGMENT_BYTES, 5000)
    for index in written:
        await long.append(index * SEGMENT_BYTES, bytes([1]) * 5000, probe=True)
    monkeypatch.setattr(fallocate, "punch", noted)
    if not tells:
        monkeypatch.setattr(os, "lseek", untold)
    await long.punch(0, length)
    assert long.allocated_bytes() == 0
    assert [offset for offset, _ in calls] == [offset + size for offset, size in calls[1:]] + [0]
    assert len(calls) <= 2 * len(written) + 1 if tells else 1000


async def test_nothing_leaves_while_a_client_holds_the_file(file: ShardFile, tmp_path: Path) -> None:
    """LOCK_SH of a passed descriptor forbids punch and removal; both work once it is gone."""
    await fill(file)
    before = file.allocated_bytes()
    with held_by_a_child(tmp_path / "shards" / KEY):
        with pytest.raises(Leased):
            await file.punch(0, SEGMENT_BYTES)
        with pytest.raises(Leased):
            await file.remove()
        assert file.allocated_bytes() == before
        assert await file.read(0, 10) == ramp(KEY, 0, LENGTH)[:10]
    await file.punch(0, SEGMENT_BYTES)
    await file.remove()
    assert not (tmp_path / "shards" / KEY).exists()


async def test_a_file_put_in_its_place_is_not_punched(file: ShardFile, tmp_path: Path) -> None:
    """The name must still mean the file we have open."""
    path = tmp_path / "shards" / KEY
    path.rename(path.with_name("moved"))
    path.write_bytes(b"other")
    with pytest.raises(DiskFailed, match="ESTALE"):
        await file.punch(0, SEGMENT_BYTES)
    assert path.read_bytes() == b"other"


async def test_remove_unlinks_and_closes(file: ShardFile, tmp_path: Path) -> None:
    """Blocks and descriptor are gone, later calls fail."""
    await fill(file)
    await file.remove()
    assert list((tmp_path / "shards").iterdir()) == []
    with pytest.raises(DiskFailed, match="EBADF"):
        await file.read(0, 1)
    assert not any(KEY in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))


async def test_writing_to_a_deleted_file_fails_and_reading_goes_on(file: ShardFile, tmp_path: Path) -> None:
    """Bytes nobody can see must not fill the disk; those that are there are still the shard's."""
    await fill(file)
    (tmp_path / "shards" / KEY).unlink()
    for attempt in (file.append(0, b"x", probe=True), file.allocate(0, 10), file.sync(), file.punch(0, 10)):
        with pytest.raises(DiskFailed, match="ENOENT"):
            await attempt
    assert await file.read(0, 100) == ramp(KEY, 0, LENGTH)[:100]


@pytest.mark.parametrize("probe", [True, False])
async def test_a_short_write_is_continued(file: ShardFile, monkeypatch: pytest.MonkeyPatch, probe: bool) -> None:
    """pwrite may take less than it is given."""
    await file.append(0, b"quick", probe=True)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(data[:3]), offset))
    await file.append(5, memoryview(b"0123456789"), probe=probe)
    assert await file.read(0, 15) == b"quick0123456789"


class Disk:
    """Says what each write takes, and notes who made it, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.takes_s, self.writers = 1000.0, 0.0, list[str]()
        monkeypatch.setattr(shard_file, "time", SimpleNamespace(monotonic=lambda: self.now))
        self._real = file_io.append
        disk_does(monkeypatch, append=self._append)

    def _append(self, fd: int, offset: int, data: bytes, *how: Any) -> float:
        self.writers.append("loop" if threading.current_thread() is threading.main_thread() else "thread")
        self._real(fd, offset, data, *how)
        return self.takes_s


@pytest.fixture
def disk(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def written(file: ShardFile, disk: Disk, takes_s: float = 0.0, *, probe: bool = False) -> str:
    """Who made a write that takes so long."""
    disk.takes_s = takes_s
    await file.append(5, b"0123456789", probe=probe)
    return disk.writers[-1]


async def test_the_loop_writes_while_the_disk_is_quick(file: ShardFile, disk: Disk) -> None:
    """Once a thread found it so, and that is not long ago; a new segment is tried by a thread."""
    assert [await written(file, disk, probe=probe) for probe in (False, False, True, False)] == ["thread", "loop", "thread", "loop"]
    disk.now += QUICK_FOR_S
    assert [await written(file, disk) for _ in range(2)] == ["thread", "loop"]


async def test_after_a_slow_write_threads_write(file: ShardFile, disk: Disk) -> None:
    """Until one of them was quick, where it was a thread that was slow."""
    await written(file, disk, QUICK_S)
    assert [await written(file, disk) for _ in range(2)] == ["thread", "loop"]


async def test_after_a_slow_write_of_the_loop_threads_write_for_a_while(file: ShardFile, disk: Disk) -> None:
    """Whatever they find."""
    await written(file, disk)
    assert await written(file, disk, QUICK_S) == "loop"
    assert [await written(file, disk) for _ in range(3)] == ["thread"] * 3
    disk.now += SLOW_FOR_S
    assert [await written(file, disk) for _ in range(2)] == ["thread", "loop"]


@pytest.mark.parametrize("probe", [True, False])
async def test_a_write_that_fails_is_a_disk_failure(file: ShardFile, monkeypatch: pytest.MonkeyPatch, probe: bool) -> None:
    """Whoever makes it."""
    await file.append(0, b"quick", probe=True)
    refuses(monkeypatch, os, OSError(errno.ENOSPC, "full"), "pwrite")
    with pytest.raises(DiskFailed, match="ENOSPC"):
        await file.append(5, b"x", probe=probe)


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("closed", [True, False])
async def test_a_file_that_is_closed_or_closing_takes_nothing(
    file: ShardFile, monkeypatch: pytest.MonkeyPatch, probe: bool, closed: bool
) -> None:
    """Its descriptor may be another file's by then."""
    await file.append(0, b"quick", probe=True)
    slow = held_in_thread(monkeypatch, os, "fdatasync")
    syncing = asyncio.create_task(file.sync())
    await until(slow.reached.is_set)
    closing = asyncio.create_task(file.aclose())
    await asyncio.sleep(0)
    if closed:
        slow.open()
        await closing
    with pytest.raises(DiskFailed, match="EBADF"):
        await file.append(5, b"x", probe=probe)
    slow.open()
    await asyncio.gather(syncing, closing)


async def test_a_cancelled_allocation_is_given_back(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it any more, so nobody will give it back: the ledger's figure stays true."""
    slow = held_in_thread(monkeypatch, fallocate, "allocate")
    allocating = asyncio.create_task(file.allocate(0, SEGMENT_BYTES))
    await until(slow.reached.is_set)
    allocating.cancel()
    slow.open()
    with pytest.raises(asyncio.CancelledError):
        await allocating
    assert file.allocated_bytes() == 0


async def test_closing_waits_for_calls_in_flight(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread finds its descriptor closed, or used again for another file."""
    slow = held_in_thread(monkeypatch, os, "pwrite")
    writing = asyncio.create_task(file.append(0, b"x", probe=True))
    await until(slow.reached.is_set)
    closing = asyncio.create_task(file.aclose())
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing, closing], timeout=0.02)
    assert not writing.done()
    assert not closing.done()
    slow.open()
    await closing
    with pytest.raises(asyncio.CancelledError):
        await writing


async def test_a_cancelled_close_can_be_made_again(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is open until a close went through."""
    slow = held_in_thread(monkeypatch, os, "fdatasync")
    syncing = asyncio.create_task(file.sync())
    await until(slow.reached.is_set)
    closing = asyncio.create_task(file.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    slow.open()
    await syncing
    assert file.allocated_bytes() == 0
    await file.aclose()
    with pytest.raises(DiskFailed, match="EBADF"):
        file.allocated_bytes()


async def test_a_failed_allocation_gives_back_what_it_got(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may reserve half and then say that it is full."""
    real = fallocate.allocate

    def half(fd: int, offset: int, length: int) -> None:
        real(fd, offset, length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fallocate, "allocate", half)
    with pytest.raises(DiskFailed, match="ENOSPC"):
        await file.allocate(SEGMENT_BYTES, SEGMENT_BYTES)
    assert file.allocated_bytes() == 0


async def test_a_call_that_hangs_is_not_waited_for(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """ETIMEDOUT; its descriptor stays until it has come back, and nothing is freed under it."""
    monkeypatch.setattr(shard_file, "PATIENCE_S", 0.1)
    order, real_append, real_punch = list[str](), file_io.append, file_io.punch

    def append(*args: Any) -> float:
        order.append("written")
        return real_append(*args)

    def punch(*args: Any) -> None:
        order.append("punched")
        real_punch(*args)

    disk_does(monkeypatch, append=append, punch=punch)
    gate = held_in_thread(monkeypatch, file_io, "append")
    await file.allocate(0, SEGMENT_BYTES)
    with pytest.raises(DiskFailed, match="no answer within") as raised:
        await file.append(0, bytes(range(256)) * 256, probe=True)
    assert raised.value.errno_name == "ETIMEDOUT"
    freeing = asyncio.create_task(file.punch(0, SEGMENT_BYTES))
    closing = asyncio.create_task(file.aclose())
    await asyncio.wait([freeing, closing], timeout=0.1)
    assert (freeing.done(), closing.done()) == (False, False)
    closing.cancel()
    gate.open()
    await freeing
    assert order == ["written", "punched"]
    assert file.allocated_bytes() == 0, "what came late was freed too"


async def test_a_file_that_is_made_late_is_nobodys(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has been, nobody else may make it; then it is replaced like any leftover."""
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.1)
    with monkeypatch.context() as patch:
        gate = held_in_thread(patch, file_io, "create")
        with pytest.raises(DiskFailed, match="no answer within"):
            await store.files.create(KEY, LENGTH)
    with pytest.raises(DiskFailed, match="has not come back"):
        await store.files.create(KEY, LENGTH)
    gate.open()
    async with asyncio.timeout(60):
        while KEY in store.files.open:
            await asyncio.sleep(0.01)
    made = await store.files.create(KEY, LENGTH)
    await made.append(0, b"mine", probe=True)
    assert await made.read(0, 4) == b"mine"


async def test_writing_beyond_a_cut_is_refused(file: ShardFile, tmp_path: Path) -> None:
    """Somebody cut the file: writing at its old length would make zeros of what was cut off."""
    path = next((tmp_path / "shards").iterdir())
    size = path.stat().st_size
    os.truncate(path, size // 2)
    for attempt in (file.append(size - 10, b"x" * 10, probe=True), file.allocate(size // 2, 4096)):
        with pytest.raises(DiskFailed, match="ENODATA"):
            await attempt
    assert path.stat().st_size == size // 2


async def test_what_lacks_is_told_at_opening(store: Store) -> None:
    """Segments with a hole in them, or beyond the end; one that was written whole never does."""
    length = 4 * SEGMENT_BYTES - 5000
    key = make_row(length=length).key
    file = await store.files.create(key, length)
    for index in (0, 2, 3):
        await file.append(index * SEGMENT_BYTES, b"\0" * DEFAULT_LAYOUT.span(index, length)[1], probe=True)
    await file.punch(2 * SEGMENT_BYTES + 8192, 4096)
    await file.aclose()
    file = await store.files.reopen(key, length, range(4))
    assert file.lacking == {1, 2}
    await file.aclose()
    with pytest.raises(DiskFailed, match="ESTALE"):
        await store.files.reopen(key, length + 1)


async def test_removing_a_file_with_a_second_name(file: ShardFile, tmp_path: Path, store: Store) -> None:
    """It loses the name we gave it, its bytes stay for whoever gave it the other; it is closed, and the name is free."""
    path = next((tmp_path / "shards").iterdir())
    await file.append(0, b"x" * 4096, probe=True)
    (tmp_path / "copy").hardlink_to(path)
    await file.remove()
    assert not path.exists()
    assert (tmp_path / "copy").read_bytes()[:4096] == b"x" * 4096
    await (await store.files.create(file.key, 4096)).aclose()
