"""What the command's exit codes mean. One table: the verbs return these, the help and docs/reliability.md are made from it. Pure."""

from __future__ import annotations

import signal
from enum import IntEnum

__all__ = ["MEANINGS", "ExitCode", "by_signal"]


class ExitCode(IntEnum):
    """How a verb ended. ``forebay run`` returns its command's own code instead, whatever that is."""

    DONE = 0
    PART_FAILED = 1
    CANNOT_BEGIN = 2  # also what click and every shell tool say of a wrong flag: a supervisor need not try again
    FAULT = 3
    FORCED = 4
    NOT_EXECUTABLE = 126  # these two as shells have them
    NOT_FOUND = 127


def by_signal(number: int) -> int:
    """As shells have it: 128 + the signal's number."""
    return 128 + number


MEANINGS: dict[int, str] = {
    ExitCode.DONE: "done; `serve` ended by a signal or `--idle-exit-s`, with everything recorded",
    ExitCode.PART_FAILED: "a part failed and is named: a shard (`warm`, `stage`), wrong segments (`verify`), broken rules (`doctor`)",
    ExitCode.CANNOT_BEGIN: (
        "nothing was done: a wrong flag or setting, a taken port or socket, an unusable cache directory, no sidecar (for "
        "`run` only with `--required`)"
    ),
    ExitCode.FAULT: "a fault in Forebay; the log has the stack; a supervisor should start it again",
    ExitCode.FORCED: "`serve` only: ended by force, because closing took too long (a hung disk) or a third signal came",
    ExitCode.NOT_EXECUTABLE: "`run` only: the command cannot be executed",
    ExitCode.NOT_FOUND: "`run` only: the command was not found",
    by_signal(signal.SIGINT): "Ctrl-C, except in `serve`; `run` returns 128 + n if signal n ended its command",
    by_signal(signal.SIGPIPE): "the reader of stdout has gone, as when `head` ends",
}
