"""The access log: one JSON line for each answer about a shard.

The event loop only puts answers into a queue. The thread of a ``QueueListener`` makes lines of them and writes them, so a slow disk delays
no reader. Lines that the disk cannot take are dropped and counted. ``forebay plan --replay`` reads the file. The file may be moved away at
any time (logrotate, ``mv``): the next line begins a new one. A kill, or a full disk, may leave half a line.

A shard that was passed as a descriptor is one answer too: a hit with all of its bytes, which begins with the question and ends with the
lease. When the file is read in between, and how much of it, the sidecar cannot see.

=============================  =======================================================================================================
key                            meaning
=============================  =======================================================================================================
time                           when the request began, UTC, to the microsecond: of one sidecar two times stand as the two requests came.
                               Lines stand in the order in which answers ended
reader, epoch                  job/rank/worker/opener and the epoch of its plan, as in ``/v1/plans``; null where none was told
method, status                 GET or HEAD; 499: the client left before there was an answer
shard                          its name as logs show it, without an http query
query                          only where that left a query out: a keyed digest of it, so that two shards are two and no secret is told
length, range                  the shard's bytes (null: unknown); of a 206 the first and the last byte
result                         hit (disk), miss (origin), partial (both), collapsed (another's fetch), bypass (not stored), relayed (a part,
                               not stored), none (no bytes)
bytes, hit_bytes               sent to the client; of them read from the disk
waited_s, first_byte_s         waiting for bytes that were not here yet; from the request to the header of the answer
seconds                        from the request to the end of the answer
cut                            null, or why the answer did not end well: client_gone, origin_failed, changed, shutdown, other
=============================  =======================================================================================================
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import logging
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO, TextIOWrapper
from logging.handlers import QueueListener, WatchedFileHandler
from pathlib import Path
from queue import SimpleQueue

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.requests import AccessLogged, LeaseEnded, RequestDone, Served
from forebay_proxy.core.shard import shown
from forebay_proxy.core.tasks import settle

__all__ = ["AccessLog", "line_of"]

log = logging.getLogger("forebay")

MOST_WAITING = 4096  # lines, about 2 MB: seconds of a node at its busiest; a disk that needs longer is in trouble
BEGIN_S, CLOSE_S = 10.0, 2.0  # what opens and closes in milliseconds, or hangs with its disk
CALM_S = 60.0  # without a loss: then the disk is well again, and it is said once

STEP_S = 1.0  # the wall clock was set: less is its drift, and to follow that would let two requests change places


class AccessLog:
    """Listens for ended answers. The event loop's only; ``_LogFile`` belongs to the listener's thread."""

    def __init__(self, path: Path, key: bytes, events: Events, *, clock: Callable[[], float], now: Callable[[], float] = time.time) -> None:
        """``key``: 32 secret bytes, the same at each start, for the digests of queries. ``clock`` is monotonic, ``now`` the wall's."""
        self._path = path
        self._key = key
        self._events = events
        self._clock = clock
        self._now = now
        self._queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._missing = 0  # lines, since it was said that some are
        self._lost_at = 0.0
        self._epoch = now() - clock()  # the wall clock when the monotonic one was 0

    def __repr__(self) -> str:
        return f"<AccessLog {self._path}, {self._queue.qsize()} lines waiting, {self._missing} missing>"

    async def start(self) -> None:
        """Open the file, begin to listen. Raises ``ConfigError`` when it cannot be written."""
        self._loop = asyncio.get_running_loop()
        self._file = _LogFile(self._path, self._key, self._written)
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._in_thread(self._file.open)
        except OSError as error:
            why = error.strerror or f"no answer from its disk within {BEGIN_S:g} s"
            step = "name a file of your own in a directory that exists, or leave --access-log out"
            raise ConfigError(f"--access-log {self._path} cannot be written: {why}", next_step=step) from error
        self._listener = QueueListener(self._queue, self._file)
        self._listener.start()
        self._events.listen(self.listen, (RequestDone, LeaseEnded))

    def listen(self, event: Event) -> None:
        done = event.done if type(event) is LeaseEnded else event
        if type(done) is not RequestDone or done.served is None:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._lost("its disk does not keep up")
        else:
            self._queue.put(logging.makeLogRecord({"answer": (self._wall(done.served.began_at), done, done.served)}))

    def _wall(self, moment: float) -> float:
        """The wall clock at ``moment``. Not "now, less how long it took": two looks at two clocks are as far apart as a busy machine lets
        them be, and a reader who opens descriptors opens the next one 0.1 ms later.
        """
        epoch = self._now() - self._clock()
        if abs(epoch - self._epoch) > STEP_S:
            self._epoch = epoch
        return self._epoch + moment

    async def aclose(self) -> None:
        """Write what waits. A disk that hangs is not waited for."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._in_thread(self._end)
        except TimeoutError:
            log.warning("access log %s: %d lines were not written, its disk does not answer", self._path, self._queue.qsize())

    def _end(self) -> None:
        self._listener.stop()
        self._file.end()

    async def _in_thread(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a daemon thread: what hangs with its disk must not keep the process from ending."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def run() -> None:
            error = None
            try:
                work()
            except OSError as raised:
                error = raised
            self._tell(settle, ended, error)

        threading.Thread(target=run, name="forebay-access-log", daemon=True).start()
        await ended

    def _written(self, error: str) -> None:
        """The listener's thread calls it after each line."""
        self._tell(self._count, error)

    def _tell(self, heard: Callable[..., object], *told: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody wants to know any more
            self._loop.call_soon_threadsafe(heard, *told)

    def _count(self, error: str) -> None:
        if error:
            self._lost(error)
            return
        self._events.emit(AccessLogged("written", 1))
        if self._missing and self._clock() - self._lost_at > CALM_S:
            log.warning("access log %s: it is written again; %d lines are missing", self._path, self._missing)
            self._missing = 0

    def _lost(self, why: str) -> None:
        if not self._missing:
            log.warning("access log %s: lines are missing from now on: %s; training is served all the same", self._path, why)
        self._missing += 1
        self._lost_at = self._clock()
        self._events.emit(AccessLogged("dropped", 1))


class _LogFile(WatchedFileHandler):
    """The listener's thread alone uses it, so it takes no lock: the end of the process would wait for that while the disk hangs."""

    def __init__(self, path: Path, key: bytes, written: Callable[[str], None]) -> None:
        """``written`` hears after each line why it was not written, or ""."""
        super().__init__(path, encoding="ascii", delay=True)
        self._key = key
        self._written = written
        self._error = ""

    def open(self) -> None:
        """Raises ``OSError``, also for what is no regular file."""
        self.stream = self._open()
        self._statstream()

    def _open(self) -> TextIOWrapper:
        # Without a buffer: its lock would be held while the disk hangs.
        return TextIOWrapper(FileIO(self.baseFilename, "a", opener=_private), "ascii", write_through=True)

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        self._error = ""
        try:
            super().emit(record)
        except OSError:  # of opening it again
            self.handleError(record)
        self._written(self._error)

    def format(self, record: logging.LogRecord) -> str:
        began_at, done, served = record.__dict__["answer"]
        return line_of(began_at, done, served, self._key)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the standard library's name
        error = sys.exc_info()[1]
        self._error = error.strerror or "it cannot be written" if isinstance(error, OSError) else repr(error)

    def close(self) -> None:
        """``logging.shutdown`` calls it: what the listener's thread has not closed by then hangs with its disk."""

    def end(self) -> None:
        super().close()


def _private(path: str, flags: int) -> int:
    """Made for its owner alone, never through a link; a pipe is refused without waiting for its reader."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(handle)
        raise OSError(errno.EPERM, "it is no regular file of yours")
    return handle


def line_of(began_at: float, done: RequestDone, served: Served, key: bytes) -> str:
    """One line as described above; ``began_at`` in seconds since 1970."""
    began = datetime.fromtimestamp(began_at, UTC)
    name = shown(served.shard)
    hidden = served.shard[len(name) :]
    line = {
        "time": began.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reader": str(served.reader) if served.reader else None,
        "epoch": served.epoch,
        "method": done.method,
        "shard": name,
        **({"query": hmac.new(key, hidden.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]} if hidden else {}),
        "length": served.length,
        "range": served.range,
        "status": done.code,
        "result": done.outcome.value if done.outcome else "none",
        "bytes": done.bytes_sent,
        "hit_bytes": done.hit_bytes,
        "waited_s": round(served.waited_s, 6),
        "first_byte_s": round(done.first_byte_s, 6),
        "seconds": round(done.seconds, 6),
        "cut": served.cut or None,
    }
    return json.dumps(line)
