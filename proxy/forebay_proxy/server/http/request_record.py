"""Running requests: a record of each one's answer so far, and the shutdown of all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.events import Events, RequestFailed
from forebay_proxy.core.facts.requests import Aborted, RequestDone, RequestOutcome, Served
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["OpenRequests", "RequestRecord", "ShardRecord"]

log = logging.getLogger("forebay")

CLIENT_LEFT = 499  # no status was sent: the client left before the answer
# Requests turned away by a drain end within a turn or two of the event loop, unless a disk is slow. The drain waits no longer than this.
_UNWIND_S = 1.0


@dataclass(slots=True)
class ShardRecord:
    """What a request was given of a shard. ``outcome`` stays None until the body is about to begin."""

    name: str
    length: int | None = None
    range: tuple[int, int] | None = None  # of a 206, both inclusive
    epoch: int | None = None  # from the reader's plan
    outcome: RequestOutcome | None = None
    bytes_sent: int = 0
    hit_bytes: int = 0  # the part of bytes_sent that came from the store
    waited_s: float = 0.0


@dataclass(slots=True)
class RequestRecord:
    """The record of one request, reported once at its end. Times are ``clock()`` seconds.

    ``code`` is the status sent; ``shard`` is None until the request is known to be for one. ``looks_only``: a probe, a scrape, a status
    page or a refused request, which does not keep an idle sidecar alive.
    """

    method: str
    events: Events
    clock: Callable[[], float]
    code: int = CLIENT_LEFT
    reader: ReaderName | None = None
    shard: ShardRecord | None = None
    aborted: str = ""
    error: str = ""  # the error, in words that people and logs may see
    expected: bool = False  # see ``RequestDone``
    looks_only: bool = True
    _started: float = field(init=False)
    _first_byte: float | None = None

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def job(self) -> str:
        """The job of the reader; "" for an anonymous one."""
        return self.reader.job if self.reader else ""

    @property
    def headers_out(self) -> bool:
        """Whether the answer has begun: from then on a failure can only cut it."""
        return self._first_byte is not None

    @property
    def body_begun(self) -> bool:
        """Whether bytes of a shard are being sent. A drain lets such answers end."""
        return self.headers_out and self.shard is not None and self.shard.outcome is not None

    def answered(self, code: int) -> None:
        """Note that the header with ``code`` is about to be sent; later calls change nothing."""
        if self._first_byte is None:
            self.code = code
            self._first_byte = self.clock()

    def abort(self, reason: str, cause: str = "") -> None:
        """Note that the response was cut, and why, in the words of ``cause``. Only the first reason counts."""
        if not self.aborted:
            self.aborted = reason
            self.events.emit(Aborted(reason, self.job, cause))

    def endless(self) -> None:
        """Note that this answer ends with its connection, which is no abort."""
        self.aborted = "endless"

    def close(self) -> None:
        """Report the request."""
        now = self.clock()
        first_byte_s = (now if self._first_byte is None else self._first_byte) - self._started
        seconds, shard = now - self._started, self.shard
        if shard is None:
            done = RequestDone(
                self.method, self.code, None, 0, first_byte_s, seconds, job=self.job, error=self.error, expected=self.expected
            )  # fmt: skip
        else:
            served = Served(
                shard.name, self.reader, shard.epoch, shard.length, shard.range, shard.waited_s, self.aborted, self._started
            )  # fmt: skip
            done = RequestDone(
                self.method, self.code, shard.outcome, shard.bytes_sent, first_byte_s, seconds, shard.hit_bytes, self.job, served,
                self.error,
            )  # fmt: skip
        self.events.emit(done)
        if self.code >= 400 and not self.expected:
            self.events.emit(RequestFailed(self.code, self.error, self.job))


class OpenRequests:
    """The running requests, each with the task that answers it. Not thread-safe: used on the event loop alone."""

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        self.last_active = clock()  # when the last request ended that was more than a look at the status
        self.closing = False  # whether the remaining requests are being cut
        self._events = events
        self._clock = clock
        self._records: dict[asyncio.Task[Any], RequestRecord] = {}
        self._turned_away: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<OpenRequests {len(self)}{', closing' if self.closing else ''}>"

    @property
    def in_use(self) -> bool:
        """Whether a client holds the sidecar, reads, or waits for a command; probes and status pages do not count."""
        return any(not record.looks_only for record in self._records.values())

    @contextmanager
    def answering(self, method: str) -> Iterator[RequestRecord]:
        """Record a request that the current task answers within the ``with``; it is reported at the end."""
        task = asyncio.current_task()
        assert task is not None
        self._records[task] = record = RequestRecord(method, self._events, self._clock)
        try:
            yield record
        finally:
            if not record.looks_only:
                self.last_active = self._clock()
            record.close()
            del self._records[task]
            self._turned_away.discard(task)
            self._changed.set()

    def is_turned_away(self) -> bool:
        """Whether the current task's request was cancelled by ``turn_away``."""
        return asyncio.current_task() in self._turned_away

    async def turn_away(self) -> None:
        """Cancel all requests but those whose body is being sent. Returns once those requests have released leases and buffers."""
        for task, record in self._records.items():
            if not record.body_begun:
                self._turned_away.add(task)
                task.cancel()
        await self._until(lambda: self._turned_away.isdisjoint(self._records), _UNWIND_S)

    async def let_end(self, grace_s: float, hurried: asyncio.Event) -> None:
        """Wait until all requests have ended, for ``grace_s`` seconds at most, or until ``hurried`` is set."""
        if not self._records:
            return
        log.info("draining: %d answers may end within %g s", len(self), grace_s)
        async with asyncio.TaskGroup() as group:
            hurry = group.create_task(hurried.wait(), name="hurry")
            hurry.add_done_callback(lambda _: self._changed.set())
            await self._until(lambda: hurried.is_set() or not self._records, grace_s)
            hurry.cancel()
        if self._records:
            why = "a second signal" if hurried.is_set() else f"{grace_s:g} s"
            log.info("draining: %d answers are cut after %s", len(self), why)

    async def cut(self) -> None:
        """Cancel the remaining requests, and wait for them."""
        self.closing = True
        for task in list(self._records):
            task.cancel()
        await asyncio.gather(*self._records, return_exceptions=True)

    async def _until(self, fact: Callable[[], bool], within_s: float) -> None:
        """Wait until ``fact`` holds, for ``within_s`` seconds at most; checked whenever a request has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not fact():
                    self._changed.clear()
                    await self._changed.wait()
