"""One client connection: limits of the parser and of patience, socket buffers, who is behind it, and parser errors in our own words.

A connection costs a descriptor, and a stuck one also a megabyte of socket buffer, so their number has a bound (``ConnectionLimit``; the
connections close themselves). Idle connections leave first: they come back in a tenth of a millisecond, and a client that opens many cannot
lock the working ones out. *Strangers* (another local user, who gets the health paths at most, and a remote client that has not shown its
token yet) have a smaller bound of their own, because any user of the machine could take all the places.

The only module that looks at attributes which aiohttp keeps to itself. ``PRIVATE`` names them; a test looks for them in the aiohttp that
is installed, and pyproject.toml bounds its version.
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

# Large enough that a target of 20 kB, too long for us, still reaches our own answer. The two differ so that the parser's complaint tells
# which of them it was.
MAX_LINE_BYTES = 64 * 1024
MAX_FIELD_BYTES = 32 * 1024  # tokens in Authorization reach 16 kB
MAX_FIELDS = 100  # loaders send ten; with the field's limit this bounds what a header can make us hold
# From the end of an answer to the end of the next request's header. Half a header counts as none: a header fits into one packet, so a
# client that sends half of one has gone or drips on purpose, and keeps its place no longer than a silent client.
IDLE_S = 30.0
# One chunk of 1 MiB in the kernel while the next is read. Left to itself Linux keeps a new connection's buffer so small that the loop
# wakes up for every 100 kB: less than half the throughput. Twice this is what the kernel counts, and 64 readers pay it.
SEND_BUFFER_BYTES = 1024 * 1024
# What a client still sends after we have answered (a refused body) is read this long, so that it sees the answer and not a reset.
LINGER_S = 2.0
# What a client beyond the bound is told. Written by hand: it must cost less than the connection it refuses.
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

    stranger: bool  # its client has not proved yet that it may talk to the sidecar

    def __init__(self, server: ConnectionServer, **limits: Any) -> None:
        super().__init__(server, **limits)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._idle_since = asyncio.get_running_loop().time()  # the end of the last answer
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_S, self._look_whether_it_asks)
        self.peer: Peer = peer_of(transport)  # at once: later its client may be gone, and the kernel with nothing to tell
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
        """Whether no request is being answered or waits to be."""
        return self._waiter is not None and not self._waiter.done() and not self._messages

    def answered(self) -> None:
        """The handler of a request has ended."""
        self._idle_since = asyncio.get_running_loop().time()

    def _look_whether_it_asks(self) -> None:
        left_s = IDLE_S
        # While a job's connections are open it goes on, so they may rest as long as a checkpoint takes.
        if self.idle and not self.presence.is_named:
            left_s -= asyncio.get_running_loop().time() - self._idle_since
        if left_s <= 0:
            log.debug("a connection asked nothing for %g s, or did not end the header of its request", IDLE_S)
            self.force_close()
        else:
            self._idle_timer = asyncio.get_running_loop().call_later(left_s, self._look_whether_it_asks)

    def turn_away(self, *, newcomer: bool) -> None:
        """No place for it any more; a newcomer is told so, an idle one sees an ordinary end of keep-alive."""
        if self.transport is not None:
            if newcomer:
                self.transport.write(_FULL)
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What the parser refuses, as a problem; no traceback, because a malformed request is no fault of ours."""
        log.debug("malformed request refused: %s", type(exc).__name__)
        response = answer_error(_parser_error(exc, message))
        response.headers["Server"] = SERVER
        response.force_close()
        return response


# Eight GPUs with 32 workers of two connections each are 512; four such jobs on one node still fit.
MOST_CONNECTIONS = 2048
# Probes of node agents are a handful. Remote workers are strangers for the one round trip of their first request: a job's worth of them.
MOST_STRANGERS = 256


class ConnectionLimit:
    """The connections, in the order in which they were last heard. Not thread-safe: the event loop's only."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_strangers: int = MOST_STRANGERS) -> None:
        self._most = most
        self._most_strangers = most_strangers
        self._guests: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __repr__(self) -> str:
        return f"<ConnectionLimit {len(self)} of {self._most}>"

    def enter(self, guest: Connection) -> Connection | None:
        """Admit ``guest``; returns the connection that must leave instead: None, the one idle for longest, or ``guest`` itself."""
        self._guests[guest] = None
        if guest.stranger and sum(other.stranger for other in self._guests) > self._most_strangers:
            return self._longest_idle(guest, strangers_only=True)
        return self._longest_idle(guest, strangers_only=False) if len(self._guests) > self._most else None

    def heard(self, guest: Connection) -> None:
        """``guest`` asked something."""
        if guest in self._guests:
            del self._guests[guest]
            self._guests[guest] = None

    def leave(self, guest: Connection) -> None:
        """It is gone; leaving twice is no error."""
        self._guests.pop(guest, None)

    def _longest_idle(self, newest: Connection, *, strangers_only: bool) -> Connection:
        others = (guest for guest in self._guests if guest is not newest and guest.idle)
        return next((guest for guest in others if guest.stranger or not strangers_only), newest)


class ConnectionServer(web.Server):
    """Makes a ``Connection`` for each client, as many as ``connection_limit`` takes."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        is_stranger: Callable[[Peer], bool] = lambda peer: False,
        connection_limit: ConnectionLimit | None = None,
        jobs: LiveJobs | None = None,
    ) -> None:
        # Cancelled when its client leaves: a handler that waits for an origin must not hold its lease until bytes come.
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
            auto_decompress=False,  # no bomb unfolds in a plan
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
            # In the next turn: this connection's own task has not begun to wait yet.
            asyncio.get_running_loop().call_soon(partial(leaver.turn_away, newcomer=leaver is handler))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        assert isinstance(handler, Connection)
        self.connection_limit.leave(handler)


def asks(request: web.BaseRequest, reader: ReaderName | None) -> None:
    """The connection is one of the reader's job from now on."""
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


# Far above what a node's sidecar needs; an unlimited one would let a leak run until the kernel is out of memory instead of descriptors.
_ENOUGH = 65_536


def raise_limit() -> int:
    """Raise the soft limit towards the hard one; returns what holds. 1,024, the usual one, is a few hundred readers and their shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a container may forbid it; then fewer clients are taken
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def client_places() -> int:
    """How many clients may be connected: half of all descriptors at most, because each may need a shard file and an origin connection."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))
