"""How a sidecar's life ends: what signals ask for, and a deadline that no hung disk outlasts.

The first SIGTERM, SIGINT or SIGHUP drains: nothing new begins, answers that have begun may end. A second one cuts those too; a third one
ends the process at once. (SIGHUP is a terminal that closed; under ``nohup`` it is ignored and stays so. Settings are never read again.)

The deadline is a thread, because what must be outlasted is a loop that waits for the disk, or stands in a system call of its own. It
ends the process with ``os._exit``: no thread is joined. That is safe, since a kill at any instant is; only the exit code tells.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from forebay_proxy.core.exit_codes import ExitCode

__all__ = ["CLOSE_S", "Deadline", "Shutdown"]

log = logging.getLogger("forebay")

# After the drain: the last commit, punching and closing. With the default drain of 20 s it ends before Kubernetes and Slurm kill (30 s).
CLOSE_S = 8.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Deadline:
    """Ends this process ``seconds`` after the last ``set``. A signal handler may call ``set``: it takes no lock and starts no thread."""

    def __init__(self, end: Callable[[int], object] = os._exit, clock: Callable[[], float] = time.monotonic) -> None:
        self._end = end
        self._clock = clock
        self._at: float | None = None
        self._code, self._why = int(ExitCode.FORCED), ""
        self._closed = False
        self._wake, self._poke = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="forebay-deadline", daemon=True)
        self._thread.start()

    def set(self, seconds: float, code: int, why: str) -> None:
        """From now on in ``seconds``, with ``code``, after writing ``why`` to stderr ("": nothing)."""
        self._code, self._why, self._at = code, why, self._clock() + seconds
        os.write(self._poke, b".")

    def close(self) -> None:
        """Ends nothing any more."""
        self._closed = True
        os.write(self._poke, b".")
        self._thread.join()
        os.close(self._wake)
        os.close(self._poke)

    def _watch(self) -> None:
        while not self._closed:
            left_s = None if self._at is None else self._at - self._clock()
            if left_s is not None and left_s <= 0:
                self._strike()
                return
            if select.select([self._wake], [], [], left_s)[0]:
                os.read(self._wake, 64)

    def _strike(self) -> None:
        with suppress(OSError):
            if self._why:
                os.write(2, f"forebay: {self._why}\n".encode())
        self._end(self._code)


class Shutdown:
    """Why and how fast this sidecar ends. ``asked``: drain; ``hurried``: cut what still runs; ``code``: what the process returns."""

    def __init__(self, drain_timeout_s: float, *, deadline: Deadline | None = None, asked: asyncio.Event | None = None) -> None:
        self.asked = asked or asyncio.Event()
        self.hurried = asyncio.Event()
        self.code = ExitCode.DONE
        self._drain_timeout_s = drain_timeout_s
        self._deadline = deadline
        self._count = 0

    def __repr__(self) -> str:
        return f"<Shutdown {'hurried' if self.hurried.is_set() else 'asked' if self.asked.is_set() else 'not yet'}, code {int(self.code)}>"

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen to signals for the length of the ``with``; nothing happens outside the main thread (tests, notebooks)."""
        loop = asyncio.get_running_loop()
        before = {}
        with suppress(ValueError, RuntimeError):
            for number in _SIGNALS:
                if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                    loop.add_signal_handler(number, self._heard)  # wakes the loop
                    # In its place but still waking the loop: ours runs even while the loop stands in a system call on the disk.
                    signal.signal(number, self._signalled)
                    before[number] = handler
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def began(self) -> None:
        """The end has begun, for whatever reason."""
        self._limit(self._drain_timeout_s + CLOSE_S)

    def fault(self, what: str) -> None:
        """A part of the sidecar cannot go on: end in good order, and say so with the exit code."""
        log.error("%s; ending with exit code %d", what, ExitCode.FAULT)
        self.code = ExitCode.FAULT
        self.asked.set()

    def over(self) -> None:
        """Everything of ours is closed: threads that still wait for an origin or a name server keep nobody any more."""
        if self._deadline is not None:
            self._deadline.set(1.0, self.code, "")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between any two steps of it: only what needs no lock."""
        self._count += 1
        if self._count == 1:
            self._limit(self._drain_timeout_s + CLOSE_S)
        elif self._count == 2:
            self._limit(CLOSE_S)
        elif self._deadline is not None:
            self._deadline.set(0.0, ExitCode.FORCED, "ended by a third signal")

    def _heard(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()

    def _limit(self, seconds: float) -> None:
        if self._deadline is not None:
            why = f"the end still hung after {seconds:g} s (a disk that does not answer?): forced; what was claimed is kept"
            self._deadline.set(seconds, ExitCode.FORCED, why)
