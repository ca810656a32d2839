"""The HTTP server: sockets, one dispatcher over the raw request target, and the shutdown of requests.

It uses the raw target only: aiohttp's parsed path turns ``%2F`` into ``/`` and drops the second slash of ``//``. Both are legal in keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from forebay_proxy.background.operations import Operations
from forebay_proxy.background.plan_intake import PlanIntake
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.errors import ClientGone, ConfigError, ForebayError, NoIndex
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import ClientRefused
from forebay_proxy.core.request_loop import CDN_LOOP, LoopGuard
from forebay_proxy.policy.plans.live_jobs import LiveJobs
from forebay_proxy.server.http.admin_routes import AdminRoutes
from forebay_proxy.server.http.body_writer import cut
from forebay_proxy.server.http.connection import Connection, ConnectionLimit, ConnectionServer, client_places
from forebay_proxy.server.http.framing import BadFraming, Bodies, checked_path
from forebay_proxy.server.http.meter_route import METER_PATH, MeterRoute
from forebay_proxy.server.http.page_routes import PAGE_PATHS, PageRoutes, PageSources
from forebay_proxy.server.http.plan_route import PLANS_PATH, Announced, PlanRoute
from forebay_proxy.server.http.problem import SERVER, Draining, InternalFault, answer_error, in_words
from forebay_proxy.server.http.request_record import OpenRequests, RequestRecord
from forebay_proxy.server.http.s3_requests import NotOffered, answer_in_xml, speaks_s3
from forebay_proxy.server.http.sample_index_route import INDEX_PATH, IndexRoute
from forebay_proxy.server.http.shard_route import INSTANCE, ShardRoute
from forebay_proxy.server.net.access import Access, AccessQuestion, AccessRefused
from forebay_proxy.server.net.listen import UnixListener, bind_tcp, is_loopback_host
from forebay_proxy.server.net.peers import Where
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.wire.urls.shard_url import SCHEMES

__all__ = ["HttpServer", "ServerAddress"]

log = logging.getLogger("forebay")

# Answered during a shutdown too: they hold nothing, and balancers and people want to know.
_TO_THE_END = frozenset({"/healthz", "/readyz", "/metrics", "/v1/status"})
# Requests that do not keep an idle sidecar alive: a scraper that comes every 15 s would keep it for ever.
_LOOKING_ON = _TO_THE_END | PAGE_PATHS | {"/v1/shards", "/v1/plans"}


@dataclass(slots=True)
class ServerAddress:
    """Where the server listens; empty before its start."""

    url: str = ""
    port: int | None = None
    bound: list[tuple[str, int]] = field(default_factory=list)  # every (host, port)
    unix: UnixListener | None = None

    @property
    def socket(self) -> Path | None:
        """The unix socket's path, None without one."""
        return self.unix.path if self.unix else None


class HttpServer:
    """Listens, admits clients, and answers them. ``requests`` tells an idle sidecar when to stop.

    ``status`` returns ``/v1/status`` without ``state``, ``url`` and ``socket``, which the server adds. ``metrics`` returns the
    exposition and its content type.
    """

    def __init__(
        self,
        *,
        cache: ShardCache,
        plans: PlanIntake,
        operations: Operations,
        status: Callable[[], dict[str, Any]],
        page: PageSources,
        announced: Announced,
        indexes: SampleIndexer | None = None,
        meters: MeterBoard,
        meter_page: Callable[[str], dict[str, Any]],
        metrics: Callable[[], tuple[bytes, str]],
        access: Access,
        events: Events,
        pass_headers: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
        loop_guard: LoopGuard | None = None,
        instance: str = "",
        jobs: LiveJobs | None = None,
        allow: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        pass_headers = tuple(pass_headers)
        self._loop_guard = loop_guard or LoopGuard()
        self._access = access
        self._events = events
        self._status = status
        self._instance = instance
        self._parser_pool = ThreadPoolExecutor(1, "plan-parser")
        self._plans = PlanRoute(plans, announced, self._parser_pool, bodies := Bodies(), pass_headers)
        self._shards = ShardRoute(cache, pass_headers, instance)
        self._indexes = IndexRoute(indexes, pass_headers, instance) if indexes is not None else None
        self._meters = MeterRoute(meters, meter_page, bodies)
        self._admin = AdminRoutes(
            plans=self._plans, page=PageRoutes(self.status, page), bodies=bodies, operations=operations, status=self.status,
            metrics=metrics, ready=lambda: self.state, jobs=jobs, allow=allow,
        )  # fmt: skip
        connection_limit = ConnectionLimit(client_places())
        self._server = ConnectionServer(self._handle, is_stranger=access.is_stranger, connection_limit=connection_limit, jobs=jobs)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)  # aiohttp's wait comes after ours, when nothing is left
        self.requests = OpenRequests(events, clock)
        self.address = ServerAddress()
        self.state = "starting"

    def __repr__(self) -> str:
        return f"<HttpServer {self.state} {self.address.url or 'not listening'}, {self.connections} connections, {self.requests!r}>"

    @property
    def connections(self) -> int:
        """How many clients are connected, including idle ones."""
        return len(self._server.connections)

    def status(self) -> dict[str, Any]:
        """The content of ``/v1/status``."""
        socket = self.address.socket
        return {**self._status(), "state": self.state, "url": self.address.url, "socket": str(socket) if socket else None}

    async def start(self, host: str, port: int | None, socket: Path | None) -> None:
        """Listen on ``host`` and, if given, on the unix ``socket``. The server is ready when this returns.

        Args:
            host: The address to bind.
            port: None: 7070 or the next free port; 0: any free port.
            socket: The path of the unix socket; None for none.

        Raises ``ConfigError`` if an address is taken, or if it lets other machines in without a token.
        """
        if not is_loopback_host(host) and not self._access.token:
            step = "set FOREBAY_TOKEN (what clients must send as Forebay-Token), or use --host 127.0.0.1"
            raise ConfigError(f"--host {host} lets other machines in, and there is no token", next_step=step)
        await self._runner.setup()
        listeners = bind_tcp(host, port)
        try:
            unix = UnixListener(socket) if socket else None
        except ConfigError:
            for listener in listeners:
                listener.close()
            raise
        for listener in [*listeners, *([unix.socket] if unix else [])]:
            await web.SockSite(self._runner, listener, backlog=1024).start()
        bound = [listener.getsockname()[:2] for listener in listeners]
        port = bound[0][1]
        self.address = ServerAddress(f"http://{f'[{host}]' if ':' in host else host}:{port}", port, bound, unix)
        self.state = "ready"

    async def drain(self) -> None:
        """Begin nothing new; let only shard bodies that are being sent go on. Returns once all other requests have ended.

        ``/readyz`` answers 503 from now on. So does every other request, even one that waits for its first byte: the successor or the
        origin answers it as soon. A warm-up is cut, because it would go on fetching. The unix socket's path is free for a successor.
        """
        if self.state == "draining":
            return
        self.state = "draining"
        if self.address.unix:
            self.address.unix.remove()
        await self.requests.turn_away()

    async def aclose(self, grace_s: float = 0.0, hurried: asyncio.Event | None = None) -> None:
        """Drain, wait for running bodies for ``grace_s`` seconds or until ``hurried``, then stop listening and close everything.

        The listeners stay open while bodies end: ``/readyz`` answers 503 on a new connection, and other requests learn when to ask again.
        Safe to repeat.
        """
        await self.drain()
        await self.requests.let_end(grace_s, hurried or asyncio.Event())
        for site in list(self._runner.sites):
            await site.stop()
        await self.requests.cut()
        await self._runner.cleanup()
        self._parser_pool.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        with self.requests.answering(request.method) as record:
            try:
                return await self._answer(request, record)
            except asyncio.CancelledError:
                if self.requests.is_turned_away() and not record.headers_out and request.transport is not None:
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()
                    return self._turn_away(record, request)
                record.abort("shutdown" if self.requests.closing or self.requests.is_turned_away() else "client_gone")
                cut(request.transport)
                raise

    async def _answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """The response, always. A failure after the header cuts the connection instead."""
        try:
            response = await self._dispatch(request, record)
            if not response.prepared and self._instance:
                response.headers[INSTANCE] = self._instance
        except (ClientGone, ConnectionError):
            record.abort("client_gone")
            cut(request.transport)
            return web.Response()  # never sent: the connection is closed
        except ForebayError as error:
            record.error, record.expected = in_words(error), isinstance(error, NoIndex)
            response = self._refusal(error, request)
        except Exception as error:
            record.error = f"a fault in Forebay itself ({type(error).__name__}): the log has the details"
            response = _fault(error)
        if record.headers_out and not response.prepared:
            record.abort("other")
            cut(request.transport)
        record.answered(response.status)
        if not response.prepared:
            response.headers["Server"] = SERVER
        return response

    async def _dispatch(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        # First: a request that came back through a proxy may name any path.
        via = self._loop_guard.heard(request.headers.getall(CDN_LOOP)) if CDN_LOOP in request.headers else ""
        path = checked_path(request)
        self._admit(path, request)
        record.looks_only = path in _LOOKING_ON
        if self.state == "draining" and path not in _TO_THE_END:
            raise _draining()
        if path[1:].partition("/")[0].lower() in SCHEMES:
            return await self._shards.answer(request, record, via)
        if path.startswith(f"{PLANS_PATH}/"):
            return await self._plans.answer(path, request, record)
        if path.startswith(f"{METER_PATH}/"):
            return await self._meters.answer(path, request, record)
        if self._indexes is not None and path.startswith(f"{INDEX_PATH}/"):
            return await self._indexes.answer(request, record, via)
        return await self._admin.answer(path, request, record)

    def _admit(self, path: str, request: web.BaseRequest) -> None:
        headers = request.headers
        asking = AccessQuestion(
            request.method, path, headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), headers.get("Referer"),
            headers.get("Forebay-Token") or _bearer(path, headers),
        )  # fmt: skip
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._access.check(connection.peer, asking)
        connection.stranger = connection.peer.where is not Where.REMOTE and connection.stranger  # from now on the token proves who it is

    def _turn_away(self, record: RequestRecord, request: web.BaseRequest) -> web.StreamResponse:
        response = self._refusal(_draining(), request)
        record.answered(response.status)
        response.headers["Server"] = SERVER
        return response

    def _refusal(self, error: ForebayError, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(error, AccessRefused):
            self._events.emit(ClientRefused(error.reason))
        # Logged once, without a query. A client's mistake is its own business (debug); a fault of an origin or of ours is not (warning).
        ours = error.status >= 500 and not isinstance(error, Draining | NotOffered)
        log.log(logging.WARNING if ours else logging.DEBUG, "%d %s: %s", error.status, error.title, in_words(error))
        response = answer_in_xml(error) if speaks_s3(request.raw_path, request.headers) else answer_error(error)
        if isinstance(error, BadFraming | Draining | AccessRefused) or "Expect" in request.headers:
            # Close: it is unclear where the next request begins (or a body was announced, and need not come now); or the server is ending;
            # or the client may not ask and keeps no place.
            response.force_close()
        return response


def _bearer(path: str, headers: Mapping[str, str]) -> str | None:
    """The token as a scraper sends it: a PodMonitor of the Prometheus Operator cannot send our header.

    Only for /metrics: every other ``Authorization`` is meant for an origin.
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ") if path == "/metrics" else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


def _draining() -> Draining:
    return Draining("the sidecar is shutting down", next_step="ask again: its successor answers at the same address, or read the origin")


def _fault(error: Exception) -> web.StreamResponse:
    # The frames and the type only: messages of library errors hold URLs, and URLs hold secrets.
    log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return answer_error(InternalFault("a fault in Forebay itself", next_step="the sidecar's log has the details; please report it"))
