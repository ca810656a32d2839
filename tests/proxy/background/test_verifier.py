"""Everything stored is compared with its checksum when a person asks, and a little of it all the time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, World, building, data_of, reader

from forebay_proxy.background import verifier
from forebay_proxy.background.verifier import IdleVerifier, Verifier
from forebay_proxy.cache.integrity.segment_reader import Finding
from forebay_proxy.core.errors import WrongBytes
from forebay_proxy.core.facts.cache import SegmentVerified

A, B = "https://o/set/a.tar", "https://o/set/b.tar"


async def filled(world: World) -> dict[str, bytes]:
    data = {A: data_of(3 * SEGMENT - 9), B: data_of(2 * SEGMENT, 1)}
    for name, content in data.items():
        world.origin.put(name, content)
        await world.get(name)
    await world.quiet()
    return data


def damage(world: World, name: str, offset: int) -> None:
    with world.shard_file(name).open("r+b") as file:
        file.seek(offset)
        file.write(b"\x00\x01\x02")


async def verify(world: World, patterns: list[str] | None = None) -> list[dict[str, Any]]:
    return [event async for event in world.operations.verify(patterns)]


async def test_all_is_right(tmp_path: Path) -> None:
    """The end says how much was looked at."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        assert (await verify(world))[-1] == {
            "event": "end", "shards": 2, "segments": 5, "bytes": 5 * SEGMENT - 9, "wrong": 0, "wrong_shards": 0, "unread": 0,
        }  # fmt: skip
        assert {fact.why for fact in world.of(SegmentVerified)} == {"verify"}


async def test_what_is_wrong_is_told_and_leaves(tmp_path: Path) -> None:
    """By shard, segment and offset; then it comes again."""
    async with building(tmp_path / "c") as world:
        data = await filled(world)
        damage(world, A, SEGMENT + 5)
        damage(world, A, 2 * SEGMENT + 5)
        damage(world, B, 5)
        wrong = [event for event in await verify(world) if event["event"] == "wrong"]
        assert sorted((event["shard"], event["segment"], event["offset"], event["length"]) for event in wrong) == [
            (A, 1, SEGMENT, SEGMENT), (A, 2, 2 * SEGMENT, SEGMENT - 9), (B, 0, 0, SEGMENT),
        ]  # fmt: skip
        assert {name: await world.get(name) for name in data} == data
        assert (await verify(world))[-1]["wrong"] == 0


async def test_only_what_was_named(tmp_path: Path) -> None:
    """Patterns as evict takes them."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        damage(world, A, 5)
        assert (await verify(world, ["*/b.tar"]))[-1]["segments"] == 2
        assert (await verify(world, [A]))[-1]["wrong"] == 1


async def test_what_is_being_read_is_looked_at_too(tmp_path: Path) -> None:
    """Wrong bytes under a reader leave at once, and it is cut off."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        async with world.opened(A, reader()) as reading:
            world.buffers.readers.holders = 10_000
            await world.taken(reading, 100)
            damage(world, A, 5)
            assert (await verify(world))[-1]["wrong"] == 1
            with pytest.raises(WrongBytes):
                async for _ in reading.chunks():
                    pass
            world.buffers.readers.holders = 1


async def test_it_reads_no_faster_than_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment begins when the ones before it are paid for."""
    now, slept = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    async with building(tmp_path / "c") as world:
        await filled(world)
        monkeypatch.setattr(verifier, "AT_ONCE", 1)
        everything = Verifier(world.segment_reader, world.operations.selected(None), float(SEGMENT), clock=lambda: now[0], sleep=sleep)
        assert [event["event"] async for event in everything.run()][-1] == "end"
    assert slept == pytest.approx([0, 1, 1, 1 - 9 / SEGMENT, 1], abs=1e-6)


async def test_leaving_ends_it(tmp_path: Path) -> None:
    """Nothing is looked at any more, nothing is held."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        stream = Verifier(world.segment_reader, world.operations.selected(None), 1.0).run()  # a byte a second
        first = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        await stream.aclose()  # type: ignore[attr-defined]
        await world.quiet()
        assert len(world.of(SegmentVerified)) <= 2


async def test_samples_come_by_everywhere(tmp_path: Path) -> None:
    """Every segment has its turn, in one shard as in another."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        damage(world, B, SEGMENT + 5)
        sampling = IdleVerifier(world.room, world.segment_reader, lambda: True, every_s=1, chance=random.Random(1))
        findings = [await sampling.sample() for _ in range(40)]
        assert findings.count(Finding.WRONG) == 1
        assert not world.entry(B).segments.has(1)
        assert {fact.why for fact in world.of(SegmentVerified)} == {"sample"}


async def test_a_busy_moment_is_left_out(tmp_path: Path) -> None:
    """One look a period at most, and none while the disk has something to do."""
    async with building(tmp_path / "c") as world:
        await filled(world)
        moments = iter([False, True, False, True, True])
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) > 5:
                raise asyncio.CancelledError

        sampling = IdleVerifier(world.room, world.segment_reader, lambda: next(moments), every_s=5, chance=random.Random(1), sleep=sleep)
        with pytest.raises(asyncio.CancelledError):
            await sampling.run()
        assert slept == [5.0] * 6
        assert len(world.of(SegmentVerified)) == 3
