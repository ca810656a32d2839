"""What the HTTP client dials, and which connection carries which request: names looked up, every answer judged, and once more at the dial.

The client skips its resolver for IP literals (the guard judges those in ``Guard.check``) and asks it without saying which hop it is on.
The hop travels in a context variable instead: the client resolves and dials in the task of the request. Raw answers are kept for ten
seconds, so that the look-up made to judge a hop and the one made to dial it see the same addresses; judging is done anew each time, on
what will be dialled.

The hop was judged before (``GuardedResolver.admit``). In the session nothing is trusted that lies in between: the address is judged again
where the socket is made, whether it came from the resolver, from a literal the client never asks it about, or from happy eyeballs; and the
peer of every connection is judged before a request is written to it. A kept connection was dialled for another request: the name may have
led elsewhere then (rebinding), or the other request was allowed more. One that this hop might not have dialled is closed and not used.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from forebay_proxy.origins.net.address_class import AddressClass, classify, literal
from forebay_proxy.origins.net.guard import Guard, Hop, Refused

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = ["GuardedResolver", "new_session", "travelling"]

# Measured on loopback: 64 KiB costs a fifth of the rate; 1 MiB gains a tenth at most and may hold 2 MiB a body.
READ_BUFFER_BYTES = 256 * 1024
KEEP_ALIVE_S = 20.0  # below the 60 s of most servers, so that a reused connection is rarely one they have just closed
_KEEP_S = 10.0  # getaddrinfo tells no TTL; ten seconds follow a failover and still spare 64 connections 63 look-ups
_KEEP_NAMES = 256  # hosts of one training run: a handful
_THREADS = 8  # one a name: a name server that does not answer holds its thread for up to 30 s, and other names shall not wait for it
# Behind a proxy the answer is not needed: a network without a way out often has a name server that never says no, only nothing.
_LOOK_ASIDE_S = 2.0
_UNKNOWN_S = 60.0

_hop: ContextVar[Hop | None] = ContextVar("forebay_trip", default=None)

Answers = list[tuple[socket.AddressFamily, str]]
T = TypeVar("T")


@contextmanager
def travelling(hop: Hop) -> Iterator[None]:
    """Requests made inside are on this hop."""
    token = _hop.set(hop)
    try:
        yield
    finally:
        _hop.reset(token)


def _trip_now() -> Hop:
    """The hop the present task is on; raises ``Refused`` outside any: there is nothing to judge by."""
    hop = _hop.get()
    if hop is None:
        raise Refused("a connection outside any request")
    return hop


class GuardedResolver(AbstractResolver):
    """getaddrinfo with a judge behind it. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        guard: Guard,
        *,
        look_up: Callable[[str, int], Answers] | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_aside_s: float = _LOOK_ASIDE_S,
    ) -> None:
        self._guard = guard
        self._look_up = look_up or _getaddrinfo
        self._clock = clock
        self._look_aside_s = look_aside_s
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="forebay-names")
        self._kept: OrderedDict[str, tuple[float, Answers]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Answers]] = {}
        self._unknown: OrderedDict[str, float] = OrderedDict()  # until when; only for names a proxy looks up

    async def admit(self, hop: Hop) -> AddressClass:
        """Judge a hop before anything is sent, also where an open connection would be reused.

        Returns the most public class among the addresses it may end at. Raises ``Refused``, ``OSError``.
        """
        self._guard.check(hop)
        host, port = hop.place.host, hop.place.port
        if hop.proxy is None:
            permitted = self._permitted(hop, await self._answers(host, port))
            return min(classify(address) for _, address in permitted)
        known = [host] if literal(host) is not None else [address for _, address in await self._look_aside(host, port)]
        for address in known:
            self._guard.check_address(hop, address)
        if not known:
            self._guard.check_unknown(hop)
        return min(map(classify, known), default=AddressClass.PUBLIC)

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Only addresses the present trip may dial; raises ``Refused`` (an OSError) when none is left."""
        hop = _trip_now()
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in self._permitted(hop, await self._answers(host, port))
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        self._kept.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _permitted(self, hop: Hop, answers: Answers) -> Answers:
        allowed = set(self._guard.permitted(hop, [address for _, address in answers]))
        return [answer for answer in answers if answer[1] in allowed]

    async def _look_aside(self, host: str, port: int) -> Answers:
        """The addresses of a name, [] if it has none or the look-up takes too long: who will be asked about it is the proxy."""
        if self._clock() < self._unknown.get(host, 0.0):
            return []
        try:
            async with asyncio.timeout(self._look_aside_s):
                return await self._answers(host, port)
        except (TimeoutError, OSError):
            _keep(self._unknown, host, self._clock() + _UNKNOWN_S)
            return []

    async def _answers(self, host: str, port: int) -> Answers:
        kept = self._kept.get(host)
        if kept is not None and self._clock() - kept[0] < _KEEP_S:
            return kept[1]
        asked = self._asked.get(host)
        if asked is None:
            asked = self._asked[host] = asyncio.get_running_loop().run_in_executor(self._pool, self._look_up, host, port)
            asked.add_done_callback(lambda answered: self._came(host, answered))
        return await asyncio.shield(asked)  # others may wait for the same name

    def _came(self, host: str, answered: asyncio.Future[Answers]) -> None:
        self._asked.pop(host, None)
        if not answered.cancelled() and answered.exception() is None:
            _keep(self._kept, host, (self._clock(), answered.result()))


def _keep(memory: OrderedDict[str, T], host: str, value: T) -> None:
    memory[host] = value
    memory.move_to_end(host)
    if len(memory) > _KEEP_NAMES:
        memory.popitem(last=False)


def _getaddrinfo(host: str, port: int) -> Answers:
    flags = socket.AI_ADDRCONFIG
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        # Without any configured address but loopback (a container without network) AI_ADDRCONFIG hides even literals.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(socket.AddressFamily(family), str(address[0])) for family, _, _, _, address in found]


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
                self._guard.check_dial(_trip_now(), _peer_of(connection))
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
        self._guard.check_dial(_trip_now(), str(address[0]))
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
