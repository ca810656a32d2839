"""The shared tier between a cache and its far origin: who fetches, who waits and how long, and that no reader sees its troubles."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cancelling import at_each_await
from support.fake_origin import FakeOrigin, reset
from support.house import LAYOUT, SEGMENT, FakeClock, World, building, data_of, shard_of, until
from support.shared_stores import FakeSharedStore
from xxhash import xxh3_64_intdigest

from forebay_proxy.background.shared_writer import SharedWriter
from forebay_proxy.cache.resident.facts import ShardCompleted
from forebay_proxy.core.errors import OriginTimeout, OriginUnavailable
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import SharedFailed
from forebay_proxy.core.shard import ByteRange, Pin, SparseRange
from forebay_proxy.shared import shared_tier
from forebay_proxy.shared.manifest import Manifest, object_name
from forebay_proxy.shared.shared_tier import (
    ACTIVE_S,
    DEMAND_WAIT_S,
    LEASE_S,
    MOST_AWAY_S,
    MOST_DEMAND_WAIT_S,
    QUEUE_S,
    RENEW_S,
    WAIT_S,
    SharedTier,
)  # fmt: skip
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.transfer.single_flight import Urgency

A = "https://o/set/a.tar"
LENGTH = 3 * SEGMENT + 77
FIRST = ByteRange(0, SEGMENT - 1)


@asynccontextmanager
async def node(path: Path, store: FakeSharedStore, origin: FakeOrigin, **how: Any) -> AsyncIterator[tuple[World, SharedTier]]:
    """A whole cache with the tier before its origin, and the writer."""
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
        writing = world.group.create_task(writer.run())
        try:
            yield world, tier
        finally:
            store.stuck.clear()
            writing.cancel()
            await asyncio.wait([writing])
        await world.quiet()


@pytest.fixture
def store() -> FakeSharedStore:
    return FakeSharedStore(FakeClock())


@pytest.fixture
def far() -> FakeOrigin:
    origin = FakeOrigin()
    origin.put(A, data_of(LENGTH))
    return origin


async def written(store: FakeSharedStore) -> None:
    await until(lambda: store.of(".json") and not store.of(".lease"))


async def filled(path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """What the first node of a cluster leaves."""
    async with node(path, store, far) as (world, _):
        assert await world.get(A) == data_of(LENGTH)
        await written(store)
    far.served.clear()
    far.log.clear()


def failures(world: World) -> list[str]:
    return [fact.reason for fact in world.of(SharedFailed)]


async def test_one_fetches_for_all(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """The first reads from afar and writes; the second asks the origin for the version only."""
    await filled(tmp_path / "a", store, far)
    assert sorted(name[name.rfind(".") :] for name in store.objects) == [".bytes", ".json"]
    async with node(tmp_path / "b", store, far) as (world, tier):
        assert await world.get(A) == data_of(LENGTH)
        assert (far.asked(), far.heads()) == ([], 1)
        assert (tier.counts.hits, tier.counts.read_bytes, tier.counts.written, failures(world)) == (1, LENGTH, 0, [])


async def test_two_at_once_fetch_once(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """The second waits for what the first brings."""
    gate = far.remotes[A].hold(SEGMENT)
    async with node(tmp_path / "a", store, far) as (one, _), tier_alone(store, far) as (tier, _):
        tier._sleep = lambda seconds: asyncio.sleep(0.001)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(one.get(A))
            await gate.reached.wait()
            waiting = group.create_task(looked(tier))
            await until(lambda: len(store.kinds("take")) == 2)
            gate.open()
        assert (reading.result(), waiting.result()) == (data_of(LENGTH), True)
        assert (far.sent(A), tier.counts.waited) == (LENGTH, 1)


# What is never put there


async def test_a_shard_with_a_credential_never_touches_it(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    async with node(tmp_path / "a", store, far) as (world, _):
        assert await world.get(shard_of(A, credential="Bearer x")) == data_of(LENGTH)
        await world.quiet()
    assert (store.log, far.heads()) == ([], 0)


@pytest.mark.parametrize("range_", [ByteRange(0, 0), ByteRange(5, SEGMENT - 1), SparseRange(0, SEGMENT - 1), ByteRange(0, None), None])
async def test_a_part_of_a_segment_never_does(store: FakeSharedStore, range_: ByteRange | None) -> None:
    async with tier_alone(store) as (tier, heads), tier.asked(shard_of(A), range_, Pin(), Urgency(0.0)) as found:
        assert (found, store.log, heads) == (None, [], [])


@pytest.mark.parametrize("poor", [{"identity": False}, {"encoding": "gzip"}, {"etag": 'W/"v1"'}])
async def test_what_has_no_safe_name_is_fetched_without_it(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, poor: Any) -> None:
    """Nobody waits for it, nobody writes it."""
    remote = far.put(A, data_of(LENGTH), **poor)
    if "etag" in poor:
        version = remote.version
        far.head_version = replace(version, identity=f"weak:{remote.etag}")
    async with node(tmp_path / "a", store, far) as (world, _):
        assert await world.get(A) == data_of(LENGTH)
        await world.quiet()
    assert store.log == []


# The lease


@asynccontextmanager
async def tier_alone(store: FakeSharedStore, far: FakeOrigin | None = None) -> AsyncIterator[tuple[SharedTier, list[str]]]:
    """A tier, and the shards whose origin it asked."""
    heads: list[str] = []
    origin = far or FakeOrigin()
    if far is None:
        origin.put(A, data_of(LENGTH))

    async def head(shard: Any, need: Any, within_s: float) -> Any:
        heads.append(shard.name)
        return await origin.head(shard)

    clock = FakeClock()

    async def sleep(seconds: float) -> None:
        store.clock.advance(seconds)  # type: ignore[attr-defined]  # both go as fast, and know nothing of one another
        await clock.sleep(seconds)

    yield SharedTier(store, LAYOUT, head, Events(), clock=clock, sleep=sleep, chance=random.Random(3)), heads  # type: ignore[arg-type]


async def looked(tier: SharedTier, need: float = 0.0, pin: Pin | None = None, *, in_part: bool = False) -> bool:
    """An opening; whether the tier had it."""
    async with tier.asked(shard_of(A), FIRST, pin or Pin(), Urgency(need, in_part=in_part)) as found:
        return found is not None


async def lease_of(store: FakeSharedStore) -> str:
    """The name that the lease has."""
    async with tier_alone(store) as (tier, _):
        await looked(tier)
        (name,) = store.of(".lease")
        await tier.aclose()
    store.log.clear()
    return name


@pytest.mark.parametrize(("need", "waits_s"), [(0.0, MOST_DEMAND_WAIT_S), (AHEAD, WAIT_S)])
async def test_a_lease_of_another_is_waited_for_so_long(store: FakeSharedStore, need: float, waits_s: float) -> None:
    """Its holders keep it, and never end. A reader waits 30 s, a prefetch 60 s; then the origin is asked, and the leases are left."""
    name = await lease_of(store)
    async with tier_alone(store) as (tier, _):
        began, sleep = tier._clock(), tier._sleep

        async def kept(seconds: float) -> None:
            store.store(name, b"another")
            store.store(f"{name}2", b"a third")
            await sleep(seconds)

        tier._sleep = kept
        store.store(name, b"another")
        store.store(f"{name}2", b"a third")
        assert not await looked(tier, need)
        assert waits_s < tier._clock() - began < waits_s + 2
        assert (tier.counts.given_up, store.objects[name][0], store.objects[f"{name}2"][0]) == (1, b"another", b"a third")
        # Its next segments wait no more, nor do they ask the origin again.
        tier._clock.advance(LEASE_S + 1)  # type: ignore[attr-defined]
        before, pin = tier._clock(), tier._known[A].version.pin
        assert not await looked(tier, pin=pin)
        assert tier._clock() == before


async def test_a_part_of_a_shard_takes_no_lease_and_awaits_none(store: FakeSharedStore) -> None:
    """Who reads all of the shard afterwards does."""
    async with tier_alone(store) as (tier, heads):
        assert not await looked(tier, in_part=True)
        assert store.of(".lease") == []
        pin = tier._known[A].version.pin
        assert not await looked(tier, pin=pin, in_part=True)
        assert len(heads) == 1
        assert not await looked(tier, pin=pin)
        (name,) = store.of(".lease")
        assert (tier.counts.fetched, len(heads)) == (1, 2)
    async with tier_alone(store) as (other, _):
        began = other._clock()
        store.store(name, b"another")
        assert not await looked(other, in_part=True)
        assert other._clock() == began


@pytest.mark.parametrize(
    ("first", "last", "leases"), [(0, 9, 0), (SEGMENT, 2 * SEGMENT, 0), (9, None, 1), (0, None, 1), (9, LENGTH - 1, 1)]
)
async def test_who_reads_to_the_end(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, first: int, last: int | None, leases: int
) -> None:
    """Takes the lease; a Range that ends before takes none, for its further segments neither."""
    async with node(tmp_path, store, far) as (world, _):
        stop = LENGTH if last is None else last + 1
        assert await world.get(A, first=first, last=last) == data_of(LENGTH)[first:stop]
        assert len(store.kinds("take")) == leases


async def test_one_more_fetches_what_is_waited_for_too_long(store: FakeSharedStore) -> None:
    """The holder of a lease is alive and slow. After 10 s one of those with a reader fetches the shard too; the others wait on."""
    name = await lease_of(store)
    async with tier_alone(store) as (tier, _), tier_alone(store) as (later, _):
        sleeps = {each: each._sleep for each in (tier, later)}

        def kept(each: SharedTier) -> Callable[[float], Awaitable[None]]:
            async def sleep(seconds: float) -> None:
                store.store(name, b"another")
                if f"{name}2" in store.objects:
                    store.store(f"{name}2", b"the second")
                await sleeps[each](seconds)

            return sleep

        for each in (tier, later):
            each._sleep = kept(each)
        store.store(name, b"another")
        began = tier._clock()
        assert not await looked(tier)
        assert DEMAND_WAIT_S < tier._clock() - began < DEMAND_WAIT_S + 2
        assert (tier.counts.fetched, tier.counts.given_up) == (1, 0)
        assert not await looked(later)
        assert (later.counts.fetched, later.counts.given_up) == (0, 1)
        await tier.aclose()
        assert store.of(".lease") == [name]
        assert not store.of(".lease2")


async def test_a_late_answer_while_others_come_is_no_trouble(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is busy, not away: what is late comes from afar, fewer requests are made at once, and the store is asked on."""
    monkeypatch.setattr(shared_tier, "ANSWER_S", 0.2)
    await filled(tmp_path / "a", store, far)
    async with tier_alone(store, far) as (tier, _):
        assert await looked(tier)
        does, late, slots = store._does, list[str](), tier._limiter.slots

        async def busy(what: str, name: str) -> None:
            if what == "read" and not late:
                late.append(name)
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
            await does(what, name)

        monkeypatch.setattr(store, "_does", busy)
        pin = tier._known[A].version.pin
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(looked(tier, pin=pin))
            await until(lambda: late)
            while not lost.done():
                assert await looked(tier, pin=pin)
        assert not lost.result()
        assert (tier.counts.failures, tier.status()["troubles"]) == (1, [])
        assert tier._limiter.slots < slots


async def test_the_second_late_answer_in_a_row_is_trouble(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may be this node's own lateness; an answer between them begins the count again."""
    monkeypatch.setattr(shared_tier, "ANSWER_S", 0.1)
    await filled(tmp_path / "a", store, far)
    async with tier_alone(store, far) as (tier, _):
        assert await looked(tier)
        does, is_late = store._does, [True, False, True, True]

        async def late(what: str, name: str) -> None:
            if what == "read" and is_late.pop(0):
                await asyncio.Event().wait()
            await does(what, name)

        monkeypatch.setattr(store, "_does", late)
        pin = tier._known[A].version.pin
        said = []
        while is_late:
            await asyncio.sleep(0.11)  # longer ago than an answer takes, or the store counts as busy
            said.append((await looked(tier, pin=pin), bool(tier.status()["troubles"])))
        assert said == [(False, False), (True, False), (False, False), (False, True)]


async def test_what_was_opened_in_trouble_is_looked_for_again(store: FakeSharedStore, far: FakeOrigin) -> None:
    """The store was away when a shard was opened here. Its later segments come from the store, once that is back and has it."""
    async with tier_alone(store, far) as (tier, _):
        store.refused = {"take": "unavailable"}
        assert not await looked(tier)
        store.refused = {}
        pin = tier._known[A].version.pin
        version, name = tier._known[A].version, tier._known[A].name
        etag = store.store(f"{name}.bytes", data_of(LENGTH))
        sums = tuple(xxh3_64_intdigest(data_of(LENGTH)[at : at + SEGMENT]) for at in range(0, LENGTH, SEGMENT))
        store.store(f"{name}.json", Manifest(A, version.identity, LENGTH, SEGMENT, sums, etag).encoded())
        assert not await looked(tier, pin=pin)
        tier._clock.advance(LEASE_S + 1)  # type: ignore[attr-defined]
        assert await looked(tier, pin=pin)


async def test_an_urgent_reader_ends_a_long_wait(store: FakeSharedStore) -> None:
    """An opening ahead of need waits; a reader that joins it after 20 s waits a moment only."""
    name = await lease_of(store)
    async with tier_alone(store) as (tier, _):
        urgency, began, sleep = Urgency(AHEAD), tier._clock(), tier._sleep

        async def kept(seconds: float) -> None:
            store.store(name, b"another")
            await sleep(seconds)
            if tier._clock() - began > 20:
                urgency.need = 0.0

        tier._sleep = kept
        store.store(name, b"another")
        async with tier.asked(shard_of(A), FIRST, Pin(), urgency) as found:
            assert found is None
        assert 20 < tier._clock() - began < 22


async def test_an_urgent_fetch_behind_the_same_question_ends_it(store: FakeSharedStore) -> None:
    """A fetch of the same shard that waits for an opening's question lends it its urgency."""
    name = await lease_of(store)
    async with tier_alone(store) as (tier, heads):
        began, sleep, joined = tier._clock(), tier._sleep, asyncio.Event()

        async def kept(seconds: float) -> None:
            store.store(name, b"another")
            await sleep(seconds)
            if tier._clock() - began > 20:
                joined.set()

        tier._sleep = kept
        store.store(name, b"another")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(looked(tier, AHEAD))
            await joined.wait()
            pin = tier._known[A].version.pin
            second = group.create_task(looked(tier, 0.0, pin))
        assert (first.result(), second.result(), len(heads)) == (False, False, 1)
        assert tier._clock() - began < 23


async def test_an_old_lease_is_taken_by_one(store: FakeSharedStore) -> None:
    """Its sidecar died. Of four that wait one takes it; the others go on waiting."""
    name = await lease_of(store)
    store.store(name, b"dead")
    async with AsyncExitStack() as stack:
        tiers = [(await stack.enter_async_context(tier_alone(store)))[0] for _ in range(4)]

        async def kept(seconds: float) -> None:
            store.clock.advance(seconds / 4)  # type: ignore[attr-defined]
            await tiers[0]._clock.sleep(seconds)  # type: ignore[attr-defined]
            if store.objects[name][0] != b"dead":
                store.objects[name] = (*store.objects[name][:2], store.clock())

        for tier in tiers:
            tier._clock, tier._sleep = tiers[0]._clock, kept
        async with asyncio.TaskGroup() as group:
            for tier in tiers:
                group.create_task(looked(tier, AHEAD))
        assert sum(tier.counts.fetched for tier in tiers) == 1
        assert store.objects[name][0] != b"dead"


async def test_a_wrong_clock_here_changes_nothing(store: FakeSharedStore) -> None:
    """A lease's age is told by the store's clock: ours may be ten minutes off, either way."""
    name = await lease_of(store)
    for off_s in (-600.0, 600.0):
        store.store(name, b"another", age_s=LEASE_S - 6)
        async with tier_alone(store) as (tier, _):
            tier._clock.advance(off_s)  # type: ignore[attr-defined]
            assert not await looked(tier)
            assert tier.counts.given_up == 1 or store.objects[name][0] != b"another"
        store.store(name, b"dead", age_s=LEASE_S + 1)
        async with tier_alone(store) as (tier, _):
            tier._clock.advance(off_s)  # type: ignore[attr-defined]
            began = tier._clock()
            assert not await looked(tier)
            assert (tier.counts.fetched, tier._clock() - began < 4) == (1, True)
            await tier.aclose()


async def test_a_lease_that_is_given_back_is_taken_at_once(store: FakeSharedStore) -> None:
    name = await lease_of(store)
    store.store(name, b"another")
    async with tier_alone(store) as (tier, _):
        began, sleep = tier._clock(), tier._sleep

        async def gone(seconds: float) -> None:
            await sleep(seconds)
            if not tier._mine:
                store.objects.pop(name, None)

        tier._sleep = gone
        await looked(tier)
        assert (tier.counts.fetched, tier._clock() - began < 4) == (1, True)


async def test_a_lease_is_kept_while_its_shard_is_asked_for(store: FakeSharedStore) -> None:
    """Then it is given back: nobody waits for who has stopped."""
    async with tier_alone(store) as (tier, _):
        await looked(tier)
        (name,) = store.of(".lease")
        ages, sleep = [], tier._sleep

        async def slept(seconds: float) -> None:
            await sleep(seconds)
            if name in store.objects:
                ages.append(store.clock() - store.objects[name][2])
            await asyncio.sleep(0)

        tier._sleep = slept
        running = asyncio.ensure_future(tier.run())
        await until(lambda: name not in store.objects)
        running.cancel()
        assert max(ages) <= RENEW_S
        assert ACTIVE_S <= sum(ages) < ACTIVE_S + 3 * RENEW_S


async def test_a_lease_is_kept_while_a_segment_comes_from_afar(store: FakeSharedStore) -> None:
    """However slowly, and while the shard waits to be written; who fetched a part of it only gives the lease back after that."""
    async with tier_alone(store) as (tier, _):
        held = asyncio.Event()
        coming, far_reading = asyncio.Event(), asyncio.Event()

        async def read() -> None:
            async with tier.asked(shard_of(A), FIRST, Pin(), Urgency(0.0)) as found:
                assert found is None
                far_reading.set()
                await coming.wait()
            held.set()

        reading = asyncio.ensure_future(read())
        await far_reading.wait()
        running = asyncio.ensure_future(tier.run())
        began = tier._clock()
        await until(lambda: tier._clock() > began + 4 * ACTIVE_S)
        assert store.of(".lease")
        coming.set()
        await held.wait()
        await reading
        tier.queued(A)
        began = tier._clock()
        await until(lambda: tier._clock() > began + 4 * ACTIVE_S)
        assert store.of(".lease")
        await until(lambda: not store.of(".lease"))
        assert tier._clock() - began >= QUEUE_S
        running.cancel()


async def test_whoever_ends_gives_its_leases_back(store: FakeSharedStore) -> None:
    async with tier_alone(store) as (tier, _):
        await looked(tier)
        assert store.of(".lease")
        await tier.aclose()
        assert (store.of(".lease"), store.closed) == ([], True)


async def test_a_shard_that_is_not_kept_whole_is_let_go(store: FakeSharedStore) -> None:
    """At the next look of those that keep leases, not after a minute."""
    async with tier_alone(store) as (tier, _):
        await looked(tier)
        tier.let_go(A)
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await asyncio.sleep(0 if len(slept) < 2 else 60)

        tier._sleep = sleep
        running = asyncio.ensure_future(tier.run())
        await until(lambda: not store.of(".lease"))
        running.cancel()
        assert slept == [RENEW_S, RENEW_S] or slept == [RENEW_S]


# Origins whose HEAD is of no use


async def test_a_version_that_changes_between_head_and_get(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """The reader has the GET's, and the lease of the other is let go. Never are both in one shard."""
    far.head_version = replace(far.remotes[A].version, identity='etag:"v0"')
    async with node(tmp_path / "a", store, far) as (world, tier):
        assert await world.get(A) == data_of(LENGTH)
        await world.quiet()
        far.put("https://o/set/b.tar", data_of(LENGTH, 2))
        assert await world.get("https://o/set/b.tar") == data_of(LENGTH, 2)
        assert far.heads() == 1  # that origin is not asked by HEAD for a while
        running = world.group.create_task(tier.run())
        await until(lambda: not store.of(".lease"))
        running.cancel()
        assert store.objects == {}


@pytest.mark.parametrize(("error", "again"), [(OriginTimeout, False), (OriginUnavailable, True)])
async def test_a_head_that_fails(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, error: Any, again: bool) -> None:
    """GET says what is. An origin that answers no HEAD is not asked again at the next shard; one that is busy is."""
    far.head_error = lambda name: error(name, "no")
    far.put("https://o/set/b.tar", data_of(LENGTH))
    async with node(tmp_path / "a", store, far) as (world, _):
        for name in (A, "https://o/set/b.tar"):
            assert await world.get(name) == data_of(LENGTH)
        await world.quiet()
    assert (store.log, far.heads()) == ([], 1 + again)


async def test_other_fields_of_the_head(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Another length under the same ETag: nothing is written under the wrong name, and readers have every byte."""
    far.head_version = replace(far.remotes[A].version, length=LENGTH - 1)
    async with node(tmp_path / "a", store, far) as (world, tier):
        assert await world.get(A) == data_of(LENGTH)
        await world.quiet()
        assert not tier.to_write(A, world.resolver.versions.current[A].version)
        assert (store.of(".json"), store.of(".bytes")) == ([], [])


# Wrong, foreign, gone


async def test_wrong_bytes_reach_nobody(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, caplog: Any) -> None:
    """Counted, said once; the segment comes from afar, and the shard is written again."""
    await filled(tmp_path / "a", store, far)
    (name,) = store.of(".bytes")
    data, etag, at = store.objects[name]
    store.objects[name] = data[:SEGMENT] + bytes([data[SEGMENT] ^ 1]) + data[SEGMENT + 1 :], etag, at
    with caplog.at_level(logging.WARNING):
        async with node(tmp_path / "b", store, far) as (world, _):
            assert await world.get(A) == data_of(LENGTH)
            await until(lambda: store.objects[name][0] == data_of(LENGTH))
            assert set(failures(world)) == {"wrong"}
    assert sum("not what its manifest says" in record.message for record in caplog.records) == 1
    async with node(tmp_path / "c", store, far) as (world, _):
        far.log.clear()
        assert await world.get(A) == data_of(LENGTH)
        assert far.asked() == []


@pytest.mark.parametrize("instead", [None, b"somebody else's"])
async def test_bytes_that_left_are_written_again(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, instead: bytes | None) -> None:
    """A lifecycle rule took them before their manifest, or somebody put another object there: that is no trouble."""
    await filled(tmp_path / "a", store, far)
    (name,) = store.of(".bytes")
    del store.objects[name]
    if instead is not None:
        store.store(name, instead)
    async with node(tmp_path / "b", store, far) as (world, tier):
        assert await world.get(A) == data_of(LENGTH)
        await until(lambda: tier.counts.written == 1)
        assert store.objects[name][0] == data_of(LENGTH)
        assert failures(world) == []


async def test_foreign_objects_under_our_names(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """Where a manifest should be: counted, and written over once the shard is here. Others are never touched."""
    await filled(tmp_path / "a", store, far)
    store.store("holiday.jpg", b"beach")
    (name,) = store.of(".json")
    store.store(name, b"{}")
    async with node(tmp_path / "b", store, far) as (world, tier):
        assert await world.get(A) == data_of(LENGTH)
        await until(lambda: tier.counts.written == 1)
        assert set(failures(world)) == {"foreign"}
    assert store.objects["holiday.jpg"][0] == b"beach"


# Trouble


async def test_a_store_that_is_gone(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, caplog: Any) -> None:
    """Said once, and for a while nobody asks it."""
    store.down = True
    with caplog.at_level(logging.WARNING):
        async with node(tmp_path / "a", store, far) as (world, tier):
            for number in range(5):
                name = f"https://o/set/{number}.tar"
                far.put(name, data_of(LENGTH, number))
                assert await world.get(name) == data_of(LENGTH, number)
            await world.quiet()
            assert tier.status()["troubles"]
    assert len(store.log) == 1
    assert sum("shared tier" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("what", ["get", "take", "read", "piece"])
async def test_a_store_that_is_stuck(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a reader an answer's time, once."""
    if what in ("read", "piece"):
        await filled(tmp_path / "a", store, far)
    for name in ("ANSWER_S", "FIRST_S"):
        monkeypatch.setattr(shared_tier, name, 0.05)
    store.stuck.add(what)
    async with node(tmp_path / "b", store, far) as (world, _):
        assert await world.get(A) == data_of(LENGTH)
        assert set(failures(world)) == {"timeout"}
        assert len(store.kinds(what)) <= 4  # of each segment that was asked for at once


async def test_trouble_doubles_the_pause_to_a_minute(store: FakeSharedStore) -> None:
    """Of each try one; what fails at the same time is the same trouble."""
    store.down = True
    async with tier_alone(store) as (tier, _):
        pauses = []
        for _ in range(6):
            asked = len(store.log)
            await asyncio.gather(*(looked(tier) for _ in range(3)))
            assert 1 <= len(store.log) - asked <= 3
            pauses.append(tier._reading.until - tier._clock())
            tier._clock.advance(pauses[-1] - 0.1)  # type: ignore[attr-defined]
            before = len(store.log)
            assert not await looked(tier)
            assert len(store.log) == before
            tier._clock.advance(0.2)  # type: ignore[attr-defined]
        assert pauses == [5, 10, 20, 40, MOST_AWAY_S, MOST_AWAY_S]
        store.down = False
        await looked(tier)
        assert tier.status()["troubles"] == []


@pytest.mark.parametrize(
    ("refused", "full", "reason"), [({"take": "refused"}, (), "refused"), ({}, (".bytes",), "full"), ({}, (".lease", ".bytes"), "full")]
)
async def test_a_store_that_takes_nothing_is_read_all_the_same(
    tmp_path: Path, store: FakeSharedStore, far: FakeOrigin, caplog: Any, refused: Any, full: Any, reason: str
) -> None:
    """No rights (403), or no room (507): said once with what to do; what is there is read, the rest comes from afar, nobody waits."""
    await filled(tmp_path / "a", store, far)
    store.refused, store.full = refused, full
    with caplog.at_level(logging.WARNING):
        async with node(tmp_path / "b", store, far) as (world, tier):
            for number in range(4):
                name = f"https://o/set/{number}.tar"
                far.put(name, data_of(LENGTH, number))
                assert await world.get(name) == data_of(LENGTH, number)
            await until(lambda: failures(world))
            await world.quiet()
            assert far.asked(A) == []
            assert await world.get(A) == data_of(LENGTH)
            assert (far.asked(A), tier.counts.hits) == ([], 1)
            assert set(failures(world)) == {reason}
            await tier.aclose()
            assert not store.of(".lease")
    (said,) = [record.message for record in caplog.records if "shared tier" in record.message]
    assert {"refused": "credentials", "full": "lifecycle"}[reason] in said


async def test_an_origin_in_trouble_is_asked_as_before(tmp_path: Path, store: FakeSharedStore, far: FakeOrigin) -> None:
    """A body that breaks is gone on with, and the whole is written."""
    far.remotes[A].fail(reset, after=1000)
    async with node(tmp_path / "a", store, far) as (world, _):
        assert await world.get(A) == data_of(LENGTH)
        await written(store)


# Cancellation


@pytest.mark.parametrize("state", ["empty", "held", "full"])
async def test_cancelled_at_each_await_it_holds_nothing(store: FakeSharedStore, state: str) -> None:
    """No slot; no lease object that its holder does not know of."""
    name = await lease_of(store)
    body = data_of(LENGTH)
    async for cut in at_each_await():
        store.objects.clear()
        if state == "held":
            store.store(name, b"dead", age_s=LEASE_S + 1)
        async with tier_alone(store) as (tier, _):
            if state == "full":
                await stocked(store, tier, body)
            await cut.run(looked(tier))
            assert (tier._limiter.in_flight, [finding.needs for finding in tier._finding.values() if finding.needs]) == (0, [])
            held = store.objects.get(name, (b"dead", "", 0.0))[0] != b"dead"
            assert held == (name.removesuffix(".lease") in tier._mine)
            await tier.aclose()
            assert (store.of(".lease") == []) or not held


async def stocked(store: FakeSharedStore, tier: SharedTier, body: bytes) -> None:
    """The tier has the shard."""
    version = await tier._head(shard_of(A), Urgency(0.0), 1.0)
    name = object_name(A, version, SEGMENT)
    sums = tuple(xxh3_64_intdigest(body[at : at + SEGMENT]) for at in range(0, LENGTH, SEGMENT))
    etag = store.store(name + ".bytes", body)
    store.store(name + ".json", Manifest(A, version.identity, LENGTH, SEGMENT, sums, etag).encoded())
