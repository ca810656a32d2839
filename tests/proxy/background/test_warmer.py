"""Fetched ahead because a person asked."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, until
from support.tars import tar_shard

from forebay_proxy.background import warmer
from forebay_proxy.background.operations import Operations
from forebay_proxy.core.quantities import format_size
from forebay_proxy.telemetry.counters import Counters
from forebay_proxy.telemetry.troubles import RecentErrors

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"


async def warmed(world: World, *names: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The result of each shard, and the last event."""
    told = [event async for event in world.operations.warm([shard_of(name) for name in names])]
    return {str(event["shard"]): str(event["result"]) for event in told if event["event"] == "shard"}, told[-1]


@pytest.mark.parametrize(("how", "why"), [
    ({"ranged": False, "length_known": False}, "tells no length"),
    ({"identity": False}, "names no version"),
])  # fmt: skip
async def test_what_cannot_be_kept_is_told_so(tmp_path: Path, how: dict[str, bool], why: str) -> None:
    """With what its origin should send."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(9 * SEGMENT), **how)
        (told,) = [event async for event in world.operations.warm([shard_of(A)]) if event["event"] == "shard"]
        assert (told["result"], why in str(told["error"])) == ("no-room", True)


@pytest.mark.parametrize("how", [{}, {"ranged": False}])
async def test_all_of_it_is_stored(tmp_path: Path, how: dict[str, bool]) -> None:
    """Then it is present, and nothing is fetched."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(9 * SEGMENT + 1), **how)
        world.origin.put(B, data_of(10, 1), **how)
        results, end = await warmed(world, A, B)
        assert results == {A: "stored", B: "stored"}
        assert (end["event"], end["stored"]) == ("end", 2)
        assert world.entry(A).segments.complete
        results, _ = await warmed(world, A, B)
        assert results == {A: "present", B: "present"}
        assert await world.get(A, reader()) == data_of(9 * SEGMENT + 1)
        assert len(world.origin.asked()) == (11 if not how else 2)


async def test_what_fails_is_told_and_stops_nothing(tmp_path: Path) -> None:
    """Each shard by itself."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        world.origin.put(B, data_of(2 * SEGMENT))
        world.origin.put(C, data_of(2 * SEGMENT)).fail(times=100)
        results, end = await warmed(world, A, B, C)
        assert results == {A: "failed", B: "stored", C: "failed"}
        assert end["failed"] == 2


async def test_it_takes_no_room_from_what_is_wanted(tmp_path: Path) -> None:
    """No room is told; nobody else's bytes left for it."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, data_of(3 * SEGMENT))
        world.origin.put(B, data_of(3 * SEGMENT, 1))
        await world.get(A, reader())
        await world.quiet()
        world.plans.replace(reader(), [shard_of(A)])
        results, _ = await warmed(world, B)
        assert results == {B: "no-room"}
        assert world.entry(A).segments.complete


@pytest.mark.parametrize("ranged", [True, False])
async def test_one_that_the_cache_can_never_hold_is_told_so(tmp_path: Path, ranged: bool) -> None:
    """By its size and the cache's, with what to do; one that only finds no room now is not."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, data_of(9 * SEGMENT), ranged=ranged)
        (told,) = [event async for event in world.operations.warm([shard_of(A)]) if event["event"] == "shard"]
        assert (told["result"], told["error"]) == ("no-room", told["cause"])
        assert f"it has {format_size(9 * SEGMENT)}, and the whole cache has room for {format_size(4 * SEGMENT)}" in str(told["cause"])
        assert "--cache-size" in str(told["next_step"])
        world.origin.put(B, data_of(4 * SEGMENT))
        (told,) = [event async for event in world.operations.warm([shard_of(B)]) if event["event"] == "shard"]
        assert "cause" not in told


async def test_each_request_compares(tmp_path: Path) -> None:
    """What was warmed once and replaced since is fetched again, not found here."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(3 * SEGMENT))
        assert (await warmed(world, A))[0] == {A: "stored"}
        assert (await warmed(world, A))[0] == {A: "present"}
        assert world.origin.heads() == 1
        world.origin.put(A, data_of(2 * SEGMENT, 1), etag='"v2"')
        assert (await warmed(world, A))[0] == {A: "stored"}
        assert await world.get(A) == data_of(2 * SEGMENT, 1)


async def test_who_stops_asking_stops_it(tmp_path: Path) -> None:
    """What is in the air lands."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(30 * SEGMENT)).hold()
        told = world.operations.warm([shard_of(A)])
        first = asyncio.create_task(anext(told))
        await gate.reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        await until(lambda: A in world.resolver.versions.current)
        await world.quiet()
        assert not world.entry(A).segments.complete


NAMES = [f"https://o/set/{number}.tar" for number in range(10)]


async def test_what_fits_is_whole_and_the_rest_is_not_begun(tmp_path: Path) -> None:
    """Ten shards of three segments, room for eleven segments: at most two stay in parts, and no other is asked for."""
    async with building(tmp_path / "c", segments=11) as world:
        for seed, name in enumerate(NAMES):
            world.origin.put(name, data_of(2 * SEGMENT + SEGMENT // 2, seed))
        results, end = await warmed(world, *NAMES)
        await world.quiet()
        whole = [name for name, entry in world.resolver.versions.current.items() if entry.segments.complete]
        begun = [name for name in NAMES if world.origin.asked(name)]
        assert len(whole) >= 3
        assert len(begun) <= len(whole) + warmer.ASKING_AT_ONCE
        assert results == {name: "stored" if name in whole else "no-room" for name in NAMES}
        assert (end["stored"], end["no_room"]) == (len(whole), 10 - len(whole))


async def test_what_cannot_be_completed_stops_nobody_else(tmp_path: Path) -> None:
    """A disk that fails is not a cache that is full."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT))
        world.cache.disk.state = "down"
        warming = warmer.Warmer(world.cache, world.resolver, [shard_of(A)])
        assert [event async for event in warming.run()][-1]["no_room"] == 1
        assert not warming._full


PAGE = b"<!DOCTYPE html><html><head><title>Log in</title></head></html>"
SHARD = tar_shard(0, size=3 * SEGMENT)
HOW: list[dict[str, Any]] = [{}, {"etag": None}, {"ranged": False}]


async def judged(world: World, *names: str) -> dict[str, dict[str, Any]]:
    """The event of each shard, where warming looks whether it is a tar."""
    operations = Operations(world.cache, world.resolver, world.segment_reader, world.clock, tar_check=world.tar_check)
    told = [event async for event in operations.warm([shard_of(name) for name in names])]
    return {str(event["shard"]): event for event in told if event["event"] == "shard"}


@pytest.mark.parametrize("how", HOW)
async def test_a_login_page_is_no_shard(tmp_path: Path, how: dict[str, Any]) -> None:
    """It fails in the loader's words, nothing of it stays, and the same command stores the shard once it is one."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, PAGE, **how)
        told = (await judged(world, A))[A]
        assert told["result"] == "failed"
        assert "not a tar archive: truncated header (it begins with b'<!DOCTYPE html" in told["cause"]
        assert "a web page or an error answer" in told["cause"]
        assert "token" in told["next_step"]
        await world.quiet()
        assert world.ledger.stored_bytes == 0
        world.origin.put(A, SHARD, **{"etag": '"v2"', **how})
        assert (await judged(world, A))[A]["result"] == "stored"
        assert await world.get(A, reader()) == SHARD


async def test_a_login_page_that_was_stored_before_is_found(tmp_path: Path) -> None:
    """By a reader, or an earlier sidecar: nobody has looked at its bytes since."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, PAGE)
        assert await world.get(A, reader()) == PAGE
        await world.quiet()
        world.entry(A).trust.no_tar = None
        assert (await judged(world, A))[A]["result"] == "failed"


async def test_only_what_is_called_a_tar_is_judged(tmp_path: Path) -> None:
    """Other files may be warmed too; packed tars are tars, and one that is nothing but an end marker is."""
    names = {
        "https://o/set/a.parquet": PAGE, "https://o/set/page": PAGE, "https://o/set/a.tar.gz": gzip.compress(SHARD),
        "https://o/set/gz.tar": gzip.compress(SHARD), "https://o/set/none.tar": bytes(1024),
    }  # fmt: skip
    async with building(tmp_path / "c", segments=40) as world:
        for name, data in names.items():
            world.origin.put(name, data)
        assert {told["result"] for told in (await judged(world, *names)).values()} == {"stored"}


async def test_a_job_that_reads_what_is_no_tar_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each reading counts, the log has it once; whoever reads a real tar, or from its middle, is told nothing."""
    async with building(tmp_path / "c") as world:
        counters, recent = Counters(), RecentErrors(world.clock, world.clock)
        world.events.listen(counters.listen)
        world.events.listen(recent.listen, recent.kinds)
        world.origin.put(A, PAGE)
        world.origin.put(B, SHARD)
        for worker in range(3):
            assert await world.get(A, reader(worker)) == PAGE
            assert await world.get(B, reader(worker)) == SHARD
        await world.quiet()
        row = recent.rows()[0]
        assert (row["what"], row["count"], row["job"]) == ("no tar", 3, "job")
        assert str(row["error"]).startswith(f"shard {A}: not a tar archive: truncated header")
        assert (counters.snapshot()["no_tars"], counters.snapshot()["jobs"]["job"]["no_tars"]) == (3, 3)  # type: ignore[index]
        assert sum("not a tar archive" in line for line in caplog.messages) == 1
