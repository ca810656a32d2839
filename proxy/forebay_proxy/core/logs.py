"""What the sidecar writes to its log, and what never gets there.

A URL's query and userinfo may hold a secret, and messages of library errors hold URLs, so:

- every line loses what stands behind the ``?`` of an http URL and before the ``@`` in any;
- an exception is shown by its frames and types, without its message;
- ``--log-level`` is ours alone. Other loggers stay at warnings: at debug the AWS SDK prints what it signs, the session token included. Of
  their messages one line is kept, because what follows it is a repr of somebody's exception.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType

__all__ = ["SafeFormatter", "frames_of", "hide_messages", "keep_short", "log_path", "scrubbed", "set_up"]

_OURS = "forebay"
_IN_A_JOURNAL = "forebay: %(levelname)s %(message)s"  # which has times of its own
_LINE = "forebay: %(asctime)s %(levelname)s %(message)s"
# Of a log that nobody rotates: a month of an origin that fails every few seconds is some 100 MB, and its last MiB says what led to now.
_MOST_LOG_BYTES = 8 << 20
_KEPT_LOG_BYTES = 1 << 20
_QUERY = re.compile(r"(https?://[^\s?#'\"<>]*)[?#][^\s'\"<>]*", re.IGNORECASE)
_USERINFO = re.compile(r"://[^\s/?#'\"<>]*@")
_REPR = re.compile(r"(exception=)?\b(\w+(?:Error|Exception|URL|Warning))\(.*\)")


def scrubbed(text: str) -> str:
    """``text`` without the parts of URLs that may be secret."""
    return _QUERY.sub(r"\1", _USERINFO.sub("://", text))


def frames_of(error: BaseException, trace: TracebackType | None = None) -> str:
    """Types and source lines of ``error`` and its causes, without their messages."""
    lines = traceback.format_tb(trace or error.__traceback__)
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    told = "".join(lines) + type(error).__name__
    for part in inner:
        told += f"\none of its parts:\n{frames_of(part)}"
    return told if cause is None else f"{frames_of(cause)}\nled to:\n{told}"


class SafeFormatter(logging.Formatter):
    """Lines as described above."""

    def format(self, record: logging.LogRecord) -> str:
        line = scrubbed(super().format(record))
        return line if record.name.partition(".")[0] == _OURS else self._short(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 -- the library's name
        assert isinstance(ei, tuple)
        return frames_of(ei[1], ei[2]) if ei[1] is not None else ""

    def _short(self, record: logging.LogRecord) -> str:
        first = (record.getMessage().splitlines() or [""])[0]
        shown = _REPR.sub(r"\2", first)
        when = f"{self.formatTime(record, self.datefmt)} " if self.usesTime() else ""
        text = f"forebay: {when}{record.levelname} {record.name}: {shown}"
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + self.formatException(record.exc_info)
        return scrubbed(text)


class JsonFormatter(SafeFormatter):
    """The same lines for programs: one JSON object each, with ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message`` and ``pid``."""

    def __init__(self) -> None:
        super().__init__("%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        ours = record.name.partition(".")[0] == _OURS
        message = super().format(record) if ours else self._short(record).removeprefix(f"forebay: {record.levelname} {record.name}: ")
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        said = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": message, "pid": record.process}
        return json.dumps(said)


def set_up(level: str, form: str = "human") -> None:
    """Log to stderr: ours from ``level`` on, of all others warnings. Nothing that went wrong unforeseen shows its message.

    ``form``: "human", or "json" for lines that a log collector reads.
    """
    handler = logging.StreamHandler(sys.stderr)
    human = SafeFormatter(_IN_A_JOURNAL if "JOURNAL_STREAM" in os.environ else _LINE)
    handler.setFormatter(JsonFormatter() if form == "json" else human)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.captureWarnings(True)
    logging.getLogger(_OURS).setLevel(level.upper())
    hide_messages()


def log_path() -> str | None:
    """The file that stderr goes to; None for a terminal, a pipe or a journal."""
    try:
        return os.readlink("/proc/self/fd/2") if stat.S_ISREG(os.fstat(2).st_mode) else None
    except OSError:  # stderr is closed, or there is no /proc
        return None


def keep_short(descriptor: int, most_bytes: int = _MOST_LOG_BYTES, kept_bytes: int = _KEPT_LOG_BYTES) -> None:
    """From now on cut the log file behind ``descriptor`` (opened to append) down to its last ``kept_bytes`` at ``most_bytes``."""
    logging.getLogger().addHandler(_Shortener(descriptor, most_bytes, kept_bytes))


class _Shortener(logging.Handler):
    """Writes nothing; looks after each line how long the file has become."""

    def __init__(self, descriptor: int, most_bytes: int, kept_bytes: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._kept_bytes = kept_bytes

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # a log that cannot be cut is no reason to stop
            size = os.fstat(self._descriptor).st_size
            if size > self._most_bytes:
                self._cut(size)

    def _cut(self, size: int) -> None:
        with open(f"/proc/self/fd/{self._descriptor}", "rb") as file:  # the descriptor itself is only open for writing
            tail = os.pread(file.fileno(), self._kept_bytes, size - self._kept_bytes)
        os.ftruncate(self._descriptor, 0)  # what appends goes on at the new end
        os.write(self._descriptor, b"forebay: the log was cut here\n" + tail.partition(b"\n")[2])


def hide_messages() -> None:
    """What nobody caught is told by its frames and types, in every thread."""
    sys.excepthook = _at_the_end
    threading.excepthook = _of_a_thread


def _at_the_end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(f"forebay: ended by a fault in Forebay itself\n{frames_of(error, trace)}\n")


def _of_a_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None and not isinstance(told.exc_value, SystemExit):
        logging.getLogger(_OURS).error("a thread ended by a fault in Forebay itself\n%s", frames_of(told.exc_value, told.exc_traceback))
