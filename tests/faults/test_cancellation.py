"""Cancelled at each await that holds something: nothing is kept, nobody else is hurt, and every byte stays right.

``Cut`` stops one task of a scenario at its first await, in a fresh world at its second, and so on to its last; then the world must be able
to say that nobody holds anything (``World.check``: leases, reservations, doomed bytes, slots, buffers, connections, files, descriptors).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from support.cancelling import Cut, When, at_each_await
from support.fake_origin import FakeOrigin, reset
from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.shard import ByteRange, SparseRange

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
DATA = {A: data_of(3 * SEGMENT + 77), B: data_of(4 * SEGMENT, 1)}

Scenario = Callable[[World, Cut], Awaitable[None]]


async def cold(world: World, cut: Cut) -> None:
    """The opening, its flight and those behind it; another reader shares them all and gets every byte."""
    other = asyncio.create_task(world.get(A, reader(1)))
    got = await asyncio.gather(cut.run(world.get(A, reader(0))), other, return_exceptions=True)
    if isinstance(got[1], ForebayError):
        raise got[1]  # a shutdown
    assert got in ([None, DATA[A]], [DATA[A], DATA[A]])


async def alone(world: World, cut: Cut) -> None:
    """Nobody else waits for anything."""
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])


async def warm(world: World, cut: Cut) -> None:
    """Stored bytes of an earlier job: the origin is asked whether they still hold."""
    await world.get(A, reader(0, "before"))
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])


async def proved(world: World, cut: Cut) -> None:
    """Another credential: the origin is asked whether it may read."""
    one, two = shard_of(A, credential="one"), shard_of(A, credential="two")
    world.origin.remotes[A].allowed = {one.credential, two.credential}
    await world.get(one)
    assert await cut.run(world.get(two)) in (None, DATA[A])
    world.origin.remotes[A].allowed = None


async def making_room(world: World, cut: Cut) -> None:
    """Everything is full: others leave first."""
    await world.get(B)
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])


async def without_room(world: World, cut: Cut) -> None:
    """Everything is leased: the bytes pass through memory."""
    async with world.opened(B, reader(1)) as held:
        await world.taken(held, 10)
        assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])


async def whole_body(world: World, cut: Cut) -> None:
    world.origin.put(A, DATA[A], ranged=False)
    other = asyncio.create_task(world.get(A, reader(1), first=SEGMENT + 3))
    got = await asyncio.gather(cut.run(world.get(A, reader(0))), other, return_exceptions=True)
    if isinstance(got[1], ForebayError):
        raise got[1]  # a shutdown
    assert got in ([None, DATA[A][SEGMENT + 3 :]], [DATA[A], DATA[A][SEGMENT + 3 :]]), got


async def whole_refused(world: World, cut: Cut) -> None:
    async with world.opened(B, reader(1)) as held:
        await world.taken(held, 10)
        await whole_body(world, cut)


async def whole_broken(world: World, cut: Cut) -> None:
    remote = world.origin.put(A, DATA[A], ranged=False)
    remote.fail(reset, after=20_000)
    remote.fail(reset, after=SEGMENT + 20_000)
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])
    remote.failures.clear()


async def nameless(world: World, cut: Cut) -> None:
    world.origin.put(A, DATA[A], identity=False)
    other = asyncio.create_task(world.get(A, reader(1)))
    got = await asyncio.gather(cut.run(world.get(A, reader(0))), other, return_exceptions=True)
    if isinstance(got[1], ForebayError):
        raise got[1]  # a shutdown
    assert got in ([None, DATA[A]], [DATA[A], DATA[A]]), got


async def broken(world: World, cut: Cut) -> None:
    """Bodies that break and answers that do not come: pauses between the questions."""
    remote = world.origin.remotes[A]
    remote.fail(reset)
    remote.fail(reset, after=20_000)
    remote.cut(10_000)
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])
    remote.failures.clear()


async def a_part(world: World, cut: Cut) -> None:
    """A range in the middle, first by HEAD."""

    async def work() -> bytes:
        async with world.cache.open(shard_of(A), reader(0), None, head=True):
            pass
        async with world.cache.open(shard_of(A), reader(0), ByteRange(SEGMENT + 5, 2 * SEGMENT + 9)) as reading:
            await reading.begin(SEGMENT + 5, 2 * SEGMENT + 9)
            return b"".join([bytes(chunk) async for chunk in reading.chunks()])

    assert await cut.run(work()) in (None, DATA[A][SEGMENT + 5 : 2 * SEGMENT + 10])


async def relayed(world: World, cut: Cut) -> None:
    """Two parts that pass through memory: the first opens the shard, the second comes when it is open."""

    async def work() -> bytes:
        found = []
        for first in (5, SEGMENT + 9):
            async with world.cache.open(shard_of(A), reader(0), SparseRange(first, first + 99)) as reading:
                await reading.begin(first, first + 99)
                found += [bytes(chunk) async for chunk in reading.chunks()]
        return b"".join(found)

    assert await cut.run(work()) in (None, DATA[A][5:105] + DATA[A][SEGMENT + 9 : SEGMENT + 109])
    await world.quiet()


async def another_version(world: World, cut: Cut) -> None:
    """The shard was replaced: the old version leaves while the new one comes."""
    await world.get(A, reader(0, "before"))
    world.origin.put(A, DATA[A], etag='"v2"')
    assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])


async def warming(world: World, cut: Cut) -> None:
    """A person's wish, let go of on the way."""

    async def work() -> None:
        events = world.operations.warm([shard_of(A), shard_of(B)])
        try:
            async for _ in events:
                pass
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    await cut.run(work())


async def evicting(world: World, cut: Cut) -> None:
    """Everything must leave, beside a reader."""
    await world.get(B)
    async with world.opened(A, reader(0)) as held:
        got = await world.taken(held, 10)
        await cut.run(world.operations.evict(None))
        got += b"".join([bytes(chunk) async for chunk in held.chunks()])
    assert got == DATA[A]


SCENARIOS: dict[Scenario, int] = {  # and the segments there is room for
    cold: 64, alone: 64, warm: 64, proved: 64, making_room: 5, without_room: 1, whole_body: 64, whole_refused: 5, whole_broken: 64,
    nameless: 64, broken: 64, a_part: 64, relayed: 64, another_version: 64, warming: 64, evicting: 64,
}  # fmt: skip


def origin() -> FakeOrigin:
    made = FakeOrigin()
    for name, data in DATA.items():
        made.put(name, data)
    return made


async def whole(world: World) -> None:
    """Whoever comes later gets every byte."""
    for name, data in DATA.items():
        assert await world.get(name, reader(7, "later")) == data


@pytest.mark.parametrize("when", When, ids=lambda when: when.value)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_reader_that_is_cancelled_keeps_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scenario: Scenario, when: When
) -> None:
    """At any of its awaits, whichever of the two moments of it."""
    awaits = 0
    async for cut in at_each_await(when):
        async with building(tmp_path / str(cut.number), segments=SCENARIOS[scenario], origin=origin()) as world:
            await scenario(world, cut)
            await world.quiet()
            world.check()
            await whole(world)
        awaits = cut.number - 1
    assert "unexpectedly" not in caplog.text, "a fault of ours in a chore, which no caller hears"
    assert awaits
    print(f"{scenario.__name__}: cancelled at each of {awaits} awaits ({when.value})")


@pytest.mark.parametrize("when", When, ids=lambda when: when.value)
async def test_cancelled_while_stored_bytes_are_verified(tmp_path: Path, when: When) -> None:
    """After another boot: whoever comes next has them verified, and reads them."""
    async for cut in at_each_await(when):
        path = tmp_path / str(cut.number)
        async with building(path, origin=origin()) as world:
            await world.get(A)
        async with building(path, origin=origin(), boot="another") as world:
            assert await cut.run(world.get(A, reader(0))) in (None, DATA[A])
            await world.quiet()
            world.check()
            await whole(world)
    assert cut.number > 3


@pytest.mark.parametrize("scenario", [cold, making_room, without_room, whole_body, broken, warming], ids=lambda scenario: scenario.__name__)
async def test_ended_at_any_await_what_is_claimed_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture, scenario: Scenario) -> None:
    """The whole sidecar ends there, as a signal would have it: the next start finds files and rows that agree, and no wrong byte."""
    claimed = 0
    async for cut in at_each_await(step=EVERY):
        path, room = tmp_path / str(cut.number), SCENARIOS[scenario]
        async with building(path, segments=room, origin=origin(), checked=False) as world:
            with cut.everywhere(lambda world=world: end(world)), suppress(ForebayError):  # its readers hear that the sidecar ends
                await scenario(world, Cut(0))
            await world.tasks.idle()
        async with building(path, segments=room, origin=origin()) as world:
            claimed += sum(entry.segments.stored_count for entry in world.room.entries.values())
            sums(world)
            await whole(world)
    assert "unexpectedly" not in caplog.text
    assert claimed
    print(f"{scenario.__name__}: ended at each of {cut.number - 1} awaits, {claimed} segments found claimed in all")


EVERY = 5  # of all tasks together there are some hundred awaits, and neighbours differ little


def end(world: World) -> None:
    world.resolver.cancel()
    world.fetches.cancel()


def sums(world: World) -> None:
    """Every segment that is claimed holds its bytes of the file."""
    for entry in world.room.entries.values():
        found = (world.path / "shards" / entry.key).read_bytes()
        for index in entry.segments.stored():
            part = slice(index * SEGMENT, (index + 1) * SEGMENT)
            assert found[part] == DATA[entry.name][part], (entry, index)


async def test_waiting_for_a_segment_that_another_asked_for(tmp_path: Path) -> None:
    """Both readers stand before one closed gate; whoever is cancelled there, the other reads on."""
    for number in itertools.count(1):
        cut = Cut(number)
        async with building(tmp_path / str(number), origin=origin()) as world:
            gate = world.origin.remotes[A].hold(SEGMENT + 100)
            other = asyncio.create_task(world.get(A, reader(1)))
            mine = asyncio.create_task(cut.run(world.get(A, reader(0))))
            await gate.reached.wait()
            gate.open()
            assert await mine in (None, DATA[A])
            assert await other == DATA[A]
        if not cut.made:
            break
    assert number > 3
