"""Routes for health, metrics, status and commands (evict, warm, verify, hold). ``page_routes`` has those of the status page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, unquote

from aiohttp import web

from forebay_proxy.background.operations import Operations
from forebay_proxy.core.errors import ForebayError, InvalidRequest
from forebay_proxy.policy.plans.live_jobs import LiveJobs
from forebay_proxy.server.http.body_writer import cut
from forebay_proxy.server.http.framing import Bodies, Busy
from forebay_proxy.server.http.page_routes import PageRoutes
from forebay_proxy.server.http.plan_route import PlanRoute
from forebay_proxy.server.http.problem import JSON_HEADERS, SERVER, MethodNotAllowed, NoSuchPath, answer_json, json_line
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.server.http.shard_route import closing

__all__ = ["AdminRoutes", "parse_patterns"]

# Warm-ups at once: a person starts one, a cluster's prologue a few. Each keeps its list of shards in memory until it ends.
MOST_WARMS = 8
# Holds at once. A node runs a few jobs, each with one hold for `forebay run` and one for each rank that calls fb.sidecar(). More than
# this is a fault in a client, and would take the connections of readers.
MOST_HOLDS = 256
COMMAND_BODY_BYTES = 1024 * 1024  # an evict list; a pattern says the same in a hundred bytes
MAX_PATTERNS = 10_000
MAX_ORIGINS = 100  # a person types them

MOST_REST_S = 1.0  # a client waits a few seconds at most
ANSWER_S = 0.002  # the cost of an answer without making its text

Handler = Callable[[web.BaseRequest, RequestRecord], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class _MadeForAll(Generic[T]):
    """A text that takes the event loop some milliseconds to make.

    It is made on request, once for all clients that wait meanwhile. Then the event loop rests for as long as one text per client would have
    taken. Without the rest, fifty clients of ``/metrics`` would leave readers no time.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._turn = asyncio.Lock()
        self._number = 0  # how often it was made
        self._made: T | None = None
        self._askers = 0
        self._free_at = 0.0  # on the loop's clock

    async def get(self) -> T:
        clock, asked = asyncio.get_running_loop().time, self._number
        self._askers += 1
        try:
            async with self._turn:
                if self._made is None or self._number == asked:
                    await asyncio.sleep(self._free_at - clock())
                    began = clock()
                    self._made = self._make()
                    self._number += 1
                    self._free_at = clock() + min(MOST_REST_S, (clock() - began + ANSWER_S) * self._askers)
                return self._made
        finally:
            self._askers -= 1
            if not self._askers:
                self._made = None


class AdminRoutes:
    """One method per path. Each request calls ``status`` or ``metrics``; ``/readyz`` answers 200 if ``ready`` returns "ready"."""

    def __init__(
        self,
        *,
        plans: PlanRoute,
        page: PageRoutes,
        bodies: Bodies,
        operations: Operations,
        status: Callable[[], dict[str, Any]],
        metrics: Callable[[], tuple[bytes, str]],
        ready: Callable[[], str],
        jobs: LiveJobs | None = None,
        allow: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._plans = plans
        self._jobs = jobs or LiveJobs(time.monotonic)
        self._operations = operations
        self._status = _MadeForAll(lambda: json_line(status()))
        self._metrics = _MadeForAll(metrics)
        self.events = page.events
        self._ready = ready
        self._allow_origins = allow
        self._bodies = bodies
        self._holds = 0
        self._warm_ups = 0
        self._verifies = False
        self._routes: dict[str, dict[str, Handler]] = {
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            "/metrics": {"GET": self._show_metrics},
            "/v1/hold": {"GET": self._hold},
            "/v1/status": {"GET": self._show_status},
            "/v1/shards": {"GET": self._show_shards},
            "/v1/plans": {"GET": plans.show},
            "/v1/evict": {"POST": self._evict},
            "/v1/warm": {"POST": self._warm},
            "/v1/verify": {"POST": self._verify},
            **({"/v1/allow": {"POST": self._allow}} if allow else {}),
            **page.routes,
        }

    async def answer(self, path: str, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Answer the request for ``path``, the target without its query.

        Raises ``NoSuchPath``, ``MethodNotAllowed`` or ``InvalidRequest``.
        """
        return await self._handler(path, request.method)(request, record)

    def _handler(self, path: str, method: str) -> Handler:
        methods = self._routes.get(path)
        if methods is None:
            step = "write /s3/bucket/key or /https/host/path for a shard; GET /v1/status tells what runs here"
            raise NoSuchPath(f"{_begin(path)!r} begins with no scheme that Forebay reads, nor is it a path of its own", next_step=step)
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise MethodNotAllowed.of(path, method, methods)
        return handler

    async def _healthz(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return _text("ok\n")

    async def _readyz(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        state = self._ready()
        return _text(f"{state}\n", status=200 if state == "ready" else 503)

    async def _hold(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Send a header, then nothing, until the client leaves or the sidecar stops. An open hold keeps an idle sidecar alive.

        The header ``Forebay-Job`` names the job that counts as running meanwhile.
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
        body, content_type = await self._metrics.get()
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _show_status(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return web.Response(body=await self._status.get(), headers=JSON_HEADERS)

    async def _show_shards(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        named = parse_qs(request.raw_path.partition("?")[2]).get("shard", [""])
        return answer_json({"shards": self._operations.shards(named[0])})

    async def _evict(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        async with self._bodies.read(request, COMMAND_BODY_BYTES) as body:
            patterns = parse_patterns(body)
        return answer_json(await self._operations.evict(patterns))

    async def _allow(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        async with self._bodies.read(request, COMMAND_BODY_BYTES) as body:
            step = 'send {"origins": ["https://host:8443"]}, in the words of --allow-origin'
            origins = _texts(_object(body, step), "origins", MAX_ORIGINS, step)
        assert self._allow_origins is not None
        self._allow_origins(origins)
        return web.Response(status=204)

    async def _warm(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        self._check_warming()
        _, shards, _ = await self._plans.read(request)
        self._check_warming()  # again: the body may have taken long. A warm-up counts only after its body, so slow bodies keep no place
        self._warm_ups += 1
        try:
            return await self._stream(request, record, self._operations.warm(shards))
        finally:
            self._warm_ups -= 1

    def _check_warming(self) -> None:
        if self._warm_ups >= MOST_WARMS:
            step = "wait for one of them, or put its shards into this one"
            raise Busy(f"{self._warm_ups} warm-ups are running already", next_step=step)

    async def _verify(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        self._check_verifying()
        async with self._bodies.read(request, COMMAND_BODY_BYTES) as body:
            patterns = parse_patterns(body)
        self._check_verifying()  # as for a warm-up
        self._verifies = True
        try:
            return await self._stream(request, record, self._operations.verify(patterns))
        finally:
            self._verifies = False

    def _check_verifying(self) -> None:
        if self._verifies:
            raise Busy("a verification is running already", next_step="wait for it: two would only read everything twice")

    async def _stream(
        self, request: web.BaseRequest, record: RequestRecord, source: AsyncIterator[dict[str, object]]
    ) -> web.StreamResponse:
        """Send ``source`` as lines of JSON, each as it comes."""
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


def parse_patterns(body: bytes) -> list[str] | None:
    """The shard patterns that a body names; None for all shards. Raises ``InvalidRequest``, naming the first bad entry."""
    step = 'send {"shards": ["s3://bucket/train-*.tar"]} or {"all": true}'
    wish = _object(body, step)
    return None if wish == {"all": True} and wish["all"] is True else _texts(wish, "shards", MAX_PATTERNS, step)


def _object(body: bytes, step: str) -> dict[str, Any]:
    try:
        wish = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON", next_step=step) from error
    return wish if isinstance(wish, dict) else {}


def _texts(wish: dict[str, Any], name: str, most: int, step: str) -> list[str]:
    """The list ``name``, which must be the only member of ``wish``. Raises ``InvalidRequest``."""
    texts = wish[name] if set(wish) == {name} else None
    if not isinstance(texts, list) or not 0 < len(texts) <= most:
        raise InvalidRequest(f"the body does not name 1 to {most} {name}", next_step=step)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"entry {index} of {name} is no text", next_step=step)
    return texts


def _begin(path: str) -> str:
    """The part of an unknown path that cannot hold a secret: after an unknown scheme, ``user:password@`` may follow."""
    first, slash, rest = path[1:].partition("/")
    return path[:200] if first == "v1" else f"/{first.rpartition('@')[2][:40]}{'/…' if slash and rest else slash}"


def _text(text: str, *, status: int = 200) -> web.Response:
    return web.Response(status=status, text=text, headers={"Cache-Control": "no-store"})
