"""Connections that a mover holds: dialled and judged here as any other, used through a tunnel, kept between two requests.

The HTTP client knows nothing of it: it is given the tunnel's end in place of the socket. Where no mover lives, or TLS is to trust what only
this process knows, the connection is an ordinary one.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import aiohappyeyeballs
import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey

from forebay_proxy.movers.fleet import Fleet
from forebay_proxy.movers.frames import Unopened, UnopenedFor
from forebay_proxy.movers.link import MoverLost, OriginLink
from forebay_proxy.origins.net.dial import GuardedConnector, GuardedResolver, trip_now
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.net.trust import Trust

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

__all__ = ["TunnelConnector"]

MOST_KEPT = 64  # a host; the limiter allows as many


class TunnelConnector(GuardedConnector):
    """As ``GuardedConnector``, through movers."""

    def __init__(self, guard: Guard, resolver: GuardedResolver, fleet: Fleet, trust: Trust, **how: Any) -> None:
        self._names = resolver
        self._fleet = fleet
        self._trust = trust
        self._links: WeakKeyDictionary[ResponseHandler, OriginLink] = WeakKeyDictionary()
        self._keys: WeakKeyDictionary[OriginLink, ConnectionKey] = WeakKeyDictionary()
        self._kept: dict[ConnectionKey, deque[OriginLink]] = {}
        super().__init__(guard, resolver=resolver, **how)

    def link_of(self, response: aiohttp.ClientResponse) -> OriginLink | None:
        """The mover's connection through which ``response`` comes; None where that is an ordinary one."""
        protocol = response.connection.protocol if response.connection is not None else None
        return None if protocol is None else self._links.get(protocol)

    def keep(self, link: OriginLink) -> None:
        """``link`` is good for another request of the same kind; the mover closes it when that does not come."""
        self._kept.setdefault(self._keys[link], deque(maxlen=MOST_KEPT)).append(link)
        for stale in [other for other, links in self._kept.items() if all(link.gone for link in links)]:
            del self._kept[stale]

    def _peer(self, connection: Connection) -> str:
        link = self._links.get(connection.protocol) if connection.protocol is not None else None
        return super()._peer(connection) if link is None else link.peer

    async def _create_connection(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> ResponseHandler:  # noqa: ASYNC109
        authorities = self._trust.places.get(id(req.ssl)) if req.is_ssl() and req.ssl is not True else ("", "")
        if req.proxy is None and authorities is not None:
            with suppress(MoverLost):
                found = await self._kept_tunnel(req)
                if found is None:
                    found = await self._dialled_tunnel(req, authorities)
                if found is not None:
                    link, tunnel = found
                    loop = asyncio.get_running_loop()
                    _, protocol = await loop.create_connection(lambda: ResponseHandler(loop), sock=tunnel)
                    self._links[protocol] = link
                    self._keys[link] = req.connection_key
                    return protocol
        return await super()._create_connection(req, traces, timeout)

    async def _kept_tunnel(self, req: ClientRequest) -> tuple[OriginLink, socket.socket] | None:
        kept = self._kept.get(req.connection_key)
        while kept and req.headers.get("Connection") != "close":
            link = kept.pop()
            if link.gone or link.mover.why_lost:
                continue
            try:
                self.guard.check_dial(trip_now(), link.peer)
            except Refused:  # another request was allowed more, or the name leads elsewhere now
                link.retire()
                continue
            ours, theirs = socket.socketpair()
            with theirs, _closed_unless_used(ours) as tunnel:
                link.again(theirs)
                if not isinstance(await link.opened(), Unopened):
                    return link, tunnel.use()
        return None

    async def _dialled_tunnel(self, req: ClientRequest, authorities: tuple[str, str]) -> tuple[OriginLink, socket.socket] | None:
        mover = self._fleet.pick()
        if mover is None:
            return None
        host, port = (req.url.raw_host or "").rstrip("."), req.port
        assert port is not None
        try:
            answers = await self._names.resolve(host, port)
            addresses: list[Any] = [
                (each["family"], socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each["host"], port) + ((0, 0) if ":" in each["host"] else ()))
                for each in answers
            ]
            origin = await aiohappyeyeballs.start_connection(
                addresses, interleave=1, happy_eyeballs_delay=0.25, socket_factory=self.open_socket
            )
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        with origin:
            ours, theirs = socket.socketpair()
            with theirs, _closed_unless_used(ours) as tunnel:
                origin.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer = str(origin.getpeername()[0])
                link = mover.hand(origin, theirs, peer, tls=req.is_ssl(), name=host, authorities=authorities)
                if req.is_ssl():
                    answer = await link.opened()
                    if isinstance(answer, Unopened):
                        raise _no_tls(req.connection_key, answer)
                return link, tunnel.use()


class _closed_unless_used:  # noqa: N801 -- a context manager
    def __init__(self, tunnel: socket.socket) -> None:
        self._tunnel = tunnel
        self._used = False

    def __enter__(self) -> _closed_unless_used:
        return self

    def use(self) -> socket.socket:
        self._used = True
        self._tunnel.setblocking(False)
        return self._tunnel

    def __exit__(self, *_: object) -> None:
        if not self._used:
            self._tunnel.close()


def _no_tls(key: ConnectionKey, answer: Unopened) -> aiohttp.ClientError:
    if answer.why == UnopenedFor.CERTIFICATE:
        return aiohttp.ClientConnectorCertificateError(key, ssl.SSLCertVerificationError(answer.words))
    if answer.why == UnopenedFor.TLS:
        return aiohttp.ClientConnectorSSLError(key, ssl.SSLError(1, answer.words))
    return aiohttp.ClientConnectorError(key, OSError(answer.number, "the origin closed the connection"))
