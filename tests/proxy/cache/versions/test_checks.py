"""What an origin says of versions that are stored, and how often it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.fake_origin import ErrorOf, reset
from support.house import SEGMENT, building, data_of, reader, shard_of

from forebay_proxy.cache.versions.checks import HEAD_DIFFERS_S
from forebay_proxy.cache.versions.versions import NO_JOB_S
from forebay_proxy.core.errors import (
    OriginError,
    OriginTimeout,
    OriginUnavailable,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.facts.origins import Revalidated
from forebay_proxy.core.shard import Pin, PinKind, Version

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
OTHER_FOLDER = "https://o/other/c.tar"
DATA = data_of(3 * SEGMENT)
OTHER = data_of(2 * SEGMENT, seed=2)


@pytest.mark.parametrize("jobs", [1, 6], ids=["one new job", "many new jobs"])
async def test_many_readers_of_new_jobs_compare_once(tmp_path: Path, jobs: int) -> None:
    """Single, like an opening: none of them asks again, and none is told that the origin changed."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, DATA)
        await world.get(A, reader(0, "before"))
        gate = remote.hold()
        tasks = [asyncio.create_task(world.get(A, reader(number, f"job{number % jobs}"))) for number in range(6)]
        await gate.reached.wait()
        await asyncio.sleep(0)
        gate.open()
        assert await asyncio.gather(*tasks) == [DATA] * 6
        assert world.origin.heads() == 1


async def test_many_without_a_job_compare_once(tmp_path: Path) -> None:
    """Single, like an opening."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A)
        world.clock.advance(NO_JOB_S)
        assert await asyncio.gather(*(world.get(A) for _ in range(8))) == [DATA] * 8
        assert world.origin.heads() == 1


async def test_an_origin_that_is_away_costs_those_without_a_job_one_silence(tmp_path: Path) -> None:
    """Not one a shard: what is stored is served, and counted, for a minute."""
    async with building(tmp_path / "c") as world:
        for name in (A, B):
            world.origin.put(name, DATA)
            await world.get(name)
        world.clock.advance(NO_JOB_S)
        world.origin.head_error = reset
        world.origin.remotes[A].fail(reset)
        assert await world.get(A) == await world.get(B) == DATA
        assert world.origin.heads() == 1
        assert [fact.result for fact in world.of(Revalidated)] == ["unreachable"] * 2
        world.clock.advance(NO_JOB_S)
        world.origin.head_error = None
        await world.get(B)
        assert [fact.result for fact in world.of(Revalidated)][2:] == ["same"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (lambda name: ShardNotFound(name, "404"), None),
        (lambda name: ShardForbidden(name, "403"), None),
        (lambda name: OriginError(name, "400"), None),
        (lambda name: OriginUnavailable(name, "500", answered=True), None),
        (None, Version("weak:W/1:9", Pin(), 9)),
        (None, Version("", Pin(), len(DATA))),
        (None, Version('etag:"v1"', Pin(PinKind.ETAG, '"v1"'), 0)),
        (None, Version('etag:"v1-gzip"', Pin(PinKind.ETAG, '"v1-gzip"'), 9, "gzip")),
    ],
    ids=["404", "403", "400", "500", "weak", "nothing", "length 0", "gzip"],
)
async def test_a_head_that_is_wrong_costs_one_small_get(tmp_path: Path, error: ErrorOf | None, said: Version | None) -> None:
    """Nothing is refused, nor fetched again; and HEAD is not asked there again for a while."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        world.origin.put(B, DATA)
        await world.get(A)
        await world.get(B)
        before = len(world.origin.log)
        world.origin.head_error, world.origin.head_version = error, said
        assert [await world.get(name, reader(job=job)) for job in ("one", "two") for name in (A, B)] == [DATA] * 4
        asked = [(asked.head, asked.range, asked.pin) for asked in world.origin.log[before:]]
        assert asked == [(True, None, ""), *[(False, (0, 0), '"v1"')] * 4]
        assert {fact.result for fact in world.of(Revalidated)} == {"same"}
        world.clock.advance(HEAD_DIFFERS_S)
        world.origin.head_error = world.origin.head_version = None
        await world.get(A, reader(job="three"))
        assert world.origin.log[-1].head


async def test_a_head_that_is_right_is_confirmed_and_followed(tmp_path: Path) -> None:
    """Gone is gone, and changed is changed."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        world.origin.put(B, DATA)
        await world.get(A)
        await world.get(B)
        world.origin.put(A, OTHER, etag='"v2"')
        assert await world.get(A, reader(job="one")) == OTHER
        del world.origin.remotes[B]
        with pytest.raises(ShardNotFound):
            await world.get(B, reader(job="two"))


async def test_an_origin_that_cannot_be_reached_is_served_from_the_store(tmp_path: Path) -> None:
    """And it is counted."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        world.origin.head_error = reset
        world.origin.remotes[A].fail(reset)
        assert await world.get(A, reader(job="two")) == DATA
        assert [fact.result for fact in world.of(Revalidated)] == ["unreachable"]


def throttled(name: str) -> ShardError:
    return OriginUnavailable(name, "429", throttled=True, answered=True)


def silent(name: str) -> ShardError:
    return OriginTimeout(name, "silent")


@pytest.mark.parametrize("refuses", [throttled, reset, silent])
async def test_what_was_replaced_is_seen_where_only_head_is_refused_so(tmp_path: Path, refuses: ErrorOf) -> None:
    """By a rule against HEAD that looks like trouble or a silence: a GET of one byte tells; the old bytes are not served for ever."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        world.origin.head_error = refuses
        world.origin.put(A, OTHER, etag='"v2"')
        assert await world.get(A, reader(job="two")) == OTHER


async def test_an_origin_in_trouble_is_asked_a_second_time_once_a_minute(tmp_path: Path) -> None:
    """Not for each shard and job: it may be the questions that trouble it."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="0"))
        world.origin.head_error = throttled
        for number, advance_s, asked in ((1, 0.0, [True, False]), (2, 59.0, [True]), (3, 2.0, [True, False])):
            world.clock.advance(advance_s)
            before = len(world.origin.log)
            world.origin.remotes[A].fail(throttled)
            assert await world.get(A, reader(job=str(number))) == DATA
            assert [one.head for one in world.origin.log[before:]] == asked


async def test_a_silent_origin_costs_each_shard_one_silence_after_the_first(tmp_path: Path) -> None:
    """HEAD is waited for once an hour; then GET alone, which answers as soon as the origin does."""
    async with building(tmp_path / "c") as world:
        for name in (A, B):
            world.origin.put(name, DATA)
            await world.get(name, reader(job="0"))
        world.origin.head_error = silent
        for name in (A, B):
            world.origin.remotes[name].fail(silent, times=9)
        for name, job, asked in ((A, "1", [True, False]), (B, "1", [False]), (A, "2", [False])):
            before = len(world.origin.log)
            assert await world.get(name, reader(job=job)) == DATA
            assert [one.head for one in world.origin.log[before:]] == asked
        world.origin.put(B, OTHER, etag='"v2"')
        assert await world.get(B, reader(job="3")) == OTHER
        world.clock.advance(HEAD_DIFFERS_S)
        await world.get(A, reader(job="4"))
        assert [one.head for one in world.origin.log[-2:]] == [True, False]


@pytest.mark.parametrize("error", [throttled, silent, lambda name: ShardNotFound(name, "404")])
async def test_one_without_an_identity_is_asked_about_by_get(tmp_path: Path, error: ErrorOf) -> None:
    """No answer is about its bytes, so a run that can reach the origin fetches anew, whatever becomes of its HEAD."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA, identity=False)
        await world.get(A, reader(job="one"))
        world.origin.head_error = error
        world.origin.put(A, OTHER, identity=False)
        assert await world.get(A, reader(job="two")) == OTHER


async def test_a_shard_that_is_gone_is_not_served(tmp_path: Path) -> None:
    """Its origin says 404."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        del world.origin.remotes[A]
        with pytest.raises(ShardNotFound):
            await world.get(A, reader(job="two"))


async def test_another_credential_needs_a_proof(tmp_path: Path) -> None:
    """One ranged GET with the pin, single for all who wait, good for ten minutes."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(shard_of(A, credential="x"), reader())
        before = len(world.origin.log)
        asked = [world.get(shard_of(A, credential="y"), reader(number)) for number in range(5)]
        assert await asyncio.gather(*asked) == [DATA] * 5
        proofs = world.origin.log[before:]
        assert [(proof.range, proof.pin) for proof in proofs] == [((0, 0), '"v1"')]
        world.clock.advance(599)
        await world.get(shard_of(A, credential="y"), reader())
        world.clock.advance(2)
        await world.get(shard_of(A, credential="y"), reader())
        assert len(world.origin.log) == before + 2


async def test_a_credential_the_origin_refuses_reads_nothing(tmp_path: Path) -> None:
    """Though all of it is stored."""
    async with building(tmp_path / "c") as world:
        good = shard_of(A, credential="x")
        world.origin.put(A, DATA).allowed = {good.credential}
        await world.get(good, reader())
        with pytest.raises(ShardForbidden):
            await world.get(shard_of(A, credential="bad"), reader())
        with pytest.raises(ShardForbidden):
            await world.get(A, reader())


async def test_a_reader_cancelled_while_it_proves_itself_costs_the_others_nothing(tmp_path: Path) -> None:
    """The proof goes on."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, DATA)
        await world.get(shard_of(A, credential="x"), reader())
        gate = remote.hold()
        one = asyncio.create_task(world.get(shard_of(A, credential="y"), reader()))
        await gate.reached.wait()
        two = asyncio.create_task(world.get(shard_of(A, credential="y"), reader()))
        await asyncio.sleep(0)
        one.cancel()
        gate.open()
        assert await two == DATA


async def test_a_proof_is_asked_for_again(tmp_path: Path) -> None:
    """A moment's trouble of the origin must not cost the second reader its shard."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, DATA)
        await world.get(shard_of(A, credential="x"), reader())
        remote.fail(lambda name: OriginUnavailable(name, "503", throttled=True, answered=True), times=2)
        assert await world.get(shard_of(A, credential="y"), reader()) == DATA
