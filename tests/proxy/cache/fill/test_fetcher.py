"""One flight's way to the origin: asked in its turn, held to its version, resumed where it broke."""

from __future__ import annotations

import asyncio
import io
import logging
import random
import tarfile
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, reader, shard_of, until

from forebay_proxy.cache.fetching import fetcher
from forebay_proxy.cache.fetching.fetcher import DENIALS, UNANSWERED_BUDGET_S, UNWANTED_BUDGET_S, reason_of
from forebay_proxy.core.errors import (
    OriginError,
    OriginLied,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    TruncatedShard,
)
from forebay_proxy.core.facts.origins import FetchRetried, OriginOddity
from forebay_proxy.transfer.limiter import START_SLOTS
from forebay_proxy.transfer.retry import LIES

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


def tar_of(*sizes: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    return buffer.getvalue()


async def test_a_body_that_breaks_again_and_again_is_resumed_each_time(tmp_path: Path) -> None:
    """Progress renews the patience; no byte is asked for twice."""
    async with building(tmp_path / "c", retry_budget_s=1.0) as world:
        data = data_of(4 * SEGMENT)
        world.origin.put(A, data).fail(after=10_000, times=12)
        assert await world.get(A) == data
        assert world.origin.sent_twice(A) == 0


async def test_retries_are_told(tmp_path: Path) -> None:
    """With their reason, and whether bytes were kept."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, data_of(100))
        remote.fail(lambda name: OriginUnavailable(name, "503", throttled=True))
        remote.fail(lambda name: OriginTimeout(name, "slow"), after=50)
        await world.get(A)
        told = [(fact.reason, fact.resumed) for fact in world.of(FetchRetried)]
        assert told == [("throttled", False), ("timeout", True)]


async def test_an_origin_that_pushes_back_is_asked_less(tmp_path: Path) -> None:
    """Its limiter halves."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100)).fail(lambda name: OriginUnavailable(name, "429", throttled=True))
        await world.get(A)
        assert world.limiters.of("https://o").slots < START_SLOTS


async def test_an_origin_that_never_answered_is_given_up_soon(tmp_path: Path) -> None:
    """It is more likely a wrong name than one in trouble."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100)).fail(times=10_000)
        start = world.clock.now
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        assert world.clock.now - start <= UNANSWERED_BUDGET_S


async def test_one_that_did_gets_the_full_budget(tmp_path: Path) -> None:
    """A refusal is an answer too."""
    async with building(tmp_path / "c", retry_budget_s=300.0) as world:
        world.origin.put(A, data_of(100)).fail(lambda name: ShardForbidden(name, "403"))
        with pytest.raises(ShardForbidden):
            await world.get(A)
        world.clock.advance(60)
        world.origin.remotes[A].fail(times=10_000)
        start = world.clock.now
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        assert 200 < world.clock.now - start <= 300


async def test_few_hosts_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may name any number of them; those that answered last are known."""
    monkeypatch.setattr(fetcher, "MOST_ANSWERED", 2)
    async with building(tmp_path / "c") as world:
        for number, host in enumerate("abac"):
            world.origin.put(f"https://{host}/set/a.tar", data_of(100))
            await world.get(f"https://{host}/set/a.tar", reader(job=f"{number}"))
        assert list(world.fetcher._answered) == ["https://a", "https://c"]


async def test_what_repeating_cannot_help_is_not_repeated(tmp_path: Path) -> None:
    """The error goes to the reader at once."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT)).fail(lambda name: OriginError(name, "nonsense"), after=100)
        with pytest.raises(OriginError):
            await world.get(A)
        assert world.clock.slept == []


async def test_too_many_bytes_are_an_error(tmp_path: Path) -> None:
    """A body longer than it promised is not what was asked for."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        world.origin.put(A, data_of(2 * SEGMENT), ranged=False, claimed_length=SEGMENT + 100)
        with pytest.raises(OriginError, match="more bytes"):
            await world.get(A)


async def test_a_range_answered_with_the_whole_is_used(tmp_path: Path) -> None:
    """Of the same version and length: what came before is passed over, what lies beyond is left; and it is counted."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A, first=0, last=9)
        world.origin.remotes[A].ranged = False
        assert await world.get(A, first=SEGMENT + 5, last=SEGMENT + 9) == data[SEGMENT + 5 : SEGMENT + 10]
        await world.quiet()
        assert world.origin.log[-1].sent <= 2 * SEGMENT + world.origin.remotes[A].chunk_bytes
        assert await world.get(A) == data
        assert [fact.kind for fact in world.of(OriginOddity)] == ["whole-for-range"] * 2


async def test_a_whole_body_resumes_where_the_range_broke(tmp_path: Path) -> None:
    """In the middle of a segment too."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = world.origin.put(A, data)
        await world.get(A, first=0, last=9)
        remote.fail(after=1000)
        gate = remote.hold(SEGMENT + 1000)
        reading = asyncio.create_task(world.get(A, first=SEGMENT, last=2 * SEGMENT - 1))
        await gate.reached.wait()
        remote.ranged = False
        gate.open()
        assert await reading == data[SEGMENT : 2 * SEGMENT]


async def test_a_whole_body_of_unknown_length_is_not(tmp_path: Path) -> None:
    """Nothing says that it is the same: asked three times, and then the shard is opened anew."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A, first=0, last=9)
        world.origin.remotes[A].ranged = world.origin.remotes[A].length_known = False
        with pytest.raises(ShardChanged, match="unknown length"):
            await world.get(A, first=SEGMENT)
        assert await world.get(A) == data


@pytest.mark.parametrize("after", [None, 700, 1536, SEGMENT + 77])
async def test_a_close_delimited_tar_is_whole_with_its_end(tmp_path: Path, after: int | None) -> None:
    """Also where its body was resumed, wherever that was."""
    async with building(tmp_path / "c") as world:
        data = tar_of(300, 2 * SEGMENT, 10)
        remote = world.origin.put(A, data, ranged=False, length_known=False, framed=False)
        if after is not None:
            remote.fail(after=after)
        assert await world.get(A) == data


@pytest.mark.parametrize("cut", [1024, 2048, 40_960])
async def test_a_close_delimited_tar_that_is_cut_is_an_error(tmp_path: Path, cut: int) -> None:
    """At a member's boundary, or in the middle of a thousand zeros."""
    async with building(tmp_path / "c", retry_budget_s=2.0) as world:
        data = tar_of(512, 100_000)[:cut]
        world.origin.put(A, data, ranged=False, length_known=False, framed=False)
        with pytest.raises(TruncatedShard):
            await world.get(A)


async def test_demand_overtakes_a_prefetch_that_waits(tmp_path: Path) -> None:
    """The next slot is the nearest need's; a prefetch that a reader boards is as near as itself."""
    async with building(tmp_path / "c", connections=2) as world:
        data = data_of(8 * SEGMENT)
        remote = world.origin.put(A, data)
        await world.get(A, reader(), first=0, last=0)
        entry = world.entry(A)
        gate = remote.hold()
        for index in range(1, 5):
            world.segment_fetches.ensure(entry, index, shard_of(A), need=2000.0 + index, need_at=None, reader=reader())
        await gate.reached.wait()
        assert world.limiters.of("https://o").in_flight == 1
        asked = len(world.origin.asked(A))
        reading = asyncio.create_task(world.get(A, reader(), first=4 * SEGMENT, last=4 * SEGMENT + 9))
        await until(lambda: len(world.origin.asked(A)) > asked)
        assert world.origin.asked(A)[-1] == (4 * SEGMENT, 5 * SEGMENT - 1)
        gate.open()
        assert await reading == data[4 * SEGMENT : 4 * SEGMENT + 10]


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OriginTimeout("s", ""), "timeout"),
        (OriginUnavailable("s", "", throttled=True), "throttled"),
        (OriginUnavailable("s", ""), "unavailable"),
        (TruncatedShard("s", ""), "short"),
        (ShardChanged("s", ""), "changed"),
        (ShardForbidden("s", ""), "status"),
        (OriginError("s", ""), "wrong"),
    ],
)
def test_reasons_are_short_words(error: ShardError, word: str) -> None:
    """For a label of a metric."""
    assert reason_of(error) == word


async def test_an_end_in_doubt_is_asked_for_twice_only(tmp_path: Path) -> None:
    """The same end again is the origin's own: downloading it for five minutes would not prove it."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(3000), ranged=False, length_known=False, framed=False)
        with pytest.raises(TruncatedShard):
            await world.get(A)
        await world.quiet()
        assert len(world.origin.asked(A)) == 2


async def test_nobody_waits_and_soon_nobody_asks(tmp_path: Path) -> None:
    """A reader who left an origin in trouble does not leave five minutes of questions behind."""
    async with building(tmp_path / "c") as world:
        world.origin.put(B, data_of(100))
        await world.get(B)  # the origin is known to answer: the budget is the long one
        remote = world.origin.put(A, data_of(2 * SEGMENT))
        gate = remote.hold()
        remote.fail(times=100_000)
        task = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = world.clock.now
        gate.open()
        await world.quiet()
        assert world.clock.now - start <= UNWANTED_BUDGET_S


async def test_a_name_that_does_not_exist_is_told_at_once(tmp_path: Path) -> None:
    """As long as the host has not answered; afterwards it is the resolver that is in trouble, and asked again."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100)).fail(lambda name: OriginUnavailable(name, "no such host", hopeless=True))
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        assert world.clock.slept == []
        assert await world.get(A) == data_of(100)
        world.origin.put(B, data_of(200)).fail(lambda name: OriginUnavailable(name, "no such host", hopeless=True), times=3)
        assert await world.get(B) == data_of(200)


async def test_a_host_that_says_503_is_there(tmp_path: Path) -> None:
    """Its first answer is worth the full budget, also to those who had asked before."""
    async with building(tmp_path / "c", retry_budget_s=300.0) as world:
        world.origin.put(A, data_of(100)).fail(lambda name: OriginUnavailable(name, "503", answered=True, throttled=True), times=10_000)
        start = world.clock.now
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        assert 200 < world.clock.now - start <= 300


async def test_a_lie_is_asked_about_again_and_an_insisting_liar_is_not(tmp_path: Path) -> None:
    """Twice it may be somebody on the way; the third time it is an error, in a second and not in minutes."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        remote = world.origin.put(A, data)
        remote.fail(lambda name: OriginLied(name, "another range"), times=2)
        assert await world.get(A) == data
        world.origin.put(B, data).fail(lambda name: OriginLied(name, "another range"), times=10_000)
        start = world.clock.now
        with pytest.raises(OriginLied):
            await world.get(B)
        assert world.clock.now - start < 1.0
        await world.quiet()
        assert [fact.reason for fact in world.of(FetchRetried)] == ["wrong"] * 4


async def test_another_length_or_encoding_under_the_same_name_is_a_lie(tmp_path: Path) -> None:
    """Asked about again; if the origin insists, what we hold is not what it has, and the next opening finds what it is."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        for number, change in enumerate(({"encoding": "gzip"}, {"data": data + b"more"})):
            name = f"https://o/set/{number}.tar"
            remote = world.origin.put(name, data)
            await world.get(name, first=0, last=9)
            vars(remote).update(change)
            before = len(world.origin.asked(name))
            with pytest.raises(ShardChanged):
                await world.get(name, first=SEGMENT, last=SEGMENT + 9)
            await world.quiet()
            assert len(world.origin.asked(name)) - before >= LIES
            assert await world.get(name) == remote.data


async def test_a_nameless_shard_of_another_length_is_another(tmp_path: Path) -> None:
    """Its body broke before the first byte; what is answered then begins alike, and would have been taken for it, cut to size."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(1000), identity=False).fail(after=0)
        longer = data_of(1100, 5)
        world.events.listen(lambda fact: isinstance(fact, FetchRetried) and world.origin.put(A, longer, identity=False) and None)
        with pytest.raises(ShardChanged):
            await world.get(A)
        assert await world.get(A) == longer


async def test_a_416_within_a_version_is_another_version(tmp_path: Path) -> None:
    """It is not asked again; the next opening finds what is there now."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = world.origin.put(A, data)
        await world.get(A, first=0, last=9)
        remote.fail(lambda name: RangeNotSatisfiable(name, "416", length=0))
        with pytest.raises(ShardChanged, match="beyond its end"):
            await world.get(A, first=SEGMENT, last=SEGMENT + 9)
        assert world.clock.slept == []
        assert await world.get(A) == data


async def test_a_comparison_that_is_refused_makes_us_ask_less(tmp_path: Path) -> None:
    """A HEAD is a request like any other to the limiter; the stored version is served meanwhile."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100))
        await world.get(A, reader(job="one"))
        world.origin.head_error = lambda name: OriginUnavailable(name, "429", throttled=True, answered=True)
        assert await world.get(A, reader(job="two")) == data_of(100)
        assert world.limiters.of("https://o").slots == START_SLOTS / 2


async def test_a_comparison_that_is_nonsense_is_made_again(tmp_path: Path) -> None:
    """One garbled answer to a HEAD must not cost a reader what is stored."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(100))
        await world.get(A, reader(job="one"))
        answers = [OriginLied(A, "garbled"), OriginLied(A, "garbled")]

        def garbled(_: str) -> ShardError:
            if len(answers) == 1:
                world.origin.head_error = None
            return answers.pop()

        world.origin.head_error = garbled
        assert await world.get(A, reader(job="two")) == data_of(100)
        assert world.origin.heads() == 3


async def test_all_that_came_before_a_broken_end_is_enough(tmp_path: Path) -> None:
    """Nothing is missing, so nobody waits or asks again."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).fail(after=SEGMENT, times=2)
        assert await world.get(A) == data
        await world.quiet()
        assert world.clock.slept == []
        assert sorted(world.origin.asked(A)) == [(0, SEGMENT - 1), (SEGMENT, 2 * SEGMENT - 1)]  # type: ignore[type-var]


@pytest.mark.parametrize("count", [2, 3])
async def test_a_shard_of_several_backends_is_read_whole(tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every one, from the first on; said once."""
    caplog.set_level(logging.WARNING, "forebay")
    async with building(tmp_path / "c") as world:
        etags = tuple(f'"b{number}"' for number in range(count))
        for number in range(12):
            name = f"https://o/set/{number}.tar"
            world.origin.put(name, data_of(6 * SEGMENT, number), backends=etags, chance=random.Random(number))
            assert await world.get(name, reader()) == data_of(6 * SEGMENT, number)
        assert all(world.origin.sent_twice(f"https://o/set/{number}.tar") == 0 for number in range(12))
    told = [record.getMessage()[:16] for record in caplog.records if "not a tar" not in record.getMessage()]  # which the shards are not
    assert told == ["origin https://o"]


async def test_a_replaced_shard_is_told_after_a_few_questions(tmp_path: Path) -> None:
    """The first reader's is over; the next reads the new one."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, data_of(6 * SEGMENT))
        gate = remote.hold(SEGMENT // 2)
        async with world.opened(A, reader()) as reading:
            await gate.reached.wait()
            world.origin.put(A, data_of(5 * SEGMENT, 1), etag='"v2"')
            gate.open()
            with pytest.raises(ShardChanged):
                _ = [bytes(chunk) async for chunk in reading.chunks()]
        await world.quiet()
        assert DENIALS < sum(asked.pin == '"v1"' for asked in world.origin.log) <= DENIALS + 8
        assert await world.get(A, reader()) == data_of(5 * SEGMENT, 1)
