"""One client of the fd door: its connection, the lines on it, and the leases that end with it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import suppress
from typing import Protocol

from forebay_proxy.cache.fd_lease import FdLease
from forebay_proxy.core.tasks import cancel_soon
from forebay_proxy.policy.plans.live_jobs import Presence
from forebay_proxy.wire.protocol.fd import MAX_LINE_BYTES, decode_end

__all__ = ["LINE_S", "FdConnection"]

LINE_S = (
    10.0  # a client sends its line in one piece, the first right after it connected; one that does not has stopped, or drips on purpose
)
_READ_BYTES = 4096  # nearly every line is shorter, and a place for the longest would be made anew each time


class _Host(Protocol):
    """The door."""

    def ask(self, connection: FdConnection, line: bytes) -> asyncio.Task[None] | None: ...

    def took_back(self, fd_lease: FdLease) -> None: ...

    def gone(self, connection: FdConnection) -> None: ...


class FdConnection:
    """A connection: lines come, answers go. Not thread-safe: the event loop's only."""

    def __init__(self, host: _Host, loop: asyncio.AbstractEventLoop, client: socket.socket, presence: Presence) -> None:
        self.presence = presence
        self._host = host
        self._loop = loop
        self._client = client
        self._rest = b""  # the start of a line whose end has not come yet
        self._leases: dict[int, FdLease] = {}  # by the client's number; below zero are those without
        self._unnumbered = 0
        self._task: asyncio.Task[None] | None = None  # what the last question waits for
        self._overdue: asyncio.TimerHandle | None = None
        self._left = False

    def __repr__(self) -> str:
        return f"<FdConnection {len(self._leases)} leases{', asking' if self.asking else ''}{', left' if self._left else ''}>"

    @property
    def asking(self) -> bool:
        """Whether a question is being answered."""
        return self._task is not None and not self._task.done()

    def come(self) -> None:
        self._overdue = self._loop.call_later(LINE_S, self.leave)
        self._loop.add_reader(self._client.fileno(), self._heard)  # a number: of a socket asyncio would make a text first, to throw it away
        self._heard()  # the first line may be here already

    def pass_on(self, fd_lease: FdLease, number: int | None, line: bytes) -> None:
        """Give ``fd_lease`` away, until its lease ends here. Raises ``ConnectionError`` where nobody takes it; it has ended then."""
        if number is None:
            self._unnumbered -= 1
            number = self._unnumbered
        try:
            try:
                if self._left or number in self._leases:
                    raise ConnectionError(errno.EPIPE, "it has left, or it numbers two leases alike")
                socket.send_fds(self._client, [line], [fd_lease.descriptor])
            finally:
                os.close(fd_lease.descriptor)  # ours; the client's has the same lock
        except OSError as error:  # also ETOOMANYREFS: more are on their way, unread, than we may have open
            fd_lease.end()
            fd_lease.release()
            raise ConnectionError(errno.EPIPE, str(error.strerror)) from error
        self._leases[number] = fd_lease

    def say(self, line: bytes) -> None:
        if not self._left:
            with suppress(OSError):
                self._client.send(line)

    def leave(self) -> asyncio.Task[None] | None:
        """End it, with all its leases; returns what is still to be waited for."""
        if not self._left:
            self._left = True
            self._on_time()
            self._loop.remove_reader(self._client.fileno())
            self._client.close()
            if self._task is not None and not self._task.done():
                cancel_soon(self._task)  # it waits for the origin, or for the disk
            while self._leases:
                self._host.took_back(self._leases.popitem()[1])
            self.presence.end()
            self._host.gone(self)
        return self._task

    def _heard(self) -> None:
        try:
            data = self._client.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.leave()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self._left:
                self._take(line)
        if self._left or not self._rest:
            self._on_time()
        elif len(self._rest) >= MAX_LINE_BYTES:
            self.leave()
        elif self._overdue is None:
            self._overdue = self._loop.call_later(LINE_S, self.leave)

    def _take(self, line: bytes) -> None:
        number = decode_end(line)
        if number is not None:
            fd_lease = self._leases.pop(number, None)
            if fd_lease is not None:  # one that failed on its way has ended already
                self._host.took_back(fd_lease)
        elif self.asking:  # no client of ours does: answers come in order, one question at a time
            self.leave()
        else:
            self._task = self._host.ask(self, line)

    def _on_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
