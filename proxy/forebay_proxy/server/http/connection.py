"""One client connection: parser limits, timeouts, socket buffers, the client's identity, and parser errors in our own words.

A connection costs a descriptor; a stuck one also costs a megabyte of socket buffer. So ``ConnectionLimit`` bounds their number. It closes
idle connections first: a client opens a new one in a tenth of a millisecond. So a client that opens many cannot lock out the ones in use.

*Strangers* have a smaller bound of their own, because any user of the machine could take all the places. A stranger is another local
user, who may ask for the health paths at most, or a remote client that has not sent its token yet.

This is the only module that uses private attributes of aiohttp. ``PRIVATE`` names them. A test looks for them in the installed
aiohttp, and pyproject.toml bounds its version.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS, LiveJobs, Presence
from forebay_proxy.server.http.problem import SERVER, answer_error
from forebay_proxy.server.net.peers import Peer, peer_of
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["PRIVATE", "Connection", "ConnectionLimit", "ConnectionServer", "asks", "client_places", "raise_limit"]

log = logging.getLogger("forebay")

# A target of 20 kB, which is too long for us, still reaches our own answer. The two limits differ so that the parser's error tells which
# of them was exceeded.
MAX_LINE_BYTES = 64 * 1024
MAX_FIELD_BYTES = 32 * 1024  # tokens in Authorization reach 16 kB
MAX_FIELDS = 100  # loaders send ten; with MAX_FIELD_BYTES this bounds the memory of one header
# From the end of an answer to the end of the next request's header. Half a header counts as none: a header fits into one packet, so a
# client that sends half of one has gone, or sends slowly on purpose.
IDLE_S = 30.0
# One chunk of 1 MiB is in the kernel while the next is read. Linux starts with a buffer so small that the event loop would wake up for
# every 100 kB: less than half the throughput. The kernel counts twice this size, for each of 64 readers.
SEND_BUFFER_BYTES = 1024 * 1024
# After an answer, the sidecar reads for this long what the client still sends (a refused body). So the client sees the answer, not a reset.
LINGER_S = 2.0
# The answer to a client beyond the limit. Written by hand: it must cost less than the connection it refuses.
_FULL_BODY = (
    b'{"type": "urn:forebay:problem:too-many-connections", "title": "Too many connections", "status": 503, "retryable": true, '
    b'"detail": "every place is taken by a connection that is being answered", "next_step": "use fewer connections, or ask again"}\n'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: forebay\r\nContent-Type: application/problem+json\r\nRetry-After: 2\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)


PRIVATE = {
    "_waiter": "the future it awaits while it has no request; None while it answers one",
    "_messages": "the requests it has parsed and not begun to answer",
}


class Connection(web.RequestHandler):
    """aiohttp's connection with Forebay's limits. ``peer``: the client at the other end; ``presence``: its job."""

    __slots__ = ("_idle_since", "_idle_timer", "_server", "peer", "presence", "stranger")

    stranger: bool  # its client has not proved yet that it may use the sidecar

    def __init__(self, server: ConnectionServer, **limits: Any) -> None:
        super().__init__(server, **limits)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._idle_since = asyncio.get_running_loop().time()  # the end of the last answer
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._look_whether_it_asks)
        self.peer: Peer = peer_of(transport)  # at once: when the client has gone, the kernel no longer knows it
        self.stranger = self._server.is_stranger(self.peer)
        self.presence = Presence(self._server.jobs)
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(high=0)  # a drained transport holds nothing; see body_writer.py
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._idle_timer.cancel()
        self.presence.end()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered or queued."""
        return self._waiter is not None and not self._waiter.done() and not self._messages

    def answered(self) -> None:
        """The handler of a request has ended."""
        self._idle_since = asyncio.get_running_loop().time()

    def _look_whether_it_asks(self) -> None:
        left_s = IDLE_S
        # While a job's connections are open the job is running, so they may be idle for as long as a checkpoint takes.
        if self.idle and not self.presence.is_named:
            left_s -= asyncio.get_running_loop().time() - self._idle_since
        if left_s <= 0:
            log.debug("a connection asked nothing for %g s, or did not end the header of its request", IDLE_S)
            self.force_close()
        else:
            self._idle_timer = asyncio.get_running_loop().call_later(left_s, self._look_whether_it_asks)

    def turn_away(self, *, newcomer: bool) -> None:
        """Close the connection for lack of room. A newcomer gets a 503; an idle connection sees an ordinary end of keep-alive."""
        if self.transport is not None:
            if newcomer:
                self.transport.write(_FULL)
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The parser's error as a problem document. No traceback: a malformed request is no fault of ours."""
        log.debug("malformed request refused: %s", type(exc).__name__)
        response = answer_error(_parser_error(exc, message))
        response.headers["Server"] = SERVER
        response.force_close()
        return response


# Eight GPUs with 32 workers of two connections each are 512; four such jobs on one node still fit.
MOST_CONNECTIONS = 2048
# Node agents probe with a handful. Remote workers are strangers until their first request is answered: room for one job of them.
MOST_STRANGERS = 256


class ConnectionLimit:
    """The connections, ordered by their last request. Not thread-safe: used on the event loop alone."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_strangers: int = MOST_STRANGERS) -> None:
        self._most = most
        self._most_strangers = most_strangers
        self._guests: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __repr__(self) -> str:
        return f"<ConnectionLimit {len(self)} of {self._most}>"

    def enter(self, guest: Connection) -> Connection | None:
        """Admit ``guest``. Returns the connection to close: None, the one that has been idle longest, or ``guest`` itself."""
        self._guests[guest] = None
        if guest.stranger and sum(other.stranger for other in self._guests) > self._most_strangers:
            return self._longest_idle(guest, strangers_only=True)
        return self._longest_idle(guest, strangers_only=False) if len(self._guests) > self._most else None

    def heard(self, guest: Connection) -> None:
        """``guest`` has sent a request."""
        if guest in self._guests:
            del self._guests[guest]
            self._guests[guest] = None

    def leave(self, guest: Connection) -> None:
        """``guest`` has closed; leaving twice is no error."""
        self._guests.pop(guest, None)

    def _longest_idle(self, newest: Connection, *, strangers_only: bool) -> Connection:
        others = (guest for guest in self._guests if guest is not newest and guest.idle)
        return next((guest for guest in others if guest.stranger or not strangers_only), newest)


class ConnectionServer(web.Server):
    """Makes a ``Connection`` for each client, as many as ``connection_limit`` allows."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        is_stranger: Callable[[Peer], bool] = lambda peer: False,
        connection_limit: ConnectionLimit | None = None,
        jobs: LiveJobs | None = None,
    ) -> None:
        # Cancelled when its client leaves: a handler that waits for an origin must not keep its lease.
        super().__init__(self._answer, handler_cancellation=True)
        self._handler = handler
        self.is_stranger = is_stranger
        self.connection_limit = connection_limit or ConnectionLimit()
        self.jobs = jobs or LiveJobs(time.monotonic)

    def __call__(self) -> Connection:
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # none: a request line holds queries, and a query may hold a secret
            auto_decompress=False,  # no decompression bomb in a plan
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
            lingering_time=LINGER_S,
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        self.connection_limit.heard(connection)
        try:
            return await self._handler(request)
        finally:
            connection.answered()

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        assert isinstance(handler, Connection)
        leaver = self.connection_limit.enter(handler)
        if leaver is not None:
            assert isinstance(leaver, Connection)
            # Later: this connection's own task has not begun to wait yet.
            asyncio.get_running_loop().call_soon(partial(leaver.turn_away, newcomer=leaver is handler))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        assert isinstance(handler, Connection)
        self.connection_limit.leave(handler)


def asks(request: web.BaseRequest, reader: ReaderName | None) -> None:
    """Count the connection as one of the reader's job from now on."""
    if isinstance(request.protocol, Connection):
        request.protocol.presence.asks(reader.job if reader else ANONYMOUS)


def _parser_error(exc: BaseException | None, message: str | None) -> InvalidRequest:
    if not isinstance(exc, LineTooLong):
        cause = (message or "").splitlines()[0][:200] if message else "it cannot be parsed"
        return InvalidRequest(f"malformed HTTP request: {cause}", next_step="send one well-formed HTTP/1.1 request at a time")
    if exc.args[1] == MAX_LINE_BYTES:
        return InvalidRequest(
            f"the request target is longer than {MAX_LINE_BYTES} bytes", status=414, next_step="a shard URL has at most 8192 bytes"
        )
    return InvalidRequest(
        f"a header field is longer than {MAX_FIELD_BYTES} bytes", status=431, next_step="send a shorter header, above all a shorter token"
    )


# Far above what a sidecar needs. Without a limit, a leak would run until the kernel is out of memory instead of descriptors.
_ENOUGH = 65_536


def raise_limit() -> int:
    """Raise the soft limit of descriptors towards the hard one; returns the limit in force. The usual 1,024 is a few hundred readers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a container may forbid it; then fewer clients are accepted
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def client_places() -> int:
    """How many clients may be connected: half of the descriptor limit, because each may need a shard file and an origin connection too."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))
