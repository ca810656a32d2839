"""Running the person's command as if Forebay were not there: same streams, same signals, same exit code.

Signals are waited for (``sigtimedwait``), not handled: the kernel then says who sent each one. One from the terminal has reached the
command already, since both are in the foreground group; sending it again would turn one Ctrl-C into two. All others are passed on.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from forebay_proxy.core.exit_codes import by_signal

__all__ = ["run_command"]

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TICK_S = 20.0  # servers close connections that idle for a minute


def run_command(arguments: Sequence[str], environ: Mapping[str, str], tick: Callable[[], object]) -> int:
    """Run the command to its end and return its exit code, 128 + n if signal n ended the process. ``tick`` is called every 20 s.

    Raises ``OSError`` when it cannot be started.
    """
    with _recorded_signals() as early:
        child = subprocess.Popen(list(arguments), env=dict(environ))  # noqa: S603  # the person's own command; no shell is involved
        waited_for = (*_passed_on(), signal.SIGCHLD)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
        try:
            # From here on signals queue up for sigtimedwait; those that came while the command started were recorded.
            for number in early:
                child.send_signal(number)
            _until_end(child, waited_for, tick)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else by_signal(-child.returncode)


def _until_end(child: subprocess.Popen[bytes], waited_for: Sequence[signal.Signals], tick: Callable[[], object]) -> None:
    while child.poll() is None:
        received = signal.sigtimedwait(waited_for, _TICK_S)
        if received is None:
            tick()
        elif received.si_signo != signal.SIGCHLD and not _from_terminal(received):
            child.send_signal(received.si_signo)


def _from_terminal(received: signal.struct_siginfo) -> bool:
    return received.si_code > 0  # SI_KERNEL; what processes send with kill(2) or sigqueue(3) is 0 or below


def _passed_on() -> tuple[signal.Signals, ...]:
    """All but what our caller had us ignore (nohup): the command inherits that, and must keep it."""
    return tuple(number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN)


@contextmanager
def _recorded_signals() -> Iterator[list[int]]:
    """Collect signals instead of dying of them. Handlers, unlike a blocked mask, are not inherited by the command."""
    caught: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            caught.append(number)

    before = {number: signal.signal(number, record) for number in (*_passed_on(), signal.SIGCHLD)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
