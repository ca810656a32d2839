"""Work nobody waits for, and the waking of those who wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest

from forebay_proxy.core import tasks as chores_module
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.tasks import BackgroundTasks, Broadcast, Event, kept, to_its_end, told_while

pytestmark = pytest.mark.each_python


async def test_a_failure_is_logged_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """One of ours with a line, an unexpected one with its traceback."""

    async def fail(error: Exception) -> None:
        raise error

    with caplog.at_level(logging.WARNING, "forebay"):
        async with asyncio.TaskGroup() as group:
            tasks = BackgroundTasks(group)
            tasks.spawn(fail(CacheFull("full")), "one")
            tasks.spawn(fail(ZeroDivisionError()), "two")
            assert len(tasks) == 2
            await tasks.idle()
            assert len(tasks) == 0
    assert [record.message for record in caplog.records] == ["one: full", "two failed unexpectedly"]


async def test_idle_waits_for_chores_of_chores() -> None:
    """Until nothing is left."""
    done = []
    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)

        async def last() -> None:
            await asyncio.sleep(0)
            done.append(1)

        async def first() -> None:
            await asyncio.sleep(0)
            tasks.spawn(last(), "last")

        tasks.spawn(first(), "first")
        await tasks.idle()
        assert done == [1]


async def test_a_group_that_comes_down_takes_no_more() -> None:
    """And nobody is told twice of the same fault."""

    async def come_down() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = BackgroundTasks(group)

            async def late() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    tasks.spawn(asyncio.sleep(0), "late")

            group.create_task(late())
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        await come_down()
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]


async def test_what_was_begun_is_ended_though_cancelled() -> None:
    """However often; the cancellation is raised afterwards."""
    gate, ended = asyncio.Event(), []

    async def work() -> int:
        await gate.wait()
        ended.append(1)
        return 7

    task = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1]
    assert await to_its_end(work()) == 7


async def test_work_that_comes_in_time_is_the_callers() -> None:
    """Its result, or its error."""

    async def fail() -> None:
        raise CacheFull("no")

    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)
        assert await tasks.within(5, asyncio.sleep(0, "done"), "work", pytest.fail) == "done"
        with pytest.raises(CacheFull):
            await tasks.within(5, fail(), "work", pytest.fail)


async def test_work_that_is_late_goes_on_without_the_caller() -> None:
    """What it brings goes to whoever can give it back; its error, to nobody."""
    gate, brought = asyncio.Event(), list[str]()

    async def work(fails: bool) -> str:
        await gate.wait()
        if fails:
            raise CacheFull("no")
        return "done"

    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)
        for fails in (False, True):
            with pytest.raises(TimeoutError):
                await tasks.within(0.01, work(fails), "work", brought.append)
        assert len(tasks) == 2
        gate.set()
        await tasks.idle()
    assert brought == ["done"]


async def test_a_cancelled_caller_ends_the_work() -> None:
    """If it can be ended: what it brings all the same goes to ``late``."""
    ended, brought = list[str](), list[str]()

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")
        return "never"

    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done"

    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)
        for what in (work(), stubborn()):
            task = asyncio.create_task(tasks.within(5, what, "work", brought.append))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert (ended, brought) == (["yes"], ["done"])


async def test_a_second_cancellation_loses_nothing() -> None:
    """A shutdown cancels again who waits for the end of what it began: what that brings is still given back."""
    gate, brought = asyncio.Event(), list[str]()

    async def stubborn() -> str:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
        return "done"

    async with asyncio.TaskGroup() as group:
        tasks = BackgroundTasks(group)
        caller = asyncio.create_task(tasks.within(5, stubborn(), "work", brought.append))
        await asyncio.sleep(0)
        for _ in range(2):
            caller.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.set()
        await tasks.idle()
    assert brought == ["done"]


class Faulty:
    """Fails so many times, then waits for ever."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left, self.begun = times, 0
        self._error = error or ZeroDivisionError("https://host/?token=secret")

    async def __call__(self) -> None:
        self.begun += 1
        if self.left:
            self.left -= 1
            raise self._error
        await asyncio.Event().wait()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chores_module, "AGAIN_S", 0.0)


async def turned(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.usefixtures("at_once")
async def test_a_background_task_is_begun_again_after_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """And goes on; the log has where, and no message, since that may hold a URL."""
    work, given_up = Faulty(2), list[str]()
    task = asyncio.create_task(kept("prefetch", work, given_up.append))
    await turned(lambda: work.begun == 3)
    assert given_up == []
    assert [record.message.splitlines()[0] for record in caplog.records] == ["prefetch failed: ZeroDivisionError"] * 2
    assert "secret" not in caplog.text
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("at_once")
async def test_one_that_fails_again_and_again_is_given_up() -> None:
    """Once, and it ends."""
    work, given_up = Faulty(9), list[str]()
    await asyncio.wait_for(kept("tick", work, given_up.append), 60)
    assert (work.begun, len(given_up)) == (3, 1)
    assert "tick failed 3 times within" in given_up[0]


@pytest.mark.usefixtures("at_once")
async def test_a_fault_now_and_then_is_none_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those within a minute count."""
    monkeypatch.setattr(chores_module, "FAULTS_WITHIN_S", 0.0)
    work, given_up = Faulty(9), list[str]()
    task = asyncio.create_task(kept("tick", work, given_up.append))
    await turned(lambda: work.begun == 10)
    assert given_up == []
    task.cancel()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_signal_wakes_those_who_wait_now() -> None:
    """Who comes later waits for the next; who was cancelled is not counted."""
    signal = Broadcast()
    first, gone = asyncio.create_task(signal.wait()), asyncio.create_task(signal.wait())
    await turns()
    gone.cancel()
    await turns()
    assert len(signal) == 1
    signal.send()
    await first
    late = asyncio.create_task(signal.wait())
    await turns()
    assert not late.done()
    signal.send()
    await late


async def test_events_come_and_between_them_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the work has ended."""
    monkeypatch.setattr(chores_module, "PROGRESS_S", 0.01)
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
