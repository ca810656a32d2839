"""The writer of the shared tier: what is complete and right here is written, once, and nothing stays held by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cancelling import at_each_await
from support.fake_origin import FakeOrigin
from support.house import LAYOUT, SEGMENT, FakeClock, World, building, data_of, shard_of, until
from support.shared_stores import FakeSharedStore

from forebay_proxy.background import shared_writer
from forebay_proxy.background.shared_writer import SharedWriter
from forebay_proxy.cache.resident.facts import ShardCompleted
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.shard import ByteRange, Pin
from forebay_proxy.shared.shared_tier import SharedTier
from forebay_proxy.transfer.single_flight import Urgency

A = "https://o/set/a.tar"
LENGTH = 2 * SEGMENT + 77


@asynccontextmanager
async def writing_in(
    path: Path, store: FakeSharedStore, origin: FakeOrigin, **how: Any
) -> AsyncIterator[tuple[World, SharedTier, SharedWriter]]:
    async with building(path, origin=origin, **how) as world:
        fetcher = world.parts.fetcher
        tier = fetcher.shared = SharedTier(
            store,
            LAYOUT,
            fetcher.head,
            world.events,
            clock=world.clock,
            sleep=world.clock.sleep,
            chance=random.Random(3),  # type: ignore[arg-type]
        )
        writer = SharedWriter(tier, world.cache)
        world.events.on(ShardCompleted, writer.completed)
        yield world, tier, writer
        await world.quiet()


@pytest.fixture
def store() -> FakeSharedStore:
    return FakeSharedStore(FakeClock())


@pytest.fixture
def far() -> FakeOrigin:
    origin = FakeOrigin()
    origin.put(A, data_of(LENGTH))
    return origin


@asynccontextmanager
async def running(writer: SharedWriter) -> AsyncIterator[None]:
    task = asyncio.ensure_future(writer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_complete_shard_is_written_once(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Its bytes, then its manifest, then the lease is given back; read again it is not written again."""
    async with writing_in(tmp_path / "c", store, far) as (world, tier, writer), running(writer):
        assert await world.get(A) == data_of(LENGTH)
        await until(lambda: tier.counts.written)
        await world.get(A)
        await world.quiet()
        assert [what for what, _ in store.log if what in ("put_shard", "put", "delete")] == ["put_shard", "put", "delete"]
        assert (tier.counts.written, tier.counts.written_bytes, store.of(".lease")) == (1, LENGTH, [])
        assert (world.cache.fd_lender.count, world.cache.fd_lender.bytes) == (0, 0)


async def test_what_another_wrote_is_not_written(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Two fetched it at once, as one had waited long enough: the second finds the manifest of the first."""
    async with writing_in(tmp_path / "a", store, far) as (world, tier, writer), running(writer):
        await world.get(A)
        await until(lambda: tier.counts.written)
    theirs = dict(store.objects)
    store.objects.clear()
    async with writing_in(tmp_path / "b", store, far) as (world, tier, writer):
        assert await world.get(A) == data_of(LENGTH)
        await world.quiet()
        store.objects.update(theirs)
        async with running(writer):
            await until(lambda: tier._known[A].manifest)
        assert (store.kinds("put_shard"), tier.counts.written) == ([".bytes"], 0)


async def test_what_the_origin_contradicts_is_never_written(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Its digest says that the bytes are wrong."""
    far.remotes[A].digests = (Digest("md5", bytes(16)),)
    async with writing_in(tmp_path / "c", store, far) as (world, tier, writer), running(writer):
        with pytest.raises(Exception, match="digest"):
            await world.get(A)
        await world.quiet()
        assert (store.of(".json"), store.of(".bytes"), tier.counts.written) == ([], [], 0)


async def test_a_shard_that_cannot_be_lent_is_let_go(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """It is more than half of the cache: others need not wait for it."""
    async with writing_in(tmp_path / "c", store, far, segments=4) as (world, tier, writer), running(writer):
        assert await world.get(A) == data_of(LENGTH)
        await until(lambda: tier._known[A].asked_at < 0)
        assert store.of(".bytes") == []


async def test_a_shard_is_not_evicted_while_it_is_written(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Others pass through memory meanwhile; afterwards it may leave."""
    store.stuck.add("put_shard")
    async with writing_in(tmp_path / "c", store, far, segments=8) as (world, _, writer):
        async with running(writer):
            assert await world.get(A) == data_of(LENGTH)
            await until(lambda: store.kinds("put_shard"))
            for number in range(4):
                far.put(f"https://o/set/{number}.tar", data_of(LENGTH, number))
                assert await world.get(f"https://o/set/{number}.tar") == data_of(LENGTH, number)
            entry = world.resolver.versions.current[A]
            assert entry.segments.complete
            assert world.ledger.reserved_bytes + world.ledger.stored_bytes <= world.ledger.capacity_bytes
            store.stuck.clear()
        assert world.cache.fd_lender.count == 0


async def test_those_that_wait_longest_are_left_to_others(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that writes more slowly than it fetches keeps no endless list; newer ones are dropped."""
    monkeypatch.setattr(shared_writer, "MOST_WAITING", 2)
    async with writing_in(tmp_path / "c", store, far) as (world, tier, writer):
        names = [f"https://o/set/{number}.tar" for number in range(4)]
        for number, name in enumerate(names):
            far.put(name, data_of(LENGTH, number))
            await world.get(name)
        await world.quiet()
        async with running(writer):
            await until(lambda: tier.counts.written == 2)
        assert sum(tier._known[name].asked_at < 0 for name in names) == 4  # two are written, two are let go


async def test_cancelled_at_each_await_it_holds_nothing(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """No descriptor, no lease of the file, none in the books, and no lease object that nobody would give back."""
    async with writing_in(tmp_path / "c", store, far) as (world, tier, writer):
        assert await world.get(A) == data_of(LENGTH)
        await world.quiet()
        entry = world.resolver.versions.current[A]
        async for cut in at_each_await():
            store.objects.clear()
            tier._known.clear()
            async with tier.asked(shard_of(A), ByteRange(0, SEGMENT - 1), Pin(), Urgency(0.0)) as found:
                assert found is None
            await cut.run(writer._write(entry))
            world.cache.fd_lender.look_again()
            assert (world.cache.fd_lender.count, world.cache.fd_lender.bytes, world.cache.fd_lender.lingering) == (0, 0, 0)
            assert not entry.segments.whole_leases
            await tier.aclose()
            assert store.of(".lease") == []
            assert not store.of(".json") or store.of(".bytes")
