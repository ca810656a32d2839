"""Running fetches, single: who subscribes, who leaves, who hears of the end; and whose an opening's answer is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from forebay_proxy.core.errors import CacheFull, ForebayError
from forebay_proxy.core.shard import Pin, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer import fetches as module
from forebay_proxy.transfer.fetches import WHOLE, Answer, Fetch, FetchTable
from forebay_proxy.transfer.limiter import Slot


@pytest.fixture
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as made:
        yield made


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def running(table: FetchTable, way: Any, key: str = "k", index: int = 0, end: int = 10) -> Fetch:
    """A fetch that runs ``way``, as ``SegmentFetches`` does: it takes itself off the table."""
    fetch = Fetch(0, end, 0.0)

    async def run() -> None:
        error: BaseException | None = None
        try:
            await way
        except BaseException as failed:
            error = module.error_for_subscribers(failed)
            raise
        finally:
            table.remove(key, index, fetch, error)

    table.add(key, index, fetch)
    table.start(key, index, run())
    return fetch


async def fail(gate: asyncio.Event, error: Exception) -> None:
    await gate.wait()
    raise error


async def test_subscribers_read_what_is_below_the_watermark() -> None:
    """And hear of the end, or of a fetch that ended before their byte."""
    fetch = Fetch(0, 10, 0.0)
    waiting = asyncio.create_task(fetch.grown_beyond(3))
    for position in (3, 4):
        await turns()
        assert not waiting.done()
        fetch.advanced(position)
    assert await waiting
    fetch.ended()
    assert not await fetch.grown_beyond(4)
    assert await fetch.grown_beyond(3)


async def test_a_failed_fetch_tells_everybody() -> None:
    """The error, as one of their own."""
    fetch, error = Fetch(0, 10, 0.0), CacheFull("x")
    waiting = [asyncio.create_task(fetch.grown_beyond(0)) for _ in range(3)]
    await turns()
    fetch.ended(error)
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [(type(one), str(one)) for one in told] == [(CacheFull, "x")] * 3
    assert len({id(one) for one in (*told, error, fetch.error)}) == 5, "none grows by another's frames"


@pytest.mark.parametrize("error", [None, CacheFull("x")])
@pytest.mark.parametrize("ends_first", [True, False])
async def test_what_holds_its_bytes_goes_when_it_has_ended_and_its_last_subscriber_has_left(
    ends_first: bool, error: CacheFull | None
) -> None:
    fetch, gone = Fetch(0, 10, 0.0), list[str]()
    fetch.kept.callback(gone.append, "memory")
    with fetch.subscribed():
        with fetch.subscribed():
            pass
        if ends_first:
            fetch.ended(error)
        assert gone == []
    if not ends_first:
        assert gone == []
        fetch.ended(error)
    assert (gone, fetch.followed, fetch.subscribers) == (["memory"], True, 0)


@pytest.mark.parametrize("comes", [True, False])
async def test_somebody_is_waited_for_for_a_moment(monkeypatch: pytest.MonkeyPatch, comes: bool) -> None:
    monkeypatch.setattr(module, "SUBSCRIBE_S", 60 if comes else 0.01)
    fetch = Fetch(0, 10, 0.0)
    waiting = asyncio.create_task(fetch.first_subscriber())
    await turns()
    assert not waiting.done()
    if comes:
        with fetch.subscribed():
            pass
    await waiting


# The table


async def test_a_failed_fetch_is_off_the_table_before_anybody_wakes(group: asyncio.TaskGroup) -> None:
    """A newcomer never follows a dying one."""
    table, gate, found = FetchTable(group), asyncio.Event(), list[Fetch | None]()

    async def follow() -> None:
        with pytest.raises(CacheFull):
            await fetch.grown_beyond(0)
        found.append(table.find("k", 0))

    fetch = running(table, fail(gate, CacheFull("x")))
    following = asyncio.create_task(follow())
    await turns()
    gate.set()
    await following
    assert found == [None]


async def test_a_whole_shards_fetch_brings_each_segment(group: asyncio.TaskGroup) -> None:
    """The end of an older one takes nothing of a newer one away."""
    table, one, two = FetchTable(group), Fetch(0, 10, 0.0), Fetch(0, 10, 0.0)
    table.add("k", WHOLE, one)
    assert (table.find("k", 0), table.find("k", 7), table.find("l", 0)) == (one, one, None)
    table.add("k", WHOLE, two)
    table.remove("k", WHOLE, one)
    assert (table.find("k", 3), table.all(), len(table)) == (two, [two], 1)


async def test_an_unexpected_fault_reaches_those_who_wait(group: asyncio.TaskGroup, caplog: pytest.LogCaptureFixture) -> None:
    """And the log; it takes nothing else down."""
    gate = asyncio.Event()
    gate.set()
    with pytest.raises(ZeroDivisionError):
        await running(FetchTable(group), fail(gate, ZeroDivisionError())).grown_beyond(0)
    await turns()
    assert "a fetch failed unexpectedly" in caplog.text


@pytest.mark.parametrize("begun", [True, False])
async def test_shutdown_ends_every_fetch(begun: bool) -> None:
    """Those that run, those before their first step, those that come after: all run their ``finally``, and all are told."""
    async with asyncio.TaskGroup() as group:
        table = FetchTable(group)
        one = running(table, asyncio.Event().wait())
        if begun:
            await turns()
        table.cancel()
        two = running(table, asyncio.Event().wait(), index=1)
    for fetch in (one, two):
        with pytest.raises(ForebayError, match="shutting down"):
            await fetch.grown_beyond(0)
    assert table.all() == []


async def test_a_drain_drops_what_is_not_wanted(group: asyncio.TaskGroup) -> None:
    """At the very end everything."""
    table, gate = FetchTable(group), asyncio.Event()
    wanted, other = (running(table, gate.wait(), key, end=3) for key in ("wanted", "other"))
    table.drop(lambda key: key == "wanted")
    await turns()
    assert [fetch.done for fetch in (wanted, other)] == [False, True]
    table.cancel()
    await turns()
    assert table.all() == []


# An opening's answer


def answer(closed: list[str], *, first: int = 100, length: int | None = 50, ranged: bool = True) -> Answer:
    held = AsyncExitStack()
    held.callback(closed.append, "closed")
    body = OriginBody(Version("etag:1", Pin(), None), first, length, ranged, True, cast(Any, None))
    return Answer(body, cast(Slot, "slot"), held)


@pytest.mark.parametrize(
    ("kind", "first", "end", "covers"),
    [
        ({}, 100, 150, True),
        ({}, 120, 121, True),
        ({}, 99, 150, False),
        ({}, 100, 151, False),
        ({}, 100, None, False),
        ({"length": None}, 100, 150, False),
        ({"first": 0, "ranged": False, "length": None}, 7, None, True),
        ({"first": 0, "ranged": False}, 7, 5000, True),  # it goes to the shard's end, whatever was promised
    ],
)
async def test_an_answer_is_claimed_once_by_whom_it_covers(kind: dict[str, Any], first: int, end: int | None, covers: bool) -> None:
    """Then it is nobody else's, and its opening goes on; who has claimed it closes it."""
    closed = list[str]()
    one = answer(closed, **kind)
    waiting = asyncio.create_task(one.claimed())
    await turns()
    assert one.claim(first, end) == covers
    assert not one.claim(first, end)
    await turns()
    assert waiting.done() == covers
    if covers:
        await one.drop()
        assert closed == []
        async with one.taken() as (body, slot):
            assert (body, slot) == (one.body, "slot")
    waiting.cancel()
    await one.drop()
    assert closed == ["closed"]


async def test_an_answer_that_was_dropped_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment in which nobody came."""
    monkeypatch.setattr(module, "SUBSCRIBE_S", 0.01)
    closed = list[str]()
    one = answer(closed)
    await one.claimed()
    await one.drop()
    assert (closed, one.claim(100, 150)) == (["closed"], False)
