"""The watchdog: reports that no batch comes, and what the worker does whose batch is due. It never ends anything: that is up to the user.

A trainer that validates or writes a checkpoint asks for no batch, so nothing is reported. The worker's page says what the worker does; a
thread of the worker writes it. If the page does not change, the whole process hangs, or one call holds the interpreter's lock. Then the
watchdog reports the kernel's state of the process.
"""

from __future__ import annotations

import time
from typing import Callable, Optional

from forebay_loader.base.shown_text import size_text
from forebay_loader.meter.clock.loader_pass import TrainerWait
from forebay_loader.meter.page import MAIN
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["Watchdog", "silent_because"]

SILENT_S = 5.0  # an observer that has not written for so long does not run: it writes up to five times a second
_SELDOM = 10  # times ``after_s``: the longest time between two lines
_MOST_FRAMES = 8
_WORDS = {
    "origin": "waits for the origin",
    "proxy": "waits for the sidecar",
    "disk": "waits for the cache's disk",
    "read": "reads the tar",
    "decode": "decodes",
    "map": "is in the user's own stages (map)",
    "collate": "makes the batch (collate)",
    "transfer": "has nothing to do: the batch is on its way to the trainer",
    "start": "is being started",
    "other": "does what nobody can tell",
}
# By the kernel's letter for a process's state.
_STATES = {
    "R": "it computes in one call that keeps the interpreter for itself: there is no newer Python stack",
    "S": "it waits in one call that keeps the interpreter for itself: there is no newer Python stack",
    "D": "it waits inside the kernel, for a disk or a network file system",
    "T": "it is stopped (SIGSTOP); kill -CONT {pid} lets it go on",
    "t": "a debugger holds it",
    "Z": "it has ended",
    "X": "it has ended",
}


def silent_because(pid: int, start_time: Optional[int]) -> str:
    """Why process ``pid``, started at ``start_time`` (in the kernel's ticks), no longer writes its page. Never raises.

    ``start_time`` is None if it has written nothing yet. Returns "" if it may still be starting.
    """
    begun = process_start_time(pid)
    if begun is None or start_time not in (None, begun):
        return "it has ended"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode("ascii", "replace")
    except (OSError, IndexError):
        return "it has ended"
    if start_time is None and state in "RS":
        return ""
    return _STATES.get(state, f"its state is {state}").format(pid=pid)


class Watchdog:
    """One for each training process. ``look`` is called about every second. Not thread-safe."""

    def __init__(
        self,
        after_s: float,
        silent_s: float = SILENT_S,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        silent: Callable[[int, Optional[int]], str] = silent_because,
    ) -> None:
        self._after_s, self._silent_s = after_s, silent_s
        self._clock_ns = clock_ns
        self._silent = silent
        self._since_ns: Optional[int] = None  # of the wait that was reported
        self._again_s = after_s

    def look(self, waiting: Optional[TrainerWait], rank: int) -> str:
        """What to log now about the wait or its end; "" for nothing. ``waiting`` is None while the trainer waits for no batch."""
        now_ns = self._clock_ns()
        if self._since_ns is not None and (waiting is None or waiting.since_ns != self._since_ns):
            waited_s, self._since_ns = (now_ns - self._since_ns) / 1e9, None
            return f"rank {rank}: batches come again, after {waited_s:.0f} s"
        if waiting is None:
            return ""
        waited_s = (now_ns - waiting.since_ns) / 1e9
        if waited_s < (self._again_s if self._since_ns is not None else self._after_s):
            return ""
        self._since_ns, self._again_s = waiting.since_ns, waited_s + min(waited_s, _SELDOM * self._after_s)
        return f"rank {rank}: no batch for {waited_s:.0f} s: {self._doing(waiting, now_ns)}"

    def _doing(self, waiting: TrainerWait, now_ns: int) -> str:
        page = waiting.page
        if page is None:
            return self._unseen(waiting)
        who = f"{'this process' if page.worker == MAIN else f'worker {page.worker}'} (pid {page.pid})"
        if now_ns - page.heartbeat_ns > self._silent_s * 1e9:
            parts = [f"{who} has said nothing for {_ago(page.heartbeat_ns, now_ns)}: {self._silent(page.pid, page.start_time)}"]
            parts += [f"last seen in {page.cause}"] if page.cause in _WORDS and page.cause != "transfer" else []
        else:
            parts = [f"{who} {_WORDS.get(page.cause, 'has just begun')} since {_ago(page.since_ns, now_ns)}"]
        parts += [f"shard {page.shard} at {size_text(page.position)}"] if page.shard else []
        parts.append(f"{size_text(page.bytes)} read in all")
        return ", ".join(parts) + (f"; at {stack_in_a_line(page.stack)}" if page.stack else "")

    def _unseen(self, waiting: TrainerWait) -> str:
        if waiting.worker < 0:
            return "no worker has said what it does"
        because = self._silent(waiting.pid, None) if waiting.pid else ""
        return f"worker {waiting.worker} (pid {waiting.pid}) has not said what it does{because and f': {because}'}"


def _ago(moment_ns: int, now_ns: int) -> str:
    return f"{max(0.0, (now_ns - moment_ns) / 1e9):.0f} s"


def stack_in_a_line(stack: str) -> str:
    """The innermost frames of a page's stack (``path:line function`` each), innermost first: ``function (file:line) < …``."""
    frames = [line.rpartition(" ") for line in reversed(stack.splitlines())]
    return " < ".join(f"{name} ({place.rpartition('/')[2]})" for place, _, name in frames[:_MOST_FRAMES])
