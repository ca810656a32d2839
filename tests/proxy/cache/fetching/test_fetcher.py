"""The way to the origin: asked in its turn, held to its version, resumed where it broke."""

from __future__ import annotations

import asyncio
import io
import logging
import random
import sys
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.fake_origin import Remote
from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.cache.fetching import fetcher
from forebay_proxy.cache.fetching.fetcher import ALONE_BYTES, DENIALS, UNANSWERED_BUDGET_S, UNWANTED_BUDGET_S, check, reason_of
from forebay_proxy.cache.resident.entry import Entry
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
    VersionLost,
)
from forebay_proxy.core.facts.origins import FetchRetried, OriginBytes, OriginOddity
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import ByteRange, Pin, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.bandwidth import LEAST_BYTES
from forebay_proxy.transfer.fetches import Answer
from forebay_proxy.transfer.limiter import AHEAD, START_SLOTS
from forebay_proxy.transfer.retry import LIES
from forebay_proxy.transfer.single_flight import Urgency

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
DATA = data_of(3 * SEGMENT)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c") as world:
        yield world


async def known(world: World, **how: Any) -> Remote:
    """A shard of three segments whose version is known; its first segment is here."""
    remote = world.origin.put(A, DATA, **how)
    await world.get(A, last=9)
    await world.quiet()
    world.facts.clear()
    return remote


def stream(world: World, first: int, end: int | None, **how: Any) -> AsyncGenerator[bytes | memoryview]:
    how = {"wanted": lambda: True, **how}
    return world.fetcher.stream(world.entry(A), shard_of(A), first, end, how.pop("need", Urgency(0.0)), **how)


async def streamed(world: World, first: int, end: int | None, **how: Any) -> bytes:
    async with aclosing(stream(world, first, end, **how)) as pieces:
        return b"".join([bytes(piece) async for piece in pieces])


async def answered(world: World, want: ByteRange | None) -> Answer:
    """An answer of the origin that has begun."""
    async with AsyncExitStack() as held:
        body, slot = await held.enter_async_context(world.fetcher.ask(shard_of(A), want, Pin(), Urgency(0.0)))
        return Answer(body, slot, held.pop_all())


def tar_of(*sizes: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    return buffer.getvalue()


# One body after the other


async def test_a_body_that_breaks_again_and_again_is_resumed_each_time(tmp_path: Path) -> None:
    """From its next byte, with the pin. Progress renews the patience; no byte is asked for twice."""
    async with building(tmp_path / "c", retry_budget_s=1.0) as world:
        remote = await known(world)
        remote.fail(after=5_000, times=12)
        assert await streamed(world, SEGMENT + 7, 3 * SEGMENT) == DATA[SEGMENT + 7 :]
        asked = [(SEGMENT + 7 + 5_000 * number, 3 * SEGMENT - 1) for number in range(13)]
        assert world.origin.asked(A)[1:] == asked
        assert {asked.pin for asked in world.origin.log[1:]} == {'"v1"'}
        assert world.origin.sent_twice(A) == 0


async def test_an_answer_that_has_begun_is_gone_on_with(world: World) -> None:
    """Its first bytes are passed over where they are not wanted; the rest of a broken one is asked for."""
    (await known(world)).fail(after=1000)
    answer = await answered(world, ByteRange(SEGMENT, 2 * SEGMENT - 1))
    assert await streamed(world, SEGMENT + 300, 2 * SEGMENT, answer=answer) == DATA[SEGMENT + 300 : 2 * SEGMENT]
    assert world.origin.asked(A)[1:] == [(SEGMENT, 2 * SEGMENT - 1), (SEGMENT + 1000, 2 * SEGMENT - 1)]


async def test_of_an_answer_that_brings_more_the_rest_is_left(world: World) -> None:
    """It was asked for by another reader, who wanted more: nobody has lied."""
    await known(world)
    answer = await answered(world, ByteRange(SEGMENT, 2 * SEGMENT - 1))
    assert await streamed(world, SEGMENT, SEGMENT + 100, answer=answer) == DATA[SEGMENT : SEGMENT + 100]
    assert (len(world.origin.asked(A)), world.of(FetchRetried), world.origin.open) == (2, [], 0)


async def test_a_stream_that_is_left_holds_nothing(world: World) -> None:
    """Neither a slot nor a connection."""
    await known(world)
    async with aclosing(stream(world, SEGMENT, 3 * SEGMENT)) as pieces:
        await anext(pieces)
        assert (world.origin.open, world.limiters.of("https://o").in_flight) == (1, 1)
    assert (world.origin.open, world.limiters.of("https://o").in_flight) == (0, 0)


async def test_what_is_passed_through_holds_no_place(world: World) -> None:
    """It goes at the pace of its reader; and little of it waits here."""
    await known(world)
    narrowed = list[int]()
    answer = await answered(world, ByteRange(SEGMENT, 2 * SEGMENT - 1))
    answer.body = replace(answer.body, narrow=narrowed.append)
    async with aclosing(stream(world, SEGMENT, 2 * SEGMENT, answer=answer, alone=True)) as pieces:
        await anext(pieces)
        assert (world.origin.open, world.limiters.of("https://o").in_flight, narrowed) == (1, 0, [ALONE_BYTES])


async def test_all_that_came_before_a_broken_end_is_enough(world: World) -> None:
    """Nothing is missing, so nobody waits or asks again."""
    (await known(world)).fail(after=SEGMENT)
    assert await streamed(world, SEGMENT, 2 * SEGMENT) == DATA[SEGMENT : 2 * SEGMENT]
    assert (world.clock.slept, world.origin.asked(A)[1:]) == ([], [(SEGMENT, 2 * SEGMENT - 1)])


@pytest.mark.parametrize("need", [0.0, AHEAD + 1])
async def test_what_comes_is_counted_by_who_wanted_it(world: World, need: float) -> None:
    await known(world)
    await streamed(world, SEGMENT, 2 * SEGMENT, need=Urgency(need))
    kind = "prefetch" if need else "demand"
    assert {fact.kind for fact in world.of(OriginBytes)} == {kind}
    assert sum(fact.count for fact in world.of(OriginBytes)) == SEGMENT


@pytest.mark.parametrize(("company", "rate"), [(0, LEAST_BYTES / 2), (5, None)])
async def test_the_pace_of_a_whole_body_is_measured(tmp_path: Path, company: int, rate: float | None) -> None:
    """From its head to its last byte, unless it had much company."""
    async with building(tmp_path / "c", segment_bytes=LEAST_BYTES) as world:
        gate = world.origin.put(A, data_of(LEAST_BYTES)).hold(1000)
        limiter = world.limiters.of("https://o")
        reading = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        limiter.in_flight += company
        world.clock.advance(2.0)
        gate.open()
        await reading
        limiter.in_flight -= company
        assert limiter.connection_rate.connection_bytes_s == rate


async def test_what_is_left_of_a_body_is_not_left_to_the_collector(world: World) -> None:
    """A whole body where a range was asked for is left in its middle: what took its bytes has ended when its stream has."""
    begun, hooks = list[AsyncGenerator[Any, Any]](), sys.get_asyncgen_hooks()
    (await known(world)).ranged = False
    sys.set_asyncgen_hooks(firstiter=begun.append)  # the list keeps them: nothing is collected here
    try:
        await streamed(world, SEGMENT, 2 * SEGMENT)
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert "Fetcher._needed" in {generator.__qualname__ for generator in begun}
    assert not [generator for generator in begun if generator.ag_frame is not None]


# Which answers are about the version


async def no_bytes() -> AsyncIterator[bytes]:
    return
    yield b""


def version(identity: str = "etag:v1", length: int | None = 100, encoding: str = "") -> Version:
    return Version(identity, Pin(), length, encoding)


def checked(mine: Version, theirs: Version, *, ranged: bool = True) -> None:
    entry = Entry("k" * 64, shard_of(A), mine, DEFAULT_LAYOUT, ranged=True)
    check(entry, OriginBody(theirs, 10 if ranged else 0, 10, ranged, True, no_bytes()), ByteRange(10, 19))


@pytest.mark.parametrize(
    ("mine", "theirs", "error"),
    [
        (version(), version(), None),
        (version(), version(length=None), None),  # Content-Range with a star: a length that is not said is no contradiction
        (version(length=None), version(), None),
        (version(""), version(""), None),
        (version(), version("etag:v2"), ShardChanged),
        (version(""), version("etag:v1"), ShardChanged),
        (version(""), version("", length=99), ShardChanged),  # all there is to tell two nameless ones apart
        (version(""), version("", encoding="gzip"), ShardChanged),
        (version(), version(length=99), OriginLied),  # the same name for something else
        (version(), version(encoding="gzip"), OriginLied),
        (version(), version("etag:v2", encoding="gzip"), OriginLied),
        (version(), version(""), OriginLied),
    ],
)
def test_bytes_of_two_versions_never_meet(mine: Version, theirs: Version, error: type[ShardError] | None) -> None:
    """A lie is about what we hold: if the origin insists, the shard is opened anew."""
    with pytest.raises(error) if error is not None else nullcontext() as raised:
        checked(mine, theirs)
    assert error is not OriginLied or (raised is not None and raised.value.of_version)


def test_a_whole_body_needs_a_length_to_be_the_same() -> None:
    """Then what is needed is taken of it."""
    checked(version(), version(), ranged=False)
    with pytest.raises(OriginLied):
        checked(version(), version(length=None), ranged=False)


@pytest.mark.parametrize("change", [{"encoding": "gzip"}, {"data": DATA + b"more"}], ids=lambda change: next(iter(change)))
async def test_another_length_under_the_same_name_is_a_lie(world: World, change: dict[str, Any]) -> None:
    """If the origin insists, what we hold is not what it has, and the next opening finds what it is."""
    remote = await known(world)
    vars(remote).update(change)
    with pytest.raises(ShardChanged):
        await world.get(A, first=SEGMENT, last=SEGMENT + 9)
    await world.quiet()
    assert len(world.origin.asked(A)) - 1 >= LIES
    assert await world.get(A) == remote.data


async def test_a_nameless_shard_of_another_length_is_another(world: World) -> None:
    """Its body broke before the first byte; what is answered then begins alike, and would have been taken for it, cut to size."""
    world.origin.put(A, data_of(1000), identity=False, ranged=False).fail(after=0)
    longer = data_of(1100, 5)
    world.events.listen(lambda fact: isinstance(fact, FetchRetried) and world.origin.put(A, longer, identity=False, ranged=False) and None)
    with pytest.raises(ShardChanged):
        await world.get(A)
    assert await world.get(A) == longer


async def test_the_rest_of_a_nameless_body_is_not_asked_for(world: World) -> None:
    """Nothing would tell it from another version's."""
    world.origin.put(A, DATA, identity=False, ranged=False).fail(after=1000)
    with pytest.raises(VersionLost, match="connection reset, and the origin names no version"):
        await world.get(A)


async def test_a_416_within_a_version_is_another_version(world: World) -> None:
    """It is not asked again; the next opening finds what is there now."""
    (await known(world)).fail(lambda name: RangeNotSatisfiable(name, "416", length=0))
    with pytest.raises(ShardChanged, match="beyond its end"):
        await world.get(A, first=SEGMENT, last=SEGMENT + 9)
    assert world.clock.slept == []
    assert await world.get(A) == DATA


@pytest.mark.parametrize("count", [2, 3])
async def test_a_shard_of_several_backends_is_read_whole(world: World, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every one, from the first on; said once."""
    caplog.set_level(logging.WARNING, "forebay")
    etags = tuple(f'"b{number}"' for number in range(count))
    for number in range(12):
        name = f"https://o/set/{number}.tar"
        world.origin.put(name, data_of(6 * SEGMENT, number), backends=etags, chance=random.Random(number))
        assert await world.get(name, reader()) == data_of(6 * SEGMENT, number)
    assert all(world.origin.sent_twice(f"https://o/set/{number}.tar") == 0 for number in range(12))
    told = [record.getMessage()[:16] for record in caplog.records if "not a tar" not in record.getMessage()]  # which the shards are not
    assert told == ["origin https://o"]


async def test_a_replaced_shard_is_told_after_a_few_questions(world: World) -> None:
    """The first reader's is over; the next reads the new one."""
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


# Bodies that begin too soon, or go on too long


async def test_a_range_answered_with_the_whole_is_used(world: World) -> None:
    """Of the same version and length: what came before is passed over, what lies beyond is left; and it is counted."""
    remote = await known(world)
    remote.ranged = False
    assert await streamed(world, SEGMENT + 5, SEGMENT + 10) == DATA[SEGMENT + 5 : SEGMENT + 10]
    assert world.origin.log[-1].sent <= SEGMENT + 10 + remote.chunk_bytes
    assert [fact.kind for fact in world.of(OriginOddity)] == ["whole-for-range"]
    assert await world.get(A) == DATA


async def test_a_whole_body_resumes_where_the_range_broke(world: World) -> None:
    """In the middle of a segment too."""
    remote = await known(world)
    remote.fail(after=1000)
    gate = remote.hold(SEGMENT + 1000)
    streaming = asyncio.create_task(streamed(world, SEGMENT, 2 * SEGMENT))
    await gate.reached.wait()
    remote.ranged = False
    gate.open()
    assert await streaming == DATA[SEGMENT : 2 * SEGMENT]


async def test_a_whole_body_of_unknown_length_is_not(world: World) -> None:
    """Nothing says that it is the same: asked three times, and then the shard is opened anew."""
    remote = await known(world)
    remote.ranged = remote.length_known = False
    with pytest.raises(ShardChanged, match="unknown length"):
        await world.get(A, first=SEGMENT)
    assert await world.get(A) == DATA


@pytest.mark.parametrize("chunk_bytes", [5000, 2 * SEGMENT])
async def test_more_bytes_than_were_promised_are_an_error(tmp_path: Path, chunk_bytes: int) -> None:
    """A body longer than its head says is not what was asked for, and nothing of the surplus is given."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        await known(world)
        answer = await answered(world, ByteRange(SEGMENT, SEGMENT + 99))
        answer.body = replace(answer.body, length=50)
        with pytest.raises(OriginLied, match="more bytes"):
            await anext(stream(world, SEGMENT, SEGMENT + 50, answer=answer))
        world.origin.put(B, DATA, ranged=False, claimed_length=SEGMENT + 100, chunk_bytes=chunk_bytes)
        with pytest.raises(OriginError, match="more bytes"):
            await world.get(B)


async def test_what_comes_after_all_that_was_promised_is_left(world: World) -> None:
    world.origin.put(A, DATA, ranged=False, claimed_length=SEGMENT)
    assert await world.get(A) == DATA[:SEGMENT]


@pytest.mark.parametrize("after", [None, 700, 1536, SEGMENT + 77])
async def test_a_close_delimited_tar_is_whole_with_its_end(world: World, after: int | None) -> None:
    """Also where its body was resumed, wherever that was."""
    data = tar_of(300, 2 * SEGMENT, 10)
    remote = world.origin.put(A, data, ranged=False, length_known=False, framed=False)
    if after is not None:
        remote.fail(after=after)
    assert await world.get(A) == data


async def test_a_body_of_unknown_length_that_is_framed_ends_where_it_ends(world: World) -> None:
    """No tar need be in it; a part of it is given without reading the rest."""
    world.origin.put(A, DATA, ranged=False, length_known=False)
    assert await world.get(A) == DATA
    assert await world.get(A, first=5, last=SEGMENT) == DATA[5 : SEGMENT + 1]
    assert world.origin.log[-1].sent < 2 * SEGMENT


@pytest.mark.parametrize("cut", [1024, 2048, 40_960])
async def test_a_close_delimited_tar_that_is_cut_is_an_error(world: World, cut: int) -> None:
    """At a member's boundary, or in the middle of a thousand zeros. The same end twice is the origin's own: nobody asks again."""
    world.origin.put(A, tar_of(512, 100_000)[:cut], ranged=False, length_known=False, framed=False)
    with pytest.raises(TruncatedShard):
        await world.get(A)
    await world.quiet()
    assert len(world.origin.asked(A)) == 2


# When to ask again


async def test_retries_are_told(world: World) -> None:
    """With their reason, and whether bytes were kept."""
    remote = world.origin.put(A, data_of(100))
    remote.fail(lambda name: OriginUnavailable(name, "503", throttled=True))
    remote.fail(lambda name: OriginTimeout(name, "slow"), after=50)
    await world.get(A)
    assert [(fact.reason, fact.resumed) for fact in world.of(FetchRetried)] == [("throttled", False), ("timeout", True)]


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


async def test_an_origin_that_pushes_back_is_asked_less(world: World) -> None:
    """Its limiter halves."""
    world.origin.put(A, data_of(100)).fail(lambda name: OriginUnavailable(name, "429", throttled=True))
    await world.get(A)
    assert world.limiters.of("https://o").slots < START_SLOTS


def forbidden(name: str) -> ShardError:
    return ShardForbidden(name, "403")


def busy(name: str) -> ShardError:
    return OriginUnavailable(name, "503", answered=True, throttled=True)


@pytest.mark.parametrize(
    ("before", "error", "least_s", "most_s"),
    [
        (None, None, 0, UNANSWERED_BUDGET_S),  # never answered: more likely a wrong name than one in trouble
        (forbidden, None, 200, 300),  # a refusal is an answer too
        (None, busy, 200, 300),  # and so is this very one
    ],
)
async def test_the_budget_of_an_origin_is_full_once_it_has_answered(
    world: World, before: Any, error: Any, least_s: float, most_s: float
) -> None:
    remote = world.origin.put(A, data_of(100))
    if before is not None:
        remote.fail(before)
        with pytest.raises(ShardForbidden):
            await world.get(A)
        world.clock.advance(60)
    remote.fail(*filter(None, [error]), times=10_000)
    start = world.clock.now
    with pytest.raises(OriginUnavailable):
        await world.get(A)
    assert least_s <= world.clock.now - start <= most_s


async def test_few_hosts_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may name any number of them; those that answered last are known."""
    monkeypatch.setattr(fetcher, "MOST_ANSWERED", 2)
    for number, host in enumerate("abac"):
        world.origin.put(f"https://{host}/set/a.tar", data_of(100))
        await world.get(f"https://{host}/set/a.tar", reader(job=f"{number}"))
    assert list(world.fetcher._answered) == ["https://a", "https://c"]


async def test_what_repeating_cannot_help_is_not_repeated(world: World) -> None:
    """The error goes to the reader at once."""
    world.origin.put(A, data_of(2 * SEGMENT)).fail(lambda name: OriginError(name, "nonsense"), after=100)
    with pytest.raises(OriginError):
        await world.get(A)
    assert world.clock.slept == []


async def test_nobody_waits_and_soon_nobody_asks(world: World) -> None:
    """A reader who left an origin in trouble does not leave five minutes of questions behind."""
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


async def test_a_name_that_does_not_exist_is_told_at_once(world: World) -> None:
    """As long as the host has not answered; afterwards it is the resolver that is in trouble, and asked again."""
    world.origin.put(A, data_of(100)).fail(lambda name: OriginUnavailable(name, "no such host", hopeless=True))
    with pytest.raises(OriginUnavailable):
        await world.get(A)
    assert world.clock.slept == []
    assert await world.get(A) == data_of(100)
    world.origin.put(B, data_of(200)).fail(lambda name: OriginUnavailable(name, "no such host", hopeless=True), times=3)
    assert await world.get(B) == data_of(200)


async def test_a_lie_is_asked_about_again_and_an_insisting_liar_is_not(world: World) -> None:
    """Twice it may be somebody on the way; the third time it is an error, in a second and not in minutes."""
    remote = world.origin.put(A, DATA)
    remote.fail(lambda name: OriginLied(name, "another range"), times=2)
    assert await world.get(A) == DATA
    world.origin.put(B, DATA).fail(lambda name: OriginLied(name, "another range"), times=10_000)
    start = world.clock.now
    with pytest.raises(OriginLied):
        await world.get(B)
    assert world.clock.now - start < 1.0
    await world.quiet()
    assert [fact.reason for fact in world.of(FetchRetried)] == ["wrong"] * 4


# Comparisons


async def test_a_comparison_that_is_refused_makes_us_ask_less(world: World) -> None:
    """A HEAD is a request like any other to the limiter; the stored version is served meanwhile."""
    world.origin.put(A, data_of(100))
    await world.get(A, reader(job="one"))
    world.origin.head_error = lambda name: OriginUnavailable(name, "429", throttled=True, answered=True)
    assert await world.get(A, reader(job="two")) == data_of(100)
    assert world.limiters.of("https://o").slots == START_SLOTS / 2


async def test_a_comparison_that_is_nonsense_is_made_again(world: World) -> None:
    """One garbled answer to a HEAD must not cost a reader what is stored."""
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
