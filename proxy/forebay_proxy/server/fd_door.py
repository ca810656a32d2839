"""The fd door: a unix socket on which a client asks for complete shards and receives open file descriptors of them.

A client connects once and sends one request line after the other. If the shard's file is open already, the sidecar answers within the
same event-loop callback, without a stream, a parser, a task or a timer. That keeps an opening cheap. A thread would cost more than
the whole answer, and neither ``open`` nor the lock waits for the disk here. A task starts only if the origin or the disk must be asked.

The client holds a lease on the shard until it sends a line that ends the lease, or its connection closes for any reason.

If the sidecar cannot pass a descriptor, it answers with a line that says why. The client then reads the shard over HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from forebay_proxy.cache.fd_lender import FdLease, FdLender, UseHttp
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import ClientRefused, DoorAnswered, LeaseEnded, RequestDone, RequestOutcome, Served
from forebay_proxy.core.logs import frames_of
from forebay_proxy.core.shard import Shard
from forebay_proxy.core.tasks import cancel_soon
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS, LiveJobs, Presence
from forebay_proxy.server.http.connection import client_places
from forebay_proxy.server.http.framing import credential_headers
from forebay_proxy.server.net.access import Access
from forebay_proxy.server.net.listen import UnixListener, fits
from forebay_proxy.server.net.peers import unix_peer
from forebay_proxy.wire.protocol.fd import (
    MAX_LINE_BYTES,
    FdRequest,
    InvalidFdRequest,
    decode_end,
    decode_request,
    door_path,
    encode_answer,
    encode_refusal,
)
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

__all__ = ["FdConnection", "FdServer", "default_socket"]

log = logging.getLogger("forebay")

KNOWN = 4096  # parsed request lines kept: every rank asks for the same shards, in every epoch
KNOWN_LINE_BYTES = 4096  # longer requests are not kept: 4,096 of the longest would take a quarter of a gigabyte
BOOKS_S = 0.001
ACCEPTED = 32  # connections accepted per callback: all workers of a job connect at once, and other clients must be served meanwhile
FULL_S = 1.0  # delay before the next accept when this process has no descriptors left
LINE_S = 10.0  # a client sends its line in one piece after it connects; a slower one has stopped, or sends slowly on purpose
_READ_BYTES = 4096  # nearly every line is shorter; a buffer for the longest would be allocated at each read


class FdConnection:
    """One client connection: request lines come in, answers go out. Not thread-safe: used on the event loop alone."""

    def __init__(self, server: FdServer, loop: asyncio.AbstractEventLoop, client: socket.socket, presence: Presence) -> None:
        self.presence = presence
        self._server = server
        self._loop = loop
        self._client = client
        self._rest = b""  # the start of a line whose end has not arrived
        self._leases: dict[int, FdLease] = {}  # by the client's lease number; leases without one get negative numbers
        self._unnumbered = 0
        self._task: asyncio.Task[None] | None = None  # answers the last request
        self._overdue: asyncio.TimerHandle | None = None
        self._left = False

    def __repr__(self) -> str:
        return f"<FdConnection {len(self._leases)} leases{', asking' if self.asking else ''}{', left' if self._left else ''}>"

    @property
    def asking(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None and not self._task.done()

    def come(self) -> None:
        self._overdue = self._loop.call_later(LINE_S, self.leave)
        self._loop.add_reader(self._client.fileno(), self._heard)  # the number: for a socket object, asyncio would format a string first
        self._heard()  # the first line may have arrived already

    def pass_on(self, fd_lease: FdLease, number: int | None, line: bytes) -> None:
        """Send the descriptor of ``fd_lease`` to the client, which holds the lease until it ends it.

        Raises ``ConnectionError`` if the client cannot take it; the lease has ended then.
        """
        if number is None:
            self._unnumbered -= 1
            number = self._unnumbered
        try:
            try:
                if self._left or number in self._leases:
                    raise ConnectionError(errno.EPIPE, "it has left, or it numbers two leases alike")
                socket.send_fds(self._client, [line], [fd_lease.descriptor])
            finally:
                os.close(fd_lease.descriptor)  # our copy; the client's copy has the same lock
        except OSError as error:  # also ETOOMANYREFS: more descriptors are in transit, unread, than this process may have open
            self._server.cache.end(fd_lease)
            self._server.cache.release(fd_lease)
            raise ConnectionError(errno.EPIPE, str(error.strerror)) from error
        self._leases[number] = fd_lease

    def say(self, line: bytes) -> None:
        if not self._left:
            with suppress(OSError):
                self._client.send(line)

    def leave(self) -> asyncio.Task[None] | None:
        """Close the connection and end all its leases. Returns the task that is still to be awaited, if any."""
        if not self._left:
            self._left = True
            self._on_time()
            self._loop.remove_reader(self._client.fileno())
            self._client.close()
            if self._task is not None and not self._task.done():
                cancel_soon(self._task)  # it waits for the origin or the disk
            while self._leases:
                self._server.took_back(self._leases.popitem()[1])
            self.presence.end()
            self._server.gone(self)
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
            if fd_lease is not None:  # None: its answer could not be sent, so it has ended already
                self._server.took_back(fd_lease)
        elif self.asking:  # our clients never do this: they ask one question at a time
            self.leave()
        else:
            self._task = self._server.ask(self, line)

    def _on_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


class FdServer:
    """Accepts clients of allowed users and passes them descriptors. ``in_use`` and ``last_active`` tell an idle sidecar when to stop."""

    def __init__(
        self,
        *,
        cache: FdLender,
        access: Access,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
        pass_headers: Iterable[str] = (),
        instance: str = "",
        most: int | None = None,
        jobs: LiveJobs | None = None,
    ) -> None:
        """Take at most ``most`` connections, and pass at most as many leases at a time.

        The default is a quarter of the descriptor limit: HTTP takes up to half, shard files and origins need the rest. A lease costs this
        process no descriptor, but the kernel counts a descriptor that the client has not received yet.
        """
        self.last_active = clock()  # when the last lease or connection ended
        self.connections: set[FdConnection] = set()
        self.leases = 0
        self._listener: UnixListener | None = None
        self._again: asyncio.TimerHandle | None = None
        self.cache = cache
        self._access = access
        self._events = events
        self._group = group
        self._clock = clock
        self._shard = lru_cache(KNOWN)(partial(_shard, frozenset(name.lower() for name in pass_headers)))
        self._instance = instance
        self._most = client_places() // 2 if most is None else most
        self._jobs = jobs or LiveJobs(clock)
        self._books: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<FdServer {self.path or 'closed'}, {len(self.connections)} connections>"

    @property
    def in_use(self) -> bool:
        """Whether a client holds a lease or waits for one. An idle connection does not count."""
        return self.leases > 0 or any(connection.asking for connection in self.connections)

    @property
    def path(self) -> Path | None:
        """Where it listens; None while it is closed."""
        return self._listener.path if self._listener else None

    def open_beside(self, http_socket: Path | None, *, can_lend: bool) -> None:
        """Listen next to the HTTP socket, if there is one and the file system supports leases. Otherwise HTTP serves every shard."""
        if http_socket is None:
            return
        if not can_lend:
            log.info("no fd door: a lease on a file does not hold on this file system; complete shards are served over HTTP too")
            return
        try:
            self.open(Path(door_path(str(http_socket))))
        except ConfigError as error:
            log.warning("no fd door, complete shards are served over HTTP too: %s", error)

    def open(self, path: Path) -> None:
        """Listen at ``path``. Raises ``ConfigError``."""
        self._listener = UnixListener(path)
        asyncio.get_running_loop().add_reader(self._listener.socket, self._accept)

    async def aclose(self) -> None:
        """Stop accepting, and end all leases. Mappings of clients stay valid: the kernel holds them. Safe to repeat."""
        listener, self._listener = self._listener, None
        if listener is not None:
            if self._again is not None:
                self._again.cancel()
            asyncio.get_running_loop().remove_reader(listener.socket)
            listener.remove()
            listener.socket.close()
        tasks = [task for connection in list(self.connections) if (task := connection.leave()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._keep_books()

    # Connections

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            if self._listener is None:
                return
            try:
                client, _ = self._listener.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors left (EMFILE): the listener stays readable, and the loop would spin
                log.warning("the fd door takes nobody for %g s: %s", FULL_S, error.strerror)
                asyncio.get_running_loop().remove_reader(self._listener.socket)
                self._again = asyncio.get_running_loop().call_later(FULL_S, self._reopen)
                return
            client.setblocking(False)
            self._enter(client)

    def _reopen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.socket, self._accept)

    def _enter(self, client: socket.socket) -> None:
        if self._access.is_stranger(unix_peer(client)):
            self._events.emit(ClientRefused("uid"))
            _turn_away(client, encode_refusal(403, "another user's sidecar", self._instance))
        elif len(self.connections) >= self._most:
            self._events.emit(DoorAnswered("refused"))
            _turn_away(client, encode_refusal(503, "too many descriptors are out", self._instance))
        else:
            connection = FdConnection(self, asyncio.get_running_loop(), client, Presence(self._jobs))
            self.connections.add(connection)
            connection.come()

    def gone(self, connection: FdConnection) -> None:
        """``connection`` has closed."""
        self.connections.discard(connection)
        self.last_active = self._clock()

    # Requests

    def ask(self, connection: FdConnection, line: bytes) -> asyncio.Task[None] | None:
        """Answer ``line`` at once, or return the task that will."""
        started = self._clock()
        try:
            if self.leases >= self._most:
                raise UseHttp("refused", "too many descriptors are out")
            asked = decode_request(line)
            shard = (self._shard if len(line) <= KNOWN_LINE_BYTES else self._shard.__wrapped__)(asked.shard, asked.headers)
            if asked.version:
                shard = replace(shard, meant=asked.version)
            connection.presence.asks(asked.reader.job if asked.reader else ANONYMOUS)
            fd_lease = self.cache.lend(shard, asked.reader)
            if fd_lease is not None:
                self._pass(connection, asked, fd_lease, started)
                return None
        except Exception as error:
            self._refuse(connection, error)
            return None
        waiting = self._wait(connection, asked, shard, started)
        try:
            return self._group.create_task(waiting, name="descriptor")
        except RuntimeError:  # the task group is shutting down
            waiting.close()
            connection.leave()
            return None

    async def _wait(self, connection: FdConnection, asked: FdRequest, shard: Shard, started: float) -> None:
        try:
            self._pass(connection, asked, await self.cache.lend_when_ready(shard, asked.reader), started)
        except Exception as error:
            self._refuse(connection, error)

    def _pass(self, connection: FdConnection, asked: FdRequest, fd_lease: FdLease, started: float) -> None:
        """Send the descriptor, then account for it. Raises ``ConnectionError`` if the client cannot take it."""
        reading = fd_lease.reading
        connection.pass_on(
            fd_lease,
            asked.lease,
            encode_answer(reading.position, reading.entry.shown_version.etag(reading.entry.shown_key), self._instance),
        )
        self.leases += 1
        fd_lease.in_parts = asked.parts
        fd_lease.asked_at, fd_lease.answered_s = started, self._clock() - started
        self.later(partial(self.cache.passed, fd_lease))
        self._events.emit(DoorAnswered("passed"))
        self._events.emit(_done(fd_lease, fd_lease.answered_s, None))

    def took_back(self, fd_lease: FdLease) -> None:
        """The client has ended this lease. Release it at once and account for it later: the client is about to ask for its next shard."""
        self.leases -= 1
        self.last_active = self._clock()
        self.cache.end(fd_lease)
        self.later(partial(self._settle, fd_lease))

    def _settle(self, fd_lease: FdLease) -> None:
        self.cache.release(fd_lease)
        reading = fd_lease.reading
        served = Served(reading.shard.name, reading.reader, reading.epoch, reading.position, None, 0.0, "", fd_lease.asked_at)
        self._events.emit(LeaseEnded(_done(fd_lease, self._clock() - fd_lease.asked_at, served)))

    def later(self, call: Callable[[], None]) -> None:
        """Run ``call`` within ``BOOKS_S``, after the answers: plans and counters, for which no client waits.

        The workers of a job begin an epoch together; each of them is answered first.
        """
        if not self._books:
            asyncio.get_running_loop().call_later(BOOKS_S, self._keep_books)
        self._books.append(call)

    def _keep_books(self) -> None:
        books, self._books = self._books, []
        for call in books:
            try:
                call()
            except Exception as error:  # a fault in one call must not lose the others
                log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, frames_of(error))

    def _refuse(self, connection: FdConnection, error: Exception) -> None:
        if isinstance(error, UseHttp):
            self._say(connection, 503 if error.reason == "refused" else 409, str(error), error.reason)
        elif isinstance(error, (InvalidFdRequest, InvalidShardUrl)):
            self._say(connection, 400, str(error), "refused")
            if isinstance(error, InvalidFdRequest):  # the next line may be the rest of this one
                connection.leave()
        elif isinstance(error, ForebayError):  # HTTP gives the same error in full
            self._say(connection, error.status, error.title, "refused")
        elif isinstance(error, ConnectionError):
            log.debug("a client left before its descriptor came")
            connection.leave()
        else:
            log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, frames_of(error))
            self._say(connection, 500, "a fault in Forebay itself", "refused")

    def _say(self, connection: FdConnection, status: int, title: str, answer: str) -> None:
        self._events.emit(DoorAnswered(answer))
        connection.say(encode_refusal(status, title, self._instance))


def default_socket(path: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The default socket path, if the kernel takes it and the fd door's path too; else None and the lines to log."""
    if fits(Path(door_path(str(path)))):
        return path, ()
    return None, (f"no unix socket and no fd door, all is served over HTTP: {path} is too long for the kernel; --socket names another",)


def _shard(pass_headers: frozenset[str], text: str, headers: tuple[tuple[str, str], ...]) -> Shard:
    return Shard.of(parse_origin_url(text), credential_headers(headers, pass_headers))


def _done(fd_lease: FdLease, seconds: float, served: Served | None) -> RequestDone:
    """The record of one opening, a hit. Its whole length counts as read, except for a shard read in parts: that amount is unknown."""
    size, reader = fd_lease.reading.position, fd_lease.reading.reader
    read, opened = (0, size) if fd_lease.in_parts else (size, 0)
    job = reader.job if reader else ""
    return RequestDone("GET", 200, RequestOutcome.HIT, read, fd_lease.answered_s, seconds, read, job, served, opened_bytes=opened)


def _turn_away(client: socket.socket, line: bytes) -> None:
    with client, suppress(OSError):
        client.send(line)
