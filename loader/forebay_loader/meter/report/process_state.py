"""What the kernel says of a process that says nothing itself any more."""

from __future__ import annotations

from typing import Optional

from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["silent_because"]

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
    """Why process ``pid``, begun at ``start_time`` (in the kernel's ticks), writes nothing any more, in words. Never raises.

    ``start_time`` None: one that has written nothing yet; "" where that may still be its start.
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
