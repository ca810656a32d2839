"""The HTTP face: sockets, one dispatcher over the raw request target, and the life of requests.

Only the raw target is looked at: aiohttp's parsed path turns ``%2F`` into ``/`` and swallows ``//``, and both are legal in keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from forebay_proxy.access import Access, AccessRefused, Asking
from forebay_proxy.admin import AdminRoutes, Housekeeping, PlanDoor
from forebay_proxy.connection import Connection, ConnectionServer
from forebay_proxy.errors import ClientGone, ConfigError, ForebayError, ShardError
from forebay_proxy.events import ClientRefused, Events
from forebay_proxy.exchange import Exchange
from forebay_proxy.framing import BadFraming, checked_path
from forebay_proxy.listen import UnixListener, bind_tcp, is_loopback_host
from forebay_proxy.outflow import cut
from forebay_proxy.problem import SERVER, Draining, InternalFault, answer_error, shown
from forebay_proxy.shard_route import CacheDoor, Reading, ShardRoute
from forebay_proxy.wire.urls import SCHEMES

__all__ = ["CacheDoor", "Face", "Housekeeping", "PlanDoor", "Reading"]

log = logging.getLogger("forebay")

# Running answers get this long at a shutdown; a training job that is cut off asks again, so waiting longer helps nobody.
GRACE_S = 5.0
# Still answered during a shutdown: they hold nothing, and a balancer or a person wants to know.
_TO_THE_END = frozenset({"/healthz", "/readyz", "/metrics", "/v1/status"})


class Face:
    """Listens, lets the right clients in, and answers them. ``connections`` and ``last_active`` tell an idle sidecar when to go.

    ``status`` returns what ``/v1/status`` shows, less ``state``, ``url`` and ``socket``, which the face knows itself; ``metrics`` the
    exposition and its content type.
    """

    def __init__(
        self,
        *,
        cache: CacheDoor,
        plans: PlanDoor,
        house: Housekeeping,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], tuple[bytes, str]],
        access: Access,
        events: Events,
        pass_headers: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pass_headers = tuple(pass_headers)
        self._access = access
        self._events = events
        self._clock = clock
        self._status = status
        self._parser_pool = ThreadPoolExecutor(1, "plan-parser")
        self._shards = ShardRoute(cache, pass_headers)
        self._admin = AdminRoutes(
            plans=plans, house=house, status=self.status, metrics=metrics, ready=lambda: self.state,
            parser_pool=self._parser_pool, pass_headers=pass_headers,
        )  # fmt: skip
        self._server = ConnectionServer(self._handle, on_change=self._touch)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)  # its own waiting comes after ours, with nothing left
        self._answering: set[asyncio.Task[Any]] = set()
        self._quiet = asyncio.Event()
        self._unix: UnixListener | None = None
        self._turning_away = self._closing = False
        self.state = "starting"
        self.url = ""
        self.port: int | None = None
        self.last_active = clock()

    def __repr__(self) -> str:
        return f"<Face {self.state} {self.url or 'not listening'}, {self.connections} connections, {len(self._answering)} answering>"

    @property
    def connections(self) -> int:
        """How many clients are connected, idle ones included."""
        return len(self._server.connections)

    @property
    def socket(self) -> Path | None:
        """The unix socket's path, None without one."""
        return self._unix.path if self._unix else None

    def status(self) -> dict[str, Any]:
        """What ``/v1/status`` shows."""
        return {**self._status(), "state": self.state, "url": self.url, "socket": str(self.socket) if self.socket else None}

    async def start(self, host: str, port: int | None, socket: Path | None) -> None:
        """Listen on ``host`` (``port`` None: 7070 or the next free; 0: any) and on the unix ``socket``, if given; ready afterwards.

        Raises ``ConfigError`` when an address is taken, or lets other machines in without a token.
        """
        if not is_loopback_host(host) and not self._access.token:
            step = "set FOREBAY_TOKEN (what clients must send as Forebay-Token), or use --host 127.0.0.1"
            raise ConfigError(f"--host {host} lets other machines in, and there is no token", next_step=step)
        await self._runner.setup()
        listeners = bind_tcp(host, port)
        try:
            self._unix = UnixListener(socket) if socket else None
        except ConfigError:
            for listener in listeners:
                listener.close()
            raise
        for listener in [*listeners, *([self._unix.socket] if self._unix else [])]:
            await web.SockSite(self._runner, listener, backlog=1024).start()
        self.port = listeners[0].getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.state = "ready"

    def drain(self) -> None:
        """``/readyz`` says 503 from now on; everything else is still answered."""
        self.state = "draining"

    async def aclose(self, grace_s: float = GRACE_S) -> None:
        """Turn new requests away, let running answers end for ``grace_s``; then stop listening, cut the rest, close every connection.

        Until then the listeners stay: whoever asks ``/readyz`` on a new connection hears 503, and every other request learns when to ask
        again.
        """
        self.drain()
        self._turning_away = True
        await self._wait_quiet(grace_s)
        for site in list(self._runner.sites):
            await site.stop()
        if self._unix:
            self._unix.remove()
        self._closing = True
        for task in list(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        await self._runner.cleanup()
        self._parser_pool.shutdown(wait=False, cancel_futures=True)

    async def _wait_quiet(self, grace_s: float) -> None:
        if not self._answering:
            return
        self._quiet.clear()
        try:
            async with asyncio.timeout(grace_s):
                await self._quiet.wait()
        except TimeoutError:
            log.info("shutdown: %d answers are cut after %g s", len(self._answering), grace_s)

    def _touch(self) -> None:
        self.last_active = self._clock()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        exchange = Exchange(request.method, self._events, self._clock)
        try:
            return await self._answer(request, exchange)
        except asyncio.CancelledError:
            exchange.abort("shutdown" if self._closing else "client_gone")
            cut(request.transport)
            raise
        finally:
            self._touch()
            exchange.close()
            self._answering.discard(task)
            if not self._answering:
                self._quiet.set()

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        """The response, whatever happens; a failure after the header cuts the connection instead."""
        try:
            response = await self._dispatch(request, exchange)
        except (ClientGone, ConnectionError):
            exchange.abort("client_gone")
            cut(request.transport)
            return web.Response()  # goes nowhere: the connection is closed
        except ForebayError as error:
            response = self._refusal(error)
        except Exception as error:
            response = _fault(error)
        if exchange.headers_out and not response.prepared:
            exchange.abort("other")
            cut(request.transport)
        exchange.answered(response.status)
        if not response.prepared:
            response.headers["Server"] = SERVER
        return response

    async def _dispatch(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        path = checked_path(request)
        self._admit(path, request)
        if self._turning_away and path not in _TO_THE_END:
            raise Draining(
                "the sidecar is shutting down", next_step="ask again: its successor answers at the same address, or read the origin"
            )
        if path[1:].partition("/")[0].lower() in SCHEMES:
            return await self._shards.answer(request, exchange)
        return await self._admin.answer(path, request, exchange)

    def _admit(self, path: str, request: web.BaseRequest) -> None:
        headers = request.headers
        asking = Asking(
            request.method, path, headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), headers.get("Forebay-Token")
        )
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._access.check(connection.peer, asking)

    def _refusal(self, error: ForebayError) -> web.StreamResponse:
        if isinstance(error, AccessRefused):
            self._events.emit(ClientRefused(error.reason))
        _log_refusal(error)
        response = answer_error(error)
        if isinstance(error, BadFraming | Draining):
            response.force_close()  # where the next request would begin is anybody's guess; or there will be none
        return response


def _log_refusal(error: ForebayError) -> None:
    """Once, without a query: what a client got wrong is its own business (debug), what an origin or we did is not (warning)."""
    what = f"shard {shown(error.shard)}: {error.cause}" if isinstance(error, ShardError) else str(error)
    ours = error.status >= 500 and not isinstance(error, Draining)
    log.log(logging.WARNING if ours else logging.DEBUG, "%d %s: %s", error.status, error.title, what)


def _fault(error: Exception) -> web.StreamResponse:
    # Frames and the type only: messages of library errors hold URLs, and URLs hold secrets.
    log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return answer_error(InternalFault("a fault in Forebay itself", next_step="the sidecar's log has the details; please report it"))
