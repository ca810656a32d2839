"""What the kernel says of a process that says nothing itself any more."""

from __future__ import annotations

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


def silent_because(pid: int, start_time: int) -> str:
    """Why process ``pid``, begun at ``start_time`` (in the kernel's ticks), writes nothing, in words. Never raises."""
    if process_start_time(pid) != start_time:
        return "it has ended"
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode("ascii", "replace")
    except (OSError, IndexError):
        return "it has ended"
    return _STATES.get(state, f"its state is {state}").format(pid=pid)
