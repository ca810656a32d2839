"""What a long command tells while it works."""

from __future__ import annotations

import asyncio

import pytest

from forebay_proxy.core import progress
from forebay_proxy.core.progress import Event, told_while


async def test_events_come_and_between_them_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the work has ended."""
    monkeypatch.setattr(progress, "PROGRESS_S", 0.01)
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        events.put_nowait({"event": "end"})

    told = list[object]()
    async for event in told_while(work, events, lambda: {"event": "progress"}):
        told.append(event["event"])
        gate.set()
    assert told == ["progress", "end"]


async def test_its_error_is_raised_as_it_is() -> None:
    """In no group: the command's own answer is made of it."""

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await anext(told_while(work, asyncio.Queue(), dict))


async def test_closing_it_ends_the_work() -> None:
    """A client that leaves between two events raises nothing, and leaves nothing behind."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    ended = list[str]()

    async def work() -> None:
        events.put_nowait({"event": "first"})
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("yes")

    told = told_while(work, events, dict)
    await anext(told)
    await told.aclose()  # type: ignore[attr-defined]
    assert ended == ["yes"]


async def test_one_that_is_never_begun_does_nothing() -> None:
    """Its answer could not even begin."""

    async def work() -> None:
        pytest.fail("begun")

    await told_while(work, asyncio.Queue(), dict).aclose()  # type: ignore[attr-defined]
