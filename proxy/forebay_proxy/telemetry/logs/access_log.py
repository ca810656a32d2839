"""The access log: one JSON line for each answer to a request for a shard, written when the answer has ended.

The event loop only puts facts into a queue; a thread of its own makes lines of them and writes them, so a slow disk delays no reader. What
the disk cannot take is dropped, counted and said: a log is never a reason to serve slower. ``forebay plan --replay`` reads the file.

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
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.requests import AccessLogged, LeaseEnded, RequestDone, Served
from forebay_proxy.core.shard import shown
from forebay_proxy.core.tasks import settle
from forebay_proxy.telemetry.logs.append_file import AppendFile

__all__ = ["AccessLog", "line_of"]

log = logging.getLogger("forebay")

MOST_WAITING = 4096  # lines, about 2 MB: seconds of a node at its busiest; a disk that needs longer is in trouble
BATCH = 256  # lines a write: one system call each would cost more than the lines
BEGIN_S, CLOSE_S = 10.0, 2.0  # what opens and closes in milliseconds, or hangs with its disk
CALM_S = 60.0  # without a loss: then the disk is well again, and it is said once

STEP_S = 1.0  # the wall clock was set: less is its drift, and to follow that would let two requests change places

Fact = tuple[float, RequestDone, Served]  # the wall clock when the request began


class AccessLog:
    """Listens for ended answers. The event loop's only, less what the thread does: ``_work`` and what it calls."""

    def __init__(self, path: Path, key: bytes, events: Events, *, clock: Callable[[], float], now: Callable[[], float] = time.time) -> None:
        """``key``: 32 secret bytes, the same at each start, for the digests of queries. ``clock`` is monotonic, ``now`` the wall's."""
        self._file = AppendFile(path)
        self._key = key
        self._events = events
        self._clock = clock
        self._now = now
        self._queue: SimpleQueue[Fact | None] = SimpleQueue()
        self._missing = 0  # lines, since it was said that some are
        self._lost_at = 0.0
        self._epoch = now() - clock()  # the wall clock when the monotonic one was 0

    def __repr__(self) -> str:
        return f"<AccessLog {self._file.path}, {self._queue.qsize()} lines waiting, {self._missing} missing>"

    async def start(self) -> None:
        """Open the file, begin to listen. Raises ``ConfigError`` when it cannot be written."""
        self._loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon: what hangs with its disk must not keep the process from ending.
        threading.Thread(target=self._work, args=(opened,), name="forebay-access-log", daemon=True).start()
        try:
            async with asyncio.timeout(BEGIN_S):
                await opened
        except (OSError, TimeoutError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else f"no answer from its disk within {BEGIN_S:g} s"
            step = "name a file of your own in a directory that exists and that no other sidecar writes, or leave --access-log out"
            raise ConfigError(f"--access-log {self._file.path} cannot be written: {why}", next_step=step) from error
        self._events.listen(self.listen, (RequestDone, LeaseEnded))

    def listen(self, event: Event) -> None:
        done = event.done if type(event) is LeaseEnded else event
        if type(done) is not RequestDone or done.served is None:
            return
        if self._queue.qsize() >= MOST_WAITING:
            self._lost(1, "its disk does not keep up")
        else:
            self._queue.put((self._wall(done.served.began_at), done, done.served))

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
        self._queue.put(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._ended)
                return
        log.warning("access log %s: %d lines were not written, its disk does not answer", self._file.path, self._queue.qsize())

    def _wrote(self, count: int, error: str) -> None:
        if error:
            self._lost(count, error)
            return
        self._events.emit(AccessLogged("written", count))
        if self._missing and self._clock() - self._lost_at > CALM_S:
            log.warning("access log %s: it is written again; %d lines are missing", self._file.path, self._missing)
            self._missing = 0

    def _lost(self, count: int, why: str) -> None:
        if not self._missing:
            log.warning("access log %s: lines are missing from now on: %s; training is served all the same", self._file.path, why)
        self._missing += count
        self._lost_at = self._clock()
        self._events.emit(AccessLogged("dropped", count))

    # In the thread

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            try:
                self._file.open()
            except OSError as error:
                self._tell(settle, opened, error)
                return
            self._tell(settle, opened, None)
            while self._write_some():
                pass
        finally:
            self._file.close()
            self._tell(settle, self._ended, None)

    def _write_some(self) -> bool:
        """Wait for lines and write them; False once the last has been written."""
        facts = [self._queue.get()]
        with suppress(Empty):
            while facts[-1] is not None and len(facts) < BATCH:
                facts.append(self._queue.get_nowait())
        lines = [line_of(*fact, self._key) for fact in facts if fact is not None]
        error = ""
        if lines:
            try:
                self._file.write(b"".join(lines))
            except OSError as failure:
                error = failure.strerror or "it cannot be written"
            self._tell(self._wrote, len(lines), error)
        return facts[-1] is not None

    def _tell(self, heard: Callable[..., object], *told: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody wants to know any more
            self._loop.call_soon_threadsafe(heard, *told)


def line_of(began_at: float, done: RequestDone, served: Served, key: bytes) -> bytes:
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
    return json.dumps(line, separators=(", ", ": ")).encode() + b"\n"
