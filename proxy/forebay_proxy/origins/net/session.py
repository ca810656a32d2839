"""The HTTP session all origins share: what is dialled, and which connection carries which request, judged at the last moment.

The guard has judged the hop before (``GuardedResolver.admit``). Here nothing is trusted that lies in between: the address is judged again
where the socket is made, whether it came from the resolver, from a literal the client never asks it about, or from happy eyeballs; and the
peer of every connection is judged before a request is written to it. A kept connection was dialled for another request: the name may have
led elsewhere then (rebinding), or the other request was allowed more. One that this hop might not have dialled is closed and not used.
"""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import aiohttp

from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.net.resolver import GuardedResolver, trip_now

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = ["new_session"]

# Measured on loopback: 64 KiB costs a fifth of the rate; 1 MiB gains a tenth at most and may hold 2 MiB a body.
READ_BUFFER_BYTES = 256 * 1024
KEEP_ALIVE_S = 20.0  # below the 60 s of most servers, so that a reused connection is rarely one they have just closed


class _GuardedConnector(aiohttp.TCPConnector):
    def __init__(self, guard: Guard, **how: Any) -> None:
        self._guard = guard
        self._used: WeakSet[ResponseHandler] = WeakSet()
        super().__init__(socket_factory=self._socket, **how)

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:  # noqa: ASYNC109
        """A connection whose peer the present trip might have dialled itself, and on which nothing is left of an earlier answer.

        A request that closes its connection wants an unused one.
        """
        while True:
            connection = await super().connect(req, traces, timeout)
            try:
                was_used = connection.protocol in self._used
                if self._has_spoken(connection) or (was_used and req.headers.get("Connection") == "close"):
                    connection.close()
                    continue
                self._guard.check_dial(trip_now(), _peer_of(connection))
                return connection
            except Refused:
                # Only a kept one comes here, and each turn closes one: a new one was judged by the same rule when it was dialled.
                connection.close()
            except BaseException:
                connection.close()
                raise

    def _has_spoken(self, connection: Connection) -> bool:
        """Whether a kept connection has more to say than it was asked: bytes beyond an answer, which the client would take for the next
        one (tried: a shard of five bytes), or its end."""
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            return True
        if protocol not in self._used:  # a server that speaks first is found out by its answer
            self._used.add(protocol)
            return False
        waiting = select.poll()
        waiting.register(transport.get_extra_info("socket"), select.POLLIN)
        return protocol.should_close or bool(waiting.poll(0))

    def _socket(self, dialled: tuple[Any, ...]) -> socket.socket:
        """The socket for one (family, type, protocol, name, address); raises ``Refused``."""
        family, kind, protocol, _, address = dialled
        self._guard.check_dial(trip_now(), str(address[0]))
        return socket.socket(family, kind, protocol)


def _peer_of(connection: Connection) -> str:
    """The address at the other end, behind TLS too. Raises ``ClientConnectionError`` where there is none any more."""
    peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
    if not peer:
        raise aiohttp.ClientConnectionError("the connection has no other end")
    return str(peer[0])


def new_session(guard: Guard, resolver: GuardedResolver, connect_timeout_s: float, user_agent: str) -> aiohttp.ClientSession:
    connector = _GuardedConnector(
        guard,
        limit=0,  # the limiter bounds, and a queue here would hide from it which need is nearest
        resolver=resolver,
        use_dns_cache=False,  # every dial is judged anew; the resolver keeps raw answers itself
        keepalive_timeout=KEEP_ALIVE_S,
    )
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,  # bytes as sent: an encoding nobody asked for is recorded, not undone
        cookie_jar=aiohttp.DummyCookieJar(),  # a reader's cookies are for that reader alone
        headers={"Accept-Encoding": "identity", "Accept": "*/*", "User-Agent": user_agent},
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),  # silence is watched here: the client's timer is one a piece
        read_bufsize=READ_BUFFER_BYTES,
        trust_env=False,  # neither .netrc nor *_PROXY: what is used is passed
    )
