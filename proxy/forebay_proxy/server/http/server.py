"""The HTTP face: sockets, one dispatcher over the raw request target, and the life of requests.

Only the raw target is looked at: aiohttp's parsed path turns ``%2F`` into ``/`` and swallows ``//``, and both are legal in keys.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from forebay_proxy.core.broadcast import Broadcast
from forebay_proxy.core.errors import ClientGone, ConfigError, ForebayError
from forebay_proxy.core.events import ClientRefused, Events
from forebay_proxy.core.request_loop import CDN_LOOP, LoopGuard
from forebay_proxy.policy.plans.live_jobs import LiveJobs
from forebay_proxy.server.http.admin_routes import AdminRoutes, Announced, Housekeeping, PlanDoor
from forebay_proxy.server.http.body_writer import cut
from forebay_proxy.server.http.connection import Connection, ConnectionServer
from forebay_proxy.server.http.framing import BadFraming, checked_path
from forebay_proxy.server.http.problem import SERVER, Draining, InternalFault, answer_error, in_words
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.server.http.s3_requests import NotOffered, answer_in_xml, speaks_s3
from forebay_proxy.server.http.sample_index_route import INDEX_PATH, IndexDoor, IndexRoute
from forebay_proxy.server.http.shard_route import INSTANCE, CacheDoor, RouteReader, ShardRoute
from forebay_proxy.server.net.access import Access, AccessQuestion, AccessRefused
from forebay_proxy.server.net.connection_limit import ConnectionLimit
from forebay_proxy.server.net.listen import UnixListener, bind_tcp, is_loopback_host
from forebay_proxy.server.net.peers import Where
from forebay_proxy.server.net.process_limits import client_places
from forebay_proxy.wire.urls.shard_url import SCHEMES

__all__ = ["CacheDoor", "Housekeeping", "HttpServer", "PlanDoor", "RouteReader"]

log = logging.getLogger("forebay")

# Those turned away by a drain unwind within a turn or two of the loop, unless a disk is slow; the drain does not wait for them longer.
_UNWIND_S = 1.0
# Still answered during a shutdown: they hold nothing, and a balancer or a person wants to know.
_TO_THE_END = frozenset({"/healthz", "/readyz", "/metrics", "/v1/status"})
# Looking on needs no sidecar: a scraper that comes every 15 s would keep a sidecar without readers for ever.
_LOOKING_ON = _TO_THE_END | {"/", "/v1/shards", "/v1/plans"}


class HttpServer:
    """Listens, lets the right clients in, and answers them. ``in_use`` and ``last_active`` tell an idle sidecar when to go.

    ``status`` returns what ``/v1/status`` shows, less ``state``, ``url`` and ``socket``, which the face knows itself; ``metrics`` the
    exposition and its content type.
    """

    def __init__(
        self,
        *,
        cache: CacheDoor,
        plans: PlanDoor,
        operations: Housekeeping,
        status: Callable[[], dict[str, Any]],
        announced: Announced,
        indexes: IndexDoor | None = None,
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
        self._loop_guard = loop_guard or LoopGuard()
        pass_headers = tuple(pass_headers)
        self._access = access
        self._events = events
        self._clock = clock
        self._status = status
        self._parser_pool = ThreadPoolExecutor(1, "plan-parser")
        self._instance = instance
        self._shards = ShardRoute(cache, pass_headers, instance)
        self._indexes = IndexRoute(indexes, pass_headers, instance) if indexes is not None else None
        self._admin = AdminRoutes(
            plans=plans, operations=operations, status=self.status, announced=announced, metrics=metrics, ready=lambda: self.state,
            parser_pool=self._parser_pool, pass_headers=pass_headers, jobs=jobs, allow=allow,
        )  # fmt: skip
        connection_limit = ConnectionLimit(client_places())
        self._server = ConnectionServer(self._handle, is_stranger=access.is_stranger, connection_limit=connection_limit, jobs=jobs)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)  # its own waiting comes after ours, with nothing left
        self._answering: dict[asyncio.Task[Any], RequestRecord] = {}
        self._left = Broadcast()
        self._unix: UnixListener | None = None
        self._draining = self._closing = False
        self._turned_away: set[asyncio.Task[Any]] = set()
        self.state = "starting"
        self.url = ""
        self.port: int | None = None
        self.addresses: list[tuple[str, int]] = []  # every (host, port) listened on, as bound
        self.last_active = clock()

    def __repr__(self) -> str:
        return f"<HttpServer {self.state} {self.url or 'not listening'}, {self.connections} connections, {len(self._answering)} answering>"

    @property
    def connections(self) -> int:
        """How many clients are connected, idle ones included."""
        return len(self._server.connections)

    @property
    def in_use(self) -> bool:
        """Whether a client holds the sidecar, reads or asks for work; looking on does not count."""
        return any(not record.looks_only for record in self._answering.values())

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
        self.addresses = [listener.getsockname()[:2] for listener in listeners]
        self.port = self.addresses[0][1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.state = "ready"

    async def drain(self) -> None:
        """Begin nothing new; only bodies of shards that are on their way go on. Returns once all other requests have ended.

        ``/readyz`` says 503 from now on, and so does every request, also one that waits for its first byte: a successor or the origin
        answers it as soon. A warm-up is cut: it would go on fetching. The unix socket's path is free for a successor.
        """
        if self._draining:
            return
        self.state, self._draining = "draining", True
        if self._unix:
            self._unix.remove()
        for task, record in self._answering.items():
            if not record.body_begun:
                self._turned_away.add(task)
                task.cancel()
        await self._until_quiet(lambda: self._turned_away.isdisjoint(self._answering), _UNWIND_S)

    async def aclose(self, grace_s: float = 0.0, hurried: asyncio.Event | None = None) -> None:
        """``drain``, let bodies on their way end for ``grace_s`` or until ``hurried``; then stop listening, cut the rest, close everything.

        Until then the listeners stay: ``/readyz`` on a new connection answers 503, and every other request learns when to ask again. Safe
        to repeat.
        """
        await self.drain()
        await self._grace(grace_s, hurried or asyncio.Event())
        for site in list(self._runner.sites):
            await site.stop()
        self._closing = True
        for task in list(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        await self._runner.cleanup()
        self._parser_pool.shutdown(wait=False, cancel_futures=True)

    async def _grace(self, grace_s: float, hurried: asyncio.Event) -> None:
        if not self._answering:
            return
        log.info("draining: %d answers may end within %g s", len(self._answering), grace_s)
        async with asyncio.TaskGroup() as group:
            hurry = group.create_task(hurried.wait(), name="hurry")
            hurry.add_done_callback(lambda _: self._left.send())
            await self._until_quiet(lambda: hurried.is_set() or not self._answering, grace_s)
            hurry.cancel()
        if self._answering:
            why = "a second signal" if hurried.is_set() else f"{grace_s:g} s"
            log.info("draining: %d answers are cut after %s", len(self._answering), why)

    async def _until_quiet(self, fact: Callable[[], bool], within_s: float) -> None:
        """Wait until ``fact`` holds; looked at whenever an answer has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not fact():
                    await self._left.wait()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._answering[task] = record = RequestRecord(request.method, self._events, self._clock)
        try:
            return await self._answer(request, record)
        except asyncio.CancelledError:
            if task in self._turned_away and not record.headers_out and request.transport is not None:
                task.uncancel()
                return self._turn_away(record, request)
            record.abort("shutdown" if self._closing or task in self._turned_away else "client_gone")
            cut(request.transport)
            raise
        finally:
            if not record.looks_only:
                self.last_active = self._clock()
            record.close()
            del self._answering[task]
            self._turned_away.discard(task)
            self._left.send()

    async def _answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """The response, whatever happens; a failure after the header cuts the connection instead."""
        try:
            response = await self._dispatch(request, record)
            if not response.prepared and self._instance:
                response.headers[INSTANCE] = self._instance
        except (ClientGone, ConnectionError):
            record.abort("client_gone")
            cut(request.transport)
            return web.Response()  # goes nowhere: the connection is closed
        except ForebayError as error:
            record.error = in_words(error)
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
        via = self._loop_guard.heard(request.headers.getall(CDN_LOOP, ()))  # first: what comes back through a proxy names no path of ours
        path = checked_path(request)
        self._admit(path, request)
        record.looks_only = path in _LOOKING_ON
        if self._draining and path not in _TO_THE_END:
            raise _draining()
        if path[1:].partition("/")[0].lower() in SCHEMES:
            return await self._shards.answer(request, record, via)
        if self._indexes is not None and path.startswith(f"{INDEX_PATH}/"):
            return await self._indexes.answer(request, record, via)
        return await self._admin.answer(path, request, record)

    def _admit(self, path: str, request: web.BaseRequest) -> None:
        headers = request.headers
        asking = AccessQuestion(
            request.method, path, headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), headers.get("Referer"),
            headers.get("Forebay-Token"),
        )  # fmt: skip
        connection = request.protocol
        assert isinstance(connection, Connection)
        self._access.check(connection.peer, asking)
        connection.stranger = connection.peer.where is not Where.REMOTE and connection.stranger  # the token vouches for it from now on

    def _turn_away(self, record: RequestRecord, request: web.BaseRequest) -> web.StreamResponse:
        response = self._refusal(_draining(), request)
        record.answered(response.status)
        response.headers["Server"] = SERVER
        return response

    def _refusal(self, error: ForebayError, request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(error, AccessRefused):
            self._events.emit(ClientRefused(error.reason))
        _log_refusal(error)
        response = answer_in_xml(error) if speaks_s3(request.raw_path, request.headers) else answer_error(error)
        if isinstance(error, BadFraming | Draining | AccessRefused) or "Expect" in request.headers:
            # Where the next request would begin is anybody's guess (also where a body was announced, and need not come now); or there will
            # be none; or who may not ask keeps no place.
            response.force_close()
        return response


def _draining() -> Draining:
    return Draining("the sidecar is shutting down", next_step="ask again: its successor answers at the same address, or read the origin")


def _log_refusal(error: ForebayError) -> None:
    """Once, without a query: what a client got wrong is its own business (debug), what an origin or we did is not (warning)."""
    ours = error.status >= 500 and not isinstance(error, Draining | NotOffered)
    log.log(logging.WARNING if ours else logging.DEBUG, "%d %s: %s", error.status, error.title, in_words(error))


def _fault(error: Exception) -> web.StreamResponse:
    # Frames and the type only: messages of library errors hold URLs, and URLs hold secrets.
    log.error("a fault in Forebay itself: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return answer_error(InternalFault("a fault in Forebay itself", next_step="the sidecar's log has the details; please report it"))
