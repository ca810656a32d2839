"""A call in a pool never outlives its waiter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from forebay_proxy.store.files.thread_pools import Overdue, Pool, Pools


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool("test", 1)
    yield pool
    await pool.aclose()


class Gate:
    """A call that says when it runs and ends when it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.entered.set()
        assert self.leave.wait(60)
        self.ended = True
        return "done"

    async def running(self, pool: Pool) -> asyncio.Task[str]:
        task = asyncio.create_task(pool.run(self))
        await asyncio.get_running_loop().run_in_executor(None, self.entered.wait, 30)
        return task


async def test_returns_what_the_call_returns(pool: Pool) -> None:
    """Arguments go in, the result or the error comes out, and the work was done elsewhere."""
    name, total = await pool.run(lambda a, b: (threading.current_thread().name, a + b), 1, 2)
    assert name.startswith("forebay-test")
    assert total == 3
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)


async def test_a_call_that_has_not_begun_is_taken_back(pool: Pool) -> None:
    """Cancelled in the queue: it never runs."""
    first, second = Gate(), Gate()
    running = await first.running(pool)
    queued = asyncio.create_task(pool.run(second))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    first.leave.set()
    assert await running == "done"
    assert not second.entered.is_set()


async def test_a_running_call_is_waited_for(pool: Pool) -> None:
    """Cancelled while the thread works, however often: the waiter returns only after the thread is done with its arguments."""
    gate = Gate()
    task = await gate.running(pool)
    for _ in range(3):
        task.cancel()
        await asyncio.wait([task], timeout=0.01)
        assert not task.done()
    gate.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.ended


async def test_undo_gets_the_result_nobody_sees(pool: Pool) -> None:
    """What a cancelled caller would have had to close is handed to ``undo``."""
    gate = Gate()
    undone: list[str] = []
    task = asyncio.create_task(pool.run(gate, undo=undone.append))
    await asyncio.get_running_loop().run_in_executor(None, gate.entered.wait, 30)
    task.cancel()
    gate.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["done"]


async def test_an_error_after_cancellation_is_dropped(pool: Pool) -> None:
    """The caller hears CancelledError; the failed call leaves no unheard exception behind."""
    gate = Gate()
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))

    def fail() -> None:
        gate()
        raise OSError

    task = asyncio.create_task(pool.run(fail))
    await asyncio.get_running_loop().run_in_executor(None, gate.entered.wait, 30)
    task.cancel()
    gate.leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert unheard == []


async def test_aclose_waits_for_what_runs() -> None:
    """No thread is left at work behind a closed pool."""
    pool, gate = Pool("test", 1), Gate()
    task = await gate.running(pool)
    closing = asyncio.create_task(pool.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.leave.set()
    await closing
    assert gate.ended
    assert await task == "done"


async def test_a_busy_pool_does_not_delay_another() -> None:
    """Reads go on while every write thread is stuck."""
    pools = Pools.start()
    gates = [Gate() for _ in range(4)]
    stuck = [await gate.running(pools.writes) for gate in gates]
    assert await pools.reads.run(len, "abc") == 3
    for gate in gates:
        gate.leave.set()
    await asyncio.gather(*stuck)
    await pools.aclose()


async def test_a_caller_with_patience_goes_on(pool: Pool) -> None:
    """The call runs on; whoever owns what it touches is handed it, and ``undo`` gets its result when it comes."""
    gate = Gate()
    undone: list[str] = []
    late: list[asyncio.Future[str]] = []
    with pytest.raises(Overdue, match="no answer within"):
        await pool.run(gate, undo=undone.append, patience_s=0.05, late=late.append)
    assert (len(late), late[0].done(), undone) == (1, False, [])
    gate.leave.set()
    await asyncio.wait(late)
    assert (undone, late[0].result()) == (["done"], "done")


async def test_patience_covers_the_queue_and_takes_the_call_back(pool: Pool) -> None:
    """What has not begun never runs, so nobody has to keep anything for it."""
    first, second = Gate(), Gate()
    running = await first.running(pool)
    late: list[asyncio.Future[str]] = []
    with pytest.raises(Overdue):
        await pool.run(second, patience_s=0.05, late=late.append)
    first.leave.set()
    assert await running == "done"
    assert not late
    assert not second.entered.is_set()


async def test_a_cancelled_caller_waits_no_longer_than_its_patience(pool: Pool) -> None:
    """A disk that hangs must not keep a sidecar from ending."""
    gate = Gate()
    late: list[asyncio.Future[str]] = []
    task = asyncio.create_task(pool.run(gate, patience_s=0.2, late=late.append))
    await asyncio.get_running_loop().run_in_executor(None, gate.entered.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(late) == 1
    gate.leave.set()
    await asyncio.wait(late)
