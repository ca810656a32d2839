"""Which version of a shard is read: stored and still good, or the origin's."""

from __future__ import annotations

import asyncio
import errno
import os
import traceback
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_origin import reset
from support.house import SEGMENT, building, data_of, reader, shard_of, until
from support.seams import disk_does

from forebay_proxy.cache.fetching.fetcher import UNWANTED_BUDGET_S
from forebay_proxy.cache.versions.shard_faults import REMEMBERED_S
from forebay_proxy.cache.versions.versions import NO_JOB_S
from forebay_proxy.core.errors import (
    CacheFull,
    OriginError,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.facts.origins import Revalidated
from forebay_proxy.core.segments import MOST_BYTES
from forebay_proxy.core.shard import ByteRange
from forebay_proxy.policy.plans.live_jobs import PAUSE_S
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.transfer.single_flight import Urgency

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
OTHER_FOLDER = "https://o/other/c.tar"
DATA = data_of(3 * SEGMENT)
OTHER = data_of(2 * SEGMENT, seed=2)


async def test_the_opening_is_the_first_segments_request(tmp_path: Path) -> None:
    """No request is spent on asking for the version."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100))
        await world.get(A)
        assert [(asked.range, asked.head) for asked in world.origin.log] == [((0, SEGMENT - 1), False)]


async def test_the_opening_asks_for_the_segment_the_client_wants(tmp_path: Path) -> None:
    """Not for the first one in vain."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        assert await world.get(A, first=SEGMENT + 5, last=SEGMENT + 9) == DATA[SEGMENT + 5 : SEGMENT + 10]
        assert world.origin.asked(A) == [(SEGMENT, 2 * SEGMENT - 1)]


async def test_many_make_one_opening(tmp_path: Path) -> None:
    """Whoever of them leaves meanwhile."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, DATA).hold()
        tasks = [asyncio.create_task(world.get(A)) for _ in range(10)]
        await gate.reached.wait()
        tasks[0].cancel()
        await asyncio.sleep(0)
        gate.open()
        assert await asyncio.gather(*tasks[1:]) == [DATA] * 9
        assert world.origin.sent_twice(A) == 0


async def test_an_opening_its_reader_left_still_lands(tmp_path: Path) -> None:
    """A segment asked for always does."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(100)).hold()
        task = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        task.cancel()
        gate.open()
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_head_stores_nothing(tmp_path: Path) -> None:
    """One byte is asked for, and the length is known."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        async with world.cache.open(shard_of(A), None, None, head=True) as reading:
            assert reading.entry.shown_version.length == len(DATA)
        assert world.origin.asked(A) == [(0, 0)]
        assert world.ledger.stored_bytes == 0
        assert await world.get(A) == DATA


async def test_head_and_get_at_once(tmp_path: Path) -> None:
    """Each gets its answer."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, DATA).hold()

        async def head() -> int | None:
            async with world.cache.open(shard_of(A), None, None, head=True) as reading:
                return reading.entry.shown_version.length

        async with asyncio.timeout(60):
            tasks = asyncio.create_task(world.get(A)), asyncio.create_task(head())
            await until(lambda: len(world.origin.log) == 2)
            gate.open()
            assert await asyncio.gather(*tasks) == [DATA, len(DATA)]


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_refusal_is_remembered_for_five_seconds(tmp_path: Path, allowed: bool) -> None:
    """Per credential: another one is asked about."""
    async with building(tmp_path / "c") as world:
        error: type[Exception] = ShardNotFound
        if allowed:
            world.origin.put(A, DATA).allowed = set()
            error = ShardForbidden
        for _ in range(3):
            with pytest.raises(error):
                await world.get(A)
        assert len(world.origin.log) == 1
        with pytest.raises(error):
            await world.get(shard_of(A, credential="x"))
        assert len(world.origin.log) == 2
        world.origin.put(A, DATA)
        with pytest.raises(error):
            await world.get(A)
        world.clock.advance(REMEMBERED_S)
        assert await world.get(A) == DATA


async def test_a_remembered_refusal_keeps_nothing_of_who_was_refused(tmp_path: Path) -> None:
    """However often it is told: each is told a copy whose frames are its own; once it has run out it is gone."""
    async with building(tmp_path / "c") as world:
        lengths = list[int]()
        for _ in range(20):
            with pytest.raises(ShardNotFound) as caught:
                await world.get(A)
            lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(world.origin.log) == 1
        assert len(set(lengths[1:])) == 1, "the first was told by the origin itself"
        ((kept, _),) = world.resolver.faults._refusals._items.values()
        assert (kept.__traceback__, kept.__cause__, kept.__context__) == (None, None, None)
        for number in range(3):
            with pytest.raises(ShardNotFound):
                await world.get(f"{A}?{number}")
        world.clock.advance(REMEMBERED_S)
        world.resolver.faults.expire()
        assert not world.resolver.faults._refusals


@pytest.mark.parametrize("head", [False, True])
async def test_a_length_no_shard_may_have_is_refused_before_it_is_memory(tmp_path: Path, *, head: bool) -> None:
    """Whoever says it: an answer, a hub, a file system."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA).claimed_length = MOST_BYTES + 1
        with pytest.raises(OriginError, match=str(MOST_BYTES + 1)):
            async with world.cache.open(shard_of(A), None, None, head=head):
                pass
        assert not world.room.entries


async def test_a_version_is_compared_once_a_job(tmp_path: Path) -> None:
    """What this process fetched for a job is not compared again in it."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        for job in ("one", "one", "two", "two", "one"):
            assert await world.get(A, reader(job=job)) == DATA
        assert world.origin.heads() == 1
        assert [fact.result for fact in world.of(Revalidated)] == ["same"]


async def test_a_version_that_is_meant_is_not_compared(tmp_path: Path) -> None:
    """By any job, while it is here and no other is meant; bytes of that version are right whatever the origin has now."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        meant = world.entry(A).shown_version.etag(world.entry(A).shown_key)
        assert await world.get(replace(shard_of(A), meant=meant), reader(job="two")) == DATA
        assert world.origin.heads() == 0
        assert await world.get(replace(shard_of(A), meant='"other"'), reader(job="three")) == DATA
        assert world.origin.heads() == 1


async def test_a_version_that_is_meant_is_shown_to_who_may_read_it(tmp_path: Path) -> None:
    """Another credential is proved to the origin first, as ever."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(shard_of(A, credential="one"), reader(job="one"))
        meant, asked = world.entry(A).shown_version.etag(world.entry(A).shown_key), len(world.origin.log)
        await world.get(replace(shard_of(A, credential="other"), meant=meant), reader(job="two"))
        assert len(world.origin.log) > asked


async def test_an_opening_ahead_that_finds_no_room_is_nobodys_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes in the very turn of its failure opens the shard itself."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        comers: list[asyncio.Task[bytes]] = []

        def no_room(size: int, needed: Urgency) -> None:
            comers.append(asyncio.create_task(world.get(A, reader(2))))  # it runs before anybody hears of the failure
            raise CacheFull("no room")

        monkeypatch.setattr(world.segment_fetches, "check_ahead", no_room)
        with pytest.raises(CacheFull):
            await world.resolver.entry(shard_of(A), "job", need=AHEAD + 1)
        assert await comers[0] == DATA


async def test_a_ttl_compares_by_the_clock(tmp_path: Path) -> None:
    """Whatever the job."""
    async with building(tmp_path / "c", revalidate=60.0) as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        await world.get(A, reader(job="two"))
        assert world.origin.heads() == 0
        world.clock.advance(61)
        await world.get(A, reader(job="two"))
        assert world.origin.heads() == 1


async def test_who_names_no_job_compares_after_a_minute(tmp_path: Path) -> None:
    """However long the reader goes on without a pause; a job that has compared meanwhile counts."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(A)
        for seconds in range(int(NO_JOB_S) - 1):
            world.clock.advance(1.0)
            await world.get(A)
            assert (seconds, world.origin.heads()) == (seconds, 0)
        world.origin.put(A, OTHER, etag='"v2"')
        world.clock.advance(1.0)
        assert await world.get(A) == OTHER
        assert world.origin.heads() == 1


async def test_who_names_no_job_compares_in_each_burst(tmp_path: Path) -> None:
    """After a pause it may be another run; a reader that is still inside some shard of the folder, or reads another folder, is no pause."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        world.origin.put(B, DATA)
        world.origin.put(OTHER_FOLDER, DATA)
        await world.get(A)
        async with world.opened(B, None) as reading:
            await world.taken(reading, 1)
            world.clock.advance(PAUSE_S + 1)
            await world.get(A)
            assert world.origin.heads() == 0
        world.clock.advance(PAUSE_S + 0.1)
        world.origin.put(A, OTHER, etag='"v2"')
        assert [await world.get(A) for _ in range(3)] == [OTHER] * 3
        assert world.origin.heads() == 1
        world.clock.advance(PAUSE_S + 0.1)
        async with world.opened(OTHER_FOLDER, None):
            await world.get(A)
        assert world.origin.heads() == 2


async def test_a_ttl_of_nothing_compares_at_each_opening(tmp_path: Path) -> None:
    """Once each; what was just compared is read, though it is never fresh."""
    async with building(tmp_path / "c", revalidate=0.0) as world:
        world.origin.put(A, DATA)
        for heads in range(3):
            assert await world.get(A) == DATA
            assert world.origin.heads() == heads


async def test_a_reader_that_joins_an_opening_ahead_of_need_has_a_budget_of_its_own(tmp_path: Path) -> None:
    """The prefetch had 15 s for it, most of which are gone; a reader waits for as long as it would alone."""
    async with building(tmp_path / "c") as world:
        world.origin.put(B, DATA)
        await world.get(B)  # the origin is known to answer: the budget is the long one
        remote = world.origin.put(A, DATA)

        def fails_and_holds(name: str) -> OriginUnavailable:
            remote.hold()
            return reset(name)

        remote.fail(fails_and_holds)
        remote.fail(times=12)
        ahead = asyncio.create_task(world.resolver.entry(shard_of(A), "job", need=AHEAD + 1))
        await until(lambda: remote.headers is not None)
        assert remote.headers is not None
        await remote.headers.reached.wait()
        world.clock.advance(UNWANTED_BUDGET_S - 0.1)
        began = world.clock.now
        reading = asyncio.create_task(world.get(A, reader()))
        await asyncio.sleep(0)
        remote.release()
        assert await reading == DATA
        await ahead
        assert world.clock.now - began > 1.0


async def test_an_opening_ahead_of_need_is_given_up_soon(tmp_path: Path) -> None:
    """Nobody waits for it: its reader asks with a budget of its own."""
    async with building(tmp_path / "c") as world:
        world.origin.put(B, DATA)
        await world.get(B)
        world.origin.put(A, DATA).fail(times=100_000)
        began = world.clock.now
        with pytest.raises(OriginUnavailable):
            await world.resolver.entry(shard_of(A), "job", need=AHEAD + 1)
        assert world.clock.now - began <= UNWANTED_BUDGET_S


async def test_nothing_is_noted_of_an_opening_whose_room_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What should leave for it stayed: its reader has not that much more ahead of it for the rest of its life."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, DATA)
        world.origin.put(B, data_of(4 * SEGMENT))
        await world.get(B, reader())
        world.plans.replace(reader(), [shard_of(A)])

        def punch(*args: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            disk_does(patch, punch=punch)
            await world.resolver.entry(shard_of(A), "job", need=AHEAD + 1, need_at=world.clock.now, reader=reader())
            await world.quiet()
        assert world.room.read_ahead.unread_bytes == 0


async def test_never_means_never(tmp_path: Path) -> None:
    """For shards a person knows to be immutable."""
    async with building(tmp_path / "c", revalidate="never") as world:
        world.origin.put(A, DATA)
        await world.get(A, reader(job="one"))
        world.origin.put(A, data_of(10), etag='"v2"')
        assert await world.get(A, reader(job="two")) == DATA


async def test_a_changed_shard_is_opened_anew_and_the_old_one_leaves(tmp_path: Path) -> None:
    """It serves who is inside until then."""
    async with building(tmp_path / "c") as world:
        old, new = data_of(2 * SEGMENT), data_of(2 * SEGMENT, 5)
        world.origin.put(A, old)
        async with world.opened(A, reader(job="one")) as inside:
            got = await world.taken(inside, 10)
            await world.quiet()
            world.origin.put(A, new, etag='"v2"')
            assert await world.get(A, reader(job="two")) == new
            got += b"".join([bytes(chunk) async for chunk in inside.chunks()])
        assert got == old
        await world.quiet()
        assert [entry.version.identity for entry in world.room.entries.values()] == ['etag:"v2"']


async def test_a_proof_that_finds_another_version_opens_it(tmp_path: Path) -> None:
    """412 means that the shard has changed, not that this reader did wrong."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        await world.get(shard_of(A, credential="x"), reader())
        new = data_of(2 * SEGMENT, 5)
        world.origin.put(A, new, etag='"v2"')
        assert await world.get(shard_of(A, credential="y"), reader()) == new


async def test_a_nameless_origin_is_one_stream(tmp_path: Path) -> None:
    """Two ranges of it could be of two versions."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA, identity=False)
        assert await world.get(A) == DATA
        assert world.origin.asked(A)[-1] is None
    async with building(tmp_path / "c") as world:
        assert not world.room.entries


async def test_a_prefetchs_opening_becomes_its_readers(tmp_path: Path) -> None:
    """Who joins it makes it as near as itself."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, DATA).hold()
        ahead = asyncio.create_task(world.resolver.entry(shard_of(A), "job", need=5000.0))
        await gate.reached.wait()
        reading = asyncio.create_task(world.get(A))
        await asyncio.sleep(0)
        assert [needed.need for _, needed in world.resolver._openings._calls.values()] == [0.0]
        gate.open()
        assert await reading == DATA
        await ahead


async def test_failing_openings_leave_no_trace(tmp_path: Path) -> None:
    """Readers that come in the very turn in which it fails hear the error or begin anew, and nothing else."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        world.origin.put(A, DATA).fail(times=1000)

        async def ask() -> None:
            for _ in range(5):
                with pytest.raises(OriginUnavailable):
                    await world.get(A)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ask())


async def test_a_flat_refusal_of_a_range_is_an_error(tmp_path: Path) -> None:
    """416 for the first byte of something that has bytes: nonsense, and told once."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA).fail(lambda name: OriginError(name, "nonsense"))
        with pytest.raises(OriginError):
            await world.get(A)
        assert await world.get(A) == DATA


async def test_shutdown_tells_who_waits_for_an_opening(tmp_path: Path) -> None:
    """Nobody hangs."""
    async with building(tmp_path / "c", checked=False) as world:
        gate = world.origin.put(A, DATA).hold()
        waiting = asyncio.create_task(world.resolver.entry(shard_of(A), "", ByteRange(0)))
        await gate.reached.wait()
        world.resolver.cancel()
        with pytest.raises(Exception, match="shutting down"):
            await waiting


@pytest.mark.parametrize("said", [0, 100, None])
async def test_a_416_is_not_believed_to_mean_an_empty_shard(tmp_path: Path, said: int | None) -> None:
    """The whole is asked for: a shard that is there is read, and no stream of samples ends without an error."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA).fail(lambda name: RangeNotSatisfiable(name, "416", length=said))
        assert await world.get(A) == DATA
        assert world.origin.asked(A) == [(0, SEGMENT - 1), None]


async def test_an_empty_shard_has_the_version_the_origin_names(tmp_path: Path) -> None:
    """Not one of our own making: it can be compared later."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, b"", etag='"e"')
        async with world.opened(A) as reading:
            assert (reading.entry.shown_version.identity, reading.entry.shown_version.length) == ('etag:"e"', 0)
