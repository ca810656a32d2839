"""The fd door: a unix socket of its own, where a reader asks for a complete shard and gets a descriptor of it.

A client connects once and asks for one shard after the other. A line about a shard that is open here is answered in the turn of the loop
in which it came: no stream, no parser, no task and no timer stands between, because this is what an opening costs (a thread would cost more
than all of it: opening a file we hold open, and locking it, never wait for the disk). A task is begun only where the origin must be asked,
or the disk. The reader is inside the shard until a line ends its lease, or its connection closes, by whatever end.

A shard that cannot be passed, and every failure, is answered with a line that says so: HTTP serves it, or says more.
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

KNOWN = 4096  # shards whose names are not read anew each time: every rank asks for them, and every epoch
KNOWN_LINE_BYTES = 4096  # of a longer request nothing is kept: 4,096 of the longest would be a quarter of a gigabyte
BOOKS_S = 0.001
ACCEPTED = 32  # connections a turn of the loop: a job's workers open their first shards in the same instant, and others want to be served
FULL_S = 1.0  # before the next try when this process has no descriptors left
LINE_S = 10.0  # a client sends its line in one piece, right after it connected; one that does not has stopped, or drips on purpose
_READ_BYTES = 4096  # nearly every line is shorter, and a place for the longest would be made anew each time


class FdConnection:
    """A connection: lines come, answers go. Not thread-safe: the event loop's only."""

    def __init__(self, server: FdServer, loop: asyncio.AbstractEventLoop, client: socket.socket, presence: Presence) -> None:
        self.presence = presence
        self._server = server
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
            self._server.cache.end(fd_lease)
            self._server.cache.release(fd_lease)
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
            if fd_lease is not None:  # one that failed on its way has ended already
                self._server.took_back(fd_lease)
        elif self.asking:  # no client of ours does: answers come in order, one question at a time
            self.leave()
        else:
            self._task = self._server.ask(self, line)

    def _on_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


class FdServer:
    """Lets our own user in and passes descriptors. ``clients`` tell an idle sidecar when to go."""

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
        """``most`` connections at a time, and as many leases: a quarter of all descriptors, since HTTP takes up to half, shard files and
        origins the rest. A lease costs us none, but what a client has not taken yet counts as open in the kernel.
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
        """Whether a client is inside a shard, or waits for one; a connection alone is kept only for the next question."""
        return self.leases > 0 or any(connection.asking for connection in self.connections)

    @property
    def path(self) -> Path | None:
        """Where it listens; None while it is closed."""
        return self._listener.path if self._listener else None

    def open_beside(self, http_socket: Path | None, *, can_lend: bool) -> None:
        """Listen beside the HTTP socket, where there is one and a lease holds. Without the door all is served over HTTP."""
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
        """Let nobody in, end all leases of ours. What clients have mapped stays theirs: the kernel holds that. Safe to repeat."""
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

    # Who comes

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            if self._listener is None:
                return
            try:
                client, _ = self._listener.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors left (EMFILE): a listener that stays readable would turn the loop for nothing
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
        """It has closed."""
        self.connections.discard(connection)
        self.last_active = self._clock()

    # What they ask

    def ask(self, connection: FdConnection, line: bytes) -> asyncio.Task[None] | None:
        """Answer ``line``, or begin what its answer waits for, and return that."""
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
        except RuntimeError:  # everything is coming down
            waiting.close()
            connection.leave()
            return None

    async def _wait(self, connection: FdConnection, asked: FdRequest, shard: Shard, started: float) -> None:
        try:
            self._pass(connection, asked, await self.cache.lend_when_ready(shard, asked.reader), started)
        except Exception as error:
            self._refuse(connection, error)

    def _pass(self, connection: FdConnection, asked: FdRequest, fd_lease: FdLease, started: float) -> None:
        """Raises ``ConnectionError`` where nobody takes it. The books are kept when the client has it already."""
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
        """The client has ended that lease. Nothing is held by it any more; whoever ends one asks for the next shard in the same breath."""
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
        """``call`` concerns nobody who waits: plans and sums. Workers begin an epoch together, and each is answered before any of it."""
        if not self._books:
            asyncio.get_running_loop().call_later(BOOKS_S, self._keep_books)
        self._books.append(call)

    def _keep_books(self) -> None:
        books, self._books = self._books, []
        for call in books:
            try:
                call()
            except Exception as error:  # a fault of ours with one of them is not the others'
                log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, frames_of(error))

    def _refuse(self, connection: FdConnection, error: Exception) -> None:
        if isinstance(error, UseHttp):
            self._say(connection, 503 if error.reason == "refused" else 409, str(error), error.reason)
        elif isinstance(error, (InvalidFdRequest, InvalidShardUrl)):
            self._say(connection, 400, str(error), "refused")
            if isinstance(error, InvalidFdRequest):  # who knows what the next line would be the rest of
                connection.leave()
        elif isinstance(error, ForebayError):  # the same over HTTP, where all of it is told
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
    """``path``, where nobody has named another, if it can be a socket and the door lie beside it; else None, and what is to be said."""
    if fits(Path(door_path(str(path)))):
        return path, ()
    return None, (f"no unix socket and no fd door, all is served over HTTP: {path} is too long for the kernel; --socket names another",)


def _shard(pass_headers: frozenset[str], text: str, headers: tuple[tuple[str, str], ...]) -> Shard:
    return Shard.of(parse_origin_url(text), credential_headers(headers, pass_headers))


def _done(fd_lease: FdLease, seconds: float, served: Served | None) -> RequestDone:
    """A hit: with all its bytes, which a stream reads; of one that is read in parts none are known."""
    size, reader = fd_lease.reading.position, fd_lease.reading.reader
    read, opened = (0, size) if fd_lease.in_parts else (size, 0)
    job = reader.job if reader else ""
    return RequestDone("GET", 200, RequestOutcome.HIT, read, fd_lease.answered_s, seconds, read, job, served, opened_bytes=opened)


def _turn_away(client: socket.socket, line: bytes) -> None:
    with client, suppress(OSError):
        client.send(line)
