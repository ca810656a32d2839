"""The store's own calls, cancelled at each await: no descriptor stays, no key stays taken, the books are true, and it can be done again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cancelling import When, at_each_await
from support.stores import make_row, ramp, sum_of

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.index.row import Row
from forebay_proxy.store.store import Store

LENGTH = 2 * SEGMENT_BYTES
NEW = make_row("s3://b/new").key


def stored_row(store: Store, name: str, sums: list[int]) -> Row:
    return make_row(name, sums=sums, boot=store.boot_id)


async def fill(store: Store, name: str, claimed: bool) -> str:
    """A file of which both segments are written and the first is claimed, or none."""
    key = make_row(name).key
    file = await store.files.create(key, LENGTH)
    for index in range(2):
        await file.append(index * SEGMENT_BYTES, ramp(key, index, LENGTH), probe=True)
    if claimed:
        store.index_writer.put(stored_row(store, name, [sum_of(ramp(key, 0, LENGTH)), 0]))
        await store.index_writer.committed()
    await file.aclose()
    return key


@asynccontextmanager
async def left_behind(path: Path) -> AsyncIterator[Store]:
    """A start that finds a claimed shard with an unclaimed segment, and two files nobody claims."""
    first = await Store.open(path, who="test")
    await first.load()
    await fill(first, "s3://b/kept", claimed=True)
    await fill(first, "s3://b/0", claimed=False)
    await fill(first, "s3://b/1", claimed=False)
    await first.aclose()
    store = await Store.open(path, who="test")
    try:
        await store.load()
        yield store
    finally:
        await store.aclose()


async def swept(store: Store) -> None:
    """Both leave, the unclaimed segment too."""
    await store.sweeping.run()


async def made(store: Store) -> None:
    await (await store.files.create(NEW, LENGTH)).aclose()


async def made_in_place_of_garbage(store: Store) -> None:
    await (await store.files.create(make_row("s3://b/0").key, LENGTH)).aclose()


async def opened_again(store: Store) -> None:
    await (await store.files.reopen(make_row("s3://b/kept").key, LENGTH, [0])).aclose()


async def claimed_and_committed(store: Store) -> None:
    store.index_writer.put(stored_row(store, "s3://b/kept", [7, 0]))
    await store.index_writer.committed()
    store.index_writer.put(stored_row(store, "s3://b/kept", [sum_of(ramp(make_row("s3://b/kept").key, 0, LENGTH)), 0]))
    await store.index_writer.committed()


async def worked_on(store: Store) -> None:
    file = await store.files.create(NEW, LENGTH)
    await file.allocate(0, SEGMENT_BYTES)
    await file.append(0, b"x" * 5000, probe=True)
    await file.punch(0, SEGMENT_BYTES)
    await file.sync()
    await file.remove()


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize(
    "work", [swept, made, made_in_place_of_garbage, opened_again, claimed_and_committed, worked_on], ids=lambda work: work.__name__
)
async def test_cancelled_at_each_await(tmp_path: Path, work: Callable[[Store], Coroutine[Any, Any, None]], when: When) -> None:
    """And then done again, to its end, on what the cancelled one left."""
    async for cut in at_each_await(when):
        async with left_behind(tmp_path / f"{cut.number}") as store:
            before = descriptors(store)
            await cut.run(work(store))
            await closed(store)
            assert descriptors(store) == before, cut
            await work(store)
            await store.sweeping.run()
            await closed(store)
            assert descriptors(store) == before, cut
            shards = {path.name for path in (store.path / "shards").iterdir()}
            assert make_row("s3://b/kept").key in shards
            assert len(store.sweeping) == 0
            assert store.sweeping.garbage_bytes == 0
            kept = await store.files.reopen(make_row("s3://b/kept").key, LENGTH, [0])
            assert not kept.lacking
            assert await kept.digest(0, SEGMENT_BYTES) == sum_of(ramp(kept.key, 0, LENGTH))
            await kept.aclose()


async def closed(store: Store) -> None:
    """Close what a cancelled caller left open on purpose: a file that was handed out is its owner's."""
    for file in list(store.files.open.values()):
        assert isinstance(file, ShardFile), "a key is taken by nobody"
        await file.aclose()
    await store.index_writer.committed()


def descriptors(store: Store) -> int:
    """Open descriptors into the shards' folder."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(f"{store.path}/shards/" in os.readlink(link) for link in links if os.path.lexists(link))
