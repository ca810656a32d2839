"""Our own paths beside the shards: health, metrics, status, plans, evict, warm, and the status page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote

from aiohttp import web

from forebay_proxy.core.errors import ForebayError, InvalidRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.live_jobs import LiveJobs
from forebay_proxy.server.http.admin_bodies import (
    COMMAND_BODY_BYTES,
    PLAN_BODY_BYTES,
    parse_origins,
    parse_patterns,
    parse_plan,
    parse_rate,
    parse_reader,
    parse_set,
)
from forebay_proxy.server.http.body_writer import cut
from forebay_proxy.server.http.framing import Bodies, Busy, read_body
from forebay_proxy.server.http.plan_query import parse_plan_query
from forebay_proxy.server.http.problem import SERVER, MethodNotAllowed, NoSuchPath
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.server.http.shard_route import asks, closing, credential_headers
from forebay_proxy.server.http.status_page import PAGE_HEADERS, page_files
from forebay_proxy.wire.protocol.plan import PlanBody, ReaderName
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["AdminRoutes", "Announced", "Housekeeping", "PlanDoor"]

# Parsing above this leaves the loop: 32 kB are some hundred URLs, or the 64 shards that a reader keeps announced: 1 ms.
_PARSE_ON_LOOP_BYTES = 32 * 1024
_BREATH_S = 0.0003  # long enough for whoever waits for the interpreter to get it; a third of the parser's time
# Warm-ups at once: a person starts one, a cluster's prologue a few. Each keeps its list of shards in memory until it ends.
MOST_WARMS = 8
# Holds at once. A node runs a few jobs, each with a hold for `forebay run` and one for each rank that calls fb.sidecar(): a crowd of
# them is a fault, and would take the places of those who read.
MOST_HOLDS = 256

Handler = Callable[[web.BaseRequest, RequestRecord], Awaitable[web.StreamResponse]]
Announced = Callable[[str | None, ReaderName | None, int], dict[str, Any]]  # plans of a job (or all), behind a reader, so many


class PlanDoor(Protocol):
    """Where readers announce what they will open."""

    async def announce(
        self, reader: ReaderName, plan: PlanBody, shards: Sequence[Shard], headers: tuple[tuple[str, str], ...], *, appended: bool
    ) -> None:
        """Take ``shards``, or the indices of ``plan`` into its set, with ``headers``; raises ``PlansFull``, ``InvalidShardUrl``."""
        ...

    async def retract(self, reader: ReaderName) -> bool:
        """Forget what the reader announced and has not read; False if there was nothing."""
        ...


class Housekeeping(Protocol):
    """What a person asks of the cache."""

    def shards(self, name: str = "") -> list[dict[str, object]]:
        """One object a stored version, as ``/v1/shards`` shows it; of the shard ``name`` alone, if one is named."""
        ...

    async def evict(self, patterns: list[str] | None) -> dict[str, int]:
        """Let go of what matches (``*`` and ``?``); None: everything. Returns ``shards``, ``bytes`` and what is ``leased`` and stays."""
        ...

    def verify(self, patterns: list[str] | None, rate_bytes_s: float) -> AsyncIterator[dict[str, object]]:
        """Compare what matches with its checksums, no faster than that; the last event is named "end". What is wrong is removed."""
        ...

    @property
    def remove_set(self) -> Callable[[str], bool]:
        """Keeps the declared set of this name filled no longer; False: there is none."""
        ...

    def warm(self, shards: list[Shard], set_name: str | None = None) -> AsyncIterator[dict[str, object]]:
        """Fetch ``shards`` of the set ``set_name`` ahead; yields the events of ``POST /v1/warm``, the last one named "end".

        Closing it stops asking for more.
        """
        ...


class AdminRoutes:
    """One method a path. ``status`` and ``metrics`` are asked at each request; ``ready`` says whether ``/readyz`` is 200."""

    def __init__(
        self,
        *,
        plans: PlanDoor,
        operations: Housekeeping,
        status: Callable[[], dict[str, Any]],
        announced: Announced,
        metrics: Callable[[], tuple[bytes, str]],
        ready: Callable[[], str],
        parser_pool: Executor,
        pass_headers: Iterable[str] = (),
        jobs: LiveJobs | None = None,
        allow: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._plans = plans
        self._jobs = jobs or LiveJobs(time.monotonic)
        self._operations = operations
        self._status = status
        self._announced = announced
        self._metrics = metrics
        self._ready = ready
        self._allow_origins = allow
        self._parser_pool = parser_pool
        self._pass_headers = frozenset(name.lower() for name in pass_headers)
        self._page = page_files()
        self._bodies = Bodies()
        self._holds = 0
        self._warming = 0
        self._verifying = False
        self._routes: dict[str, dict[str, Handler]] = {
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._show_metrics},
            "/v1/hold": {"GET": self._hold},
            "/v1/status": {"GET": self._show_status},
            "/v1/shards": {"GET": self._show_shards},
            "/v1/plans": {"GET": self._show_plans},
            "/v1/evict": {"POST": self._evict},
            "/v1/warm": {"POST": self._warm},
            "/v1/sets/remove": {"POST": self._remove_set},
            "/v1/verify": {"POST": self._verify},
            **({"/v1/allow": {"POST": self._allow}} if allow else {}),
            **{path: {"GET": self._show_page} for path in self._page},
        }
        self._plan_routes: dict[str, Handler] = {"PUT": self._put_plan, "POST": self._post_plan, "DELETE": self._delete_plan}

    async def answer(self, path: str, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """``path`` is the target without its query. Raises ``NoSuchPath``, ``MethodNotAllowed``, ``InvalidRequest``."""
        return await self._handler(path, request.method)(request, record)

    def _handler(self, path: str, method: str) -> Handler:
        methods = self._plan_routes if path.startswith("/v1/plans/") else self._routes.get(path)
        if methods is None:
            step = "write /s3/bucket/key or /https/host/path for a shard; GET /v1/status tells what runs here"
            raise NoSuchPath(f"{_begin(path)!r} begins with no scheme that Forebay reads, nor is it a path of its own", next_step=step)
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            allow = (*methods, "HEAD") if "GET" in methods else tuple(methods)
            raise MethodNotAllowed(f"{path[:200]} does not take {method}", allow=allow, next_step=f"use {' or '.join(methods)}")
        return handler

    async def _healthz(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return _text("ok\n")

    async def _readyz(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        state = self._ready()
        return _text(f"{state}\n", status=200 if state == "ready" else 503)

    async def _hold(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """A header, and then nothing until the client leaves or we end: whoever has one open needs this sidecar.

        ``Forebay-Job``: the job that goes on for so long.
        """
        job = unquote(request.headers.get("Forebay-Job", ""))
        if self._holds >= MOST_HOLDS:
            step = "close holds that are not needed (one for each process does), or go on without: the others keep this sidecar"
            raise Busy(f"{self._holds} holds are open already", next_step=step, status=503)
        response = web.StreamResponse(headers={"Cache-Control": "no-store", "Server": SERVER})
        self._holds += 1
        if job:
            self._jobs.came(job, holds=True)
        try:
            record.endless()
            record.answered(response.status)
            await response.prepare(request)
            if request.method != "HEAD":
                await asyncio.get_running_loop().create_future()  # cancelled by either end
        finally:
            self._holds -= 1
            if job:
                self._jobs.left(job, holds=True)
        return response

    async def _show_metrics(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        body, content_type = self._metrics()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _show_status(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return _json(self._status())

    async def _show_shards(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        named = parse_qs(request.raw_path.partition("?")[2]).get("shard", [""])
        return _json({"shards": self._operations.shards(named[0])})

    async def _show_plans(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        job, after, limit = parse_plan_query(request.raw_path.partition("?")[2])
        return _json(self._announced(job, after, limit))

    async def _show_page(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        body, content_type = self._page[request.raw_path.partition("?")[0]]
        return web.Response(body=body, headers={"Content-Type": content_type, **PAGE_HEADERS})

    async def _put_plan(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return await self._take_plan(request, record, appended=False)

    async def _post_plan(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return await self._take_plan(request, record, appended=True)

    async def _take_plan(self, request: web.BaseRequest, record: RequestRecord, *, appended: bool) -> web.StreamResponse:
        reader = parse_reader(request.raw_path)
        record.reader = reader
        asks(request, reader)
        plan, shards, headers = await self._read_plan(request, expand=False)
        try:
            await self._plans.announce(reader, plan, shards, headers, appended=appended)
        except InvalidShardUrl as error:
            raise InvalidRequest(str(error), next_step="send a pattern of URLs such as s3://bucket/{000..999}.tar as the set") from error
        return web.Response(status=204)

    async def _delete_plan(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        reader = parse_reader(request.raw_path)
        record.reader = reader
        await self._plans.retract(reader)  # withdrawing twice is no error: the wish is fulfilled
        return web.Response(status=204)

    async def _evict(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        with self._bodies.holding() as holding:
            patterns = parse_patterns(await read_body(request, COMMAND_BODY_BYTES, holding))
        return _json(await self._operations.evict(patterns))

    async def _remove_set(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        with self._bodies.holding() as holding:
            name = parse_set(await read_body(request, COMMAND_BODY_BYTES, holding))
        if not self._operations.remove_set(name):
            raise InvalidRequest("no declared set has this name", status=404, next_step="GET /v1/status lists them (sets)")
        return web.Response(status=204)

    async def _allow(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        with self._bodies.holding() as holding:
            origins = parse_origins(await read_body(request, COMMAND_BODY_BYTES, holding))
        assert self._allow_origins is not None
        self._allow_origins(origins)
        return web.Response(status=204)

    async def _warm(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        self._check_warming()
        plan, shards, _ = await self._read_plan(request)
        self._check_warming()  # again: a place is taken only now, or bodies that drip would keep them all
        self._warming += 1
        try:
            return await self._stream(request, record, self._operations.warm(list(shards), plan.set))
        finally:
            self._warming -= 1

    def _check_warming(self) -> None:
        if self._warming >= MOST_WARMS:
            raise Busy(f"{self._warming} warm-ups are running already", next_step="wait for one of them, or put its shards into this one")

    async def _verify(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        rate_bytes_s = parse_rate(request.raw_path.partition("?")[2])
        self._check_verifying()
        with self._bodies.holding() as holding:
            patterns = parse_patterns(await read_body(request, COMMAND_BODY_BYTES, holding))
        self._check_verifying()  # as for a warm-up
        self._verifying = True
        try:
            return await self._stream(request, record, self._operations.verify(patterns, rate_bytes_s))
        finally:
            self._verifying = False

    def _check_verifying(self) -> None:
        if self._verifying:
            raise Busy("a verification is running already", next_step="wait for it: two would only read everything twice")

    async def _stream(
        self, request: web.BaseRequest, record: RequestRecord, source: AsyncIterator[dict[str, object]]
    ) -> web.StreamResponse:
        """``source`` as lines of JSON, each as it comes."""
        headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store", "Server": SERVER}
        response = web.StreamResponse(headers=headers)
        record.answered(response.status)
        try:
            async with closing(source) as events:
                await response.prepare(request)
                async for event in events:
                    await response.write(json.dumps(event).encode() + b"\n")
        except ForebayError:
            record.abort("origin_failed")
            cut(request.transport)
        return response

    async def _read_plan(
        self, request: web.BaseRequest, *, expand: bool = True
    ) -> tuple[PlanBody, Sequence[Shard], tuple[tuple[str, str], ...]]:
        with self._bodies.holding() as holding:  # until it is parsed
            body = await read_body(request, PLAN_BODY_BYTES, holding)
            headers = credential_headers(request.headers.items(), self._pass_headers)
            arguments = (request.headers.get("Content-Type", ""), body, request.raw_path.partition("?")[2], headers, expand)
            if len(body) <= _PARSE_ON_LOOP_BYTES:
                return *parse_plan(*arguments), headers
            return *await asyncio.get_running_loop().run_in_executor(self._parser_pool, parse_plan, *arguments, _breathe), headers


def _breathe() -> None:
    """In the parser's thread. Without it, whoever wants the interpreter waits for 5 ms each time (``sys.getswitchinterval``)."""
    time.sleep(_BREATH_S)


def _begin(path: str) -> str:
    """As much of an unknown path as can hold no secret: with a scheme we do not read, what follows may be ``user:password@``."""
    first, slash, rest = path[1:].partition("/")
    return path[:200] if first == "v1" else f"/{first.rpartition('@')[2][:40]}{'/…' if slash and rest else slash}"


def _json(value: object) -> web.Response:
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=json.dumps(value).encode() + b"\n", headers=headers)


def _text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, headers={"Cache-Control": "no-store"})
