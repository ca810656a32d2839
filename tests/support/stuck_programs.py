"""Programs that end in time, or say where they stand: what they printed, and the stack of each Python process they have started.

done = run_in_time([sys.executable, "-m", "demo"], os.environ, within_s=900)
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["run_in_time"]

SHOWN_BYTES = 20_000  # of what each printed: the last, where its stacks are
DUMPED_S = 20.0  # for stacks to be written, on a machine that is busy


@dataclass(frozen=True)
class _Process:
    """One of the group, as it was before the signal. ``stderr`` is a file of its own, also one without a name; None for ours, a pipe."""

    number: int
    facts: str
    stderr: IO[bytes] | None

    def told(self) -> str:
        """Once, after the signal."""
        head = f"== process {self.number}: {self.facts}"
        if self.stderr is None:
            return f"{head}\n(its stderr is that of the program)"
        with self.stderr:
            return f"{head}\n{_last_of(self.stderr)}"


def run_in_time(command: Sequence[str], environ: Mapping[str, str], within_s: float) -> subprocess.CompletedProcess[str]:
    """``command`` to its end, in a session of its own. AssertionError where it takes longer, or leaves processes behind.

    The whole group is ended then by SIGABRT, at which Python writes its threads' stacks; what is no Python just ends.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        program = subprocess.Popen(
            command,
            env={**environ, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        why = ""
        try:
            program.wait(within_s)
            if not _comes_true(lambda: not list(_members(program.pid))):
                why = f"ended with {program.returncode} and left processes behind"
        except subprocess.TimeoutExpired:
            why = f"did not end within {within_s:g} s"
        except BaseException:  # the test's own limit, or Ctrl-C: a session of its own would go on
            _signal(program.pid, signal.SIGKILL)
            program.wait()
            raise
        if why:
            said = _end_group(program, errors)
            printed = f"== it printed\n{_last_of(out)}\n== and to stderr\n{_last_of(errors)}"
            raise AssertionError(f"{' '.join(command)} {why}\n{printed}\n{said}")
        return subprocess.CompletedProcess(list(command), program.returncode, _whole(out), _whole(errors))


def _end_group(program: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    processes = list(_processes(program.pid, errors))
    _signal(program.pid, signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        program.wait(DUMPED_S)
    _comes_true(lambda: not list(_members(program.pid)))
    _signal(program.pid, signal.SIGKILL)
    program.wait()
    return "\n".join(process.told() for process in processes)


def _members(group: int) -> Iterator[Path]:
    """Living processes of the group, in /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended since
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                yield entry


def _processes(group: int, errors: IO[bytes]) -> Iterator[_Process]:
    for entry in _members(group):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            facts = f"child of {parent}, state {state}, {len(list((entry / 'task').iterdir()))} threads: {command}"
            own = (entry / "fd/2").is_file() and not (entry / "fd/2").samefile(f"/proc/self/fd/{errors.fileno()}")
            yield _Process(int(entry.name), facts, (entry / "fd/2").open("rb") if own else None)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _comes_true(fact: Callable[[], bool]) -> bool:
    until = time.monotonic() + DUMPED_S
    while not (found := fact()) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_of(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SHOWN_BYTES))
    return file.read().decode(errors="replace")
