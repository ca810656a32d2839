"""Running the person's command as if Forebay were not there: same streams, same signals, same exit code.

Signals are waited for (``sigtimedwait``), not handled: the kernel then says who sent each one. A signal reaches the command once. One from
the terminal has reached it already, since both are in the foreground group. So has one that a process sent to the whole group (``timeout``,
``kill -- -PGID``, Slurm), but nothing tells it from one that was sent to us alone. So a second process of the group, the witness, does
nothing but report which signals it got. All others are passed on. The witness is a program of its own, not a copy of us: ``pkill -f
'forebay run'`` would find a copy too, and what both got would seem to be the group's.

As PID 1 of a container it also reaps processes that nobody waits for, as an init does.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from types import FrameType

from forebay_proxy.core.exit_codes import by_signal

__all__ = ["refusal", "run_command"]

# Commands that start others on many nodes: ``forebay run`` belongs behind them, not in front.
_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prun", "jsrun", "aprun", "ibrun")
_QUEUES = ("sbatch", "salloc", "qsub", "bsub")

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TICK_S = 1.0  # a tick peeks at one socket; whoever trains waits this long at most until a lost sidecar is noticed
_GROUP_S = 0.2  # the kernel signals a group's processes within microseconds of each other; a busy machine takes its time to run them
_INIT = 1
_TELL_SIGNALS = """
import os, signal, sys
numbers = [int(number) for number in sys.argv[1:]]
os.set_blocking(1, False)  # nobody may be reading
for number in numbers:
    signal.signal(number, lambda *_: None)
signal.set_wakeup_fd(1, warn_on_full_buffer=False)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
os.read(0, 1)  # until run ends, however it does
"""


def run_command(arguments: Sequence[str], environ: Mapping[str, str], tick: Callable[[], object]) -> int:
    """Run the command to its end and return its exit code, 128 + n if signal n ended the process. ``tick`` is called every second.

    Raises ``OSError`` when it cannot be started.
    """
    with _recorded_signals() as early, _witness() as heard:
        began = len(early)
        child = subprocess.Popen(list(arguments), env=dict(environ))  # noqa: S603  # the person's own command; no shell is involved
        waited_for = (*_passed_on(), signal.SIGCHLD)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
        try:
            # From here on signals queue up for sigtimedwait; those that came while the command started were recorded.
            for at, number in enumerate(early):
                if not heard(number) or at < began:
                    child.send_signal(number)
            early.clear()

            def ticked() -> None:
                # A sidecar that a tick starts again inherits the mask, and must not be deaf to SIGTERM. What comes meanwhile is recorded.
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                try:
                    tick()
                finally:
                    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)

            _until_end(child, waited_for, early, heard, ticked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child.returncode if child.returncode >= 0 else by_signal(-child.returncode)


def _until_end(
    child: subprocess.Popen[bytes],
    waited_for: Sequence[signal.Signals],
    recorded: list[int],
    heard: Callable[[int], bool],
    tick: Callable[[], object],
) -> None:
    ticked = time.monotonic()
    while not _ended(child):
        received = signal.sigtimedwait(waited_for, _TICK_S)
        while recorded:
            if not heard(number := recorded.pop(0)):
                child.send_signal(number)
        if received is None:
            heard(0)
        elif received.si_signo != signal.SIGCHLD:
            has_it = heard(received.si_signo)  # asked of each, or what the witness says of this one would be taken for the next
            if not has_it and not _from_terminal(received):
                child.send_signal(received.si_signo)
        if time.monotonic() - ticked >= _TICK_S:
            tick()
            ticked = time.monotonic()


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether the command has. As PID 1, all processes that have ended and are nobody's are reaped first."""
    if os.getpid() == _INIT:
        with suppress(ChildProcessError):  # there is none
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid != child.pid:
                os.waitpid(found.si_pid, os.WNOHANG)
    return child.poll() is not None


@contextmanager
def _witness() -> Iterator[Callable[[int], bool]]:
    """A process of our group that ends with us; yields whether it got a signal too, asked once for each that we got (0: none)."""
    (lifeline, ours), (numbers, theirs) = os.pipe(), os.pipe()
    passed_on = _passed_on()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)  # none may come before the witness can tell it
    try:
        program = [sys.executable, "-I", "-S", "-c", _TELL_SIGNALS, *(str(int(number)) for number in passed_on)]
        process = subprocess.Popen(program, stdin=lifeline, stdout=theirs, stderr=subprocess.DEVNULL)  # noqa: S603  # no shell
    except OSError:
        process = None  # the command runs all the same, and a signal to the group may reach it twice
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(lifeline)
        os.close(theirs)

    unasked: set[int] = set()  # signals come to us in the order of their numbers, to the witness as they were sent

    def heard(number: int) -> bool:
        patience_s = _GROUP_S if number and number not in unasked else 0.0
        while select.select([numbers], [], [], patience_s)[0] and (told := os.read(numbers, 512)):
            unasked.update(told)
            patience_s = 0.0 if number in unasked else patience_s
        found = number in unasked
        unasked.discard(number)
        if not number:
            unasked.clear()  # two of the group that reached us as one, or one that was meant for the witness
        return found

    try:
        yield heard
    finally:
        os.close(ours)
        os.close(numbers)
        if process is not None:
            process.wait()


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


def refusal(command: Sequence[str]) -> str:
    """One line with what to write instead; "" for a command that runs on this node."""
    name = PurePath(command[0]).name
    would = f"'forebay run -- {name}' would start a sidecar here and none on the nodes; "
    if name == "srun":
        tasks = next((word for word in command[1:] if word.startswith("--ntasks-per-node=")), "--ntasks-per-node=N")
        return f"{would}write: srun {tasks} forebay run -- python train.py"
    if name in _MPI:
        return f"{would}write: {name} … forebay run -- python train.py"
    if name in _QUEUES:
        return f"{would}write in the job's script: srun --ntasks-per-node=N forebay run -- python train.py"
    return ""
