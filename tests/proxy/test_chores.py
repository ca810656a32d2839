"""Work nobody waits for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from forebay_proxy.chores import Chores, to_its_end
from forebay_proxy.errors import CacheFull


async def test_a_failure_is_logged_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """One of ours with a line, an unexpected one with its traceback."""

    async def fail(error: Exception) -> None:
        raise error

    with caplog.at_level(logging.WARNING, "forebay"):
        async with asyncio.TaskGroup() as group:
            chores = Chores(group)
            chores.spawn(fail(CacheFull("full")), "one")
            chores.spawn(fail(ZeroDivisionError()), "two")
            assert len(chores) == 2
            await chores.idle()
            assert len(chores) == 0
    assert [record.message for record in caplog.records] == ["one: full", "two failed unexpectedly"]


async def test_idle_waits_for_chores_of_chores() -> None:
    """Until nothing is left."""
    done = []
    async with asyncio.TaskGroup() as group:
        chores = Chores(group)

        async def last() -> None:
            await asyncio.sleep(0)
            done.append(1)

        async def first() -> None:
            await asyncio.sleep(0)
            chores.spawn(last(), "last")

        chores.spawn(first(), "first")
        await chores.idle()
        assert done == [1]


async def test_a_group_that_comes_down_takes_no_more() -> None:
    """And nobody is told twice of the same fault."""

    async def come_down() -> None:
        async with asyncio.TaskGroup() as group:
            chores = Chores(group)

            async def late() -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    chores.spawn(asyncio.sleep(0), "late")

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


async def test_its_error_is_the_callers() -> None:
    """Unless the caller has gone: then it is logged."""

    async def work() -> None:
        raise CacheFull("no")

    with pytest.raises(CacheFull):
        await to_its_end(work())
