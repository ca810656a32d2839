"""How a life ends: what each signal asks for, and a deadline that strikes whatever hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from forebay_proxy.app.shutdown import CLOSE_S, Deadline, Shutdown
from forebay_proxy.core.exit_codes import ExitCode

pytestmark = pytest.mark.each_python


class Struck:
    """What a deadline calls instead of ``os._exit``."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.event = threading.Event()

    def __call__(self, code: int) -> None:
        self.codes.append(code)
        self.event.set()


@pytest.fixture
def struck() -> Struck:
    return Struck()


@pytest.fixture
def deadline(struck: Struck) -> Iterator[Deadline]:
    made = Deadline(struck)
    yield made
    made.close()


class Told:
    """A deadline that only notes what it is told."""

    def __init__(self) -> None:
        self.limits: list[tuple[float, int]] = []

    def set(self, seconds: float, code: int, why: str) -> None:
        self.limits.append((seconds, code))


def test_it_strikes_when_its_time_is_over(struck: Struck, deadline: Deadline, capfd: pytest.CaptureFixture[str]) -> None:
    """With the code and the reason; not before."""
    deadline.set(0.05, ExitCode.FORCED, "the disk hangs")
    assert struck.event.wait(60)
    assert struck.codes == [ExitCode.FORCED]
    assert capfd.readouterr().err == "forebay: the disk hangs\n"


def test_the_last_word_counts(struck: Struck, deadline: Deadline) -> None:
    """A second signal shortens it, an end that went well puts it off for good."""
    deadline.set(3600, ExitCode.FORCED, "late")
    deadline.set(0.0, ExitCode.DONE, "")
    assert struck.event.wait(60)
    assert struck.codes == [ExitCode.DONE]


def test_closed_it_never_strikes(struck: Struck) -> None:
    """Nor leaves a thread or a descriptor behind."""
    before = len(os.listdir("/proc/self/fd"))
    deadline = Deadline(struck)
    deadline.set(3600, ExitCode.FORCED, "")
    deadline.close()
    assert not struck.codes
    assert len(os.listdir("/proc/self/fd")) == before
    assert "forebay-deadline" not in [thread.name for thread in threading.enumerate()]


async def heard(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_the_first_signal_drains_and_the_second_hurries(number: signal.Signals) -> None:
    """Each with its own time; afterwards signals mean what they meant before."""
    before, told = signal.getsignal(number), Told()
    ending = Shutdown(20.0, deadline=told)  # type: ignore[arg-type]
    with ending.on_signals():
        os.kill(os.getpid(), number)
        await heard(ending.asked)
        assert not ending.hurried.is_set()
        os.kill(os.getpid(), number)
        await heard(ending.hurried)
        os.kill(os.getpid(), number)
        await asyncio.sleep(0)
    assert told.limits == [(20.0 + CLOSE_S, ExitCode.FORCED), (CLOSE_S, ExitCode.FORCED), (0.0, ExitCode.FORCED)]
    assert signal.getsignal(number) is before
    assert ending.code == ExitCode.DONE


async def test_what_the_caller_had_ignored_stays_ignored() -> None:
    """nohup."""
    before, told = signal.signal(signal.SIGHUP, signal.SIG_IGN), Told()
    try:
        ending = Shutdown(0.0, deadline=told)  # type: ignore[arg-type]
        with ending.on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await heard(ending.asked)
            assert (ending.hurried.is_set(), len(told.limits)) == (False, 1), "only one of them was heard"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_the_main_thread_nothing_is_listened_to() -> None:
    """A notebook's thread ends it through the event."""
    codes: list[int] = []

    async def life() -> None:
        ending = Shutdown(0.0)
        with ending.on_signals():
            ending.asked.set()
            await ending.asked.wait()
        codes.append(ending.code)

    thread = threading.Thread(target=lambda: asyncio.run(life()))
    thread.start()
    thread.join(10)
    assert codes == [ExitCode.DONE]
