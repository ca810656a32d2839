"""``/v1/plans``: readers announce or withdraw plans; clients list them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from forebay_proxy.background.plan_intake import PlanIntake
from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.entries import Siblings
from forebay_proxy.server.http.connection import asks
from forebay_proxy.server.http.framing import Bodies, credential_headers, named_reader
from forebay_proxy.server.http.problem import MethodNotAllowed, answer_json
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.wire.protocol.plan import NDJSON, InvalidPlan, PlanBody, PlanTooLong, ReaderName, decode
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

__all__ = [
    "MOST_ROWS", "PLANS_PATH", "PLAN_BODY_BYTES", "Announced", "PlanRoute", "parse_plan", "parse_plan_query", "shards_of",
]  # fmt: skip

PLANS_PATH = "/v1/plans"
PLAN_BODY_BYTES = 64 * 1024 * 1024  # promised in docs/protocol.md
# A longer plan is parsed in a thread. 32 kB are some hundred URLs, or the 64 shards that a reader keeps announced: 1 ms.
_PARSE_ON_LOOP_BYTES = 32 * 1024
MOST_ROWS = 256  # per answer: about 120 kB and 5 ms of the event loop

Announced = Callable[[str | None, ReaderName | None, int], dict[str, Any]]  # plans of a job (None: of all), after a reader, at most so many
Headers = tuple[tuple[str, str], ...]


class PlanRoute:
    """Answers requests below ``/v1/plans``. ``bodies`` bounds the memory of request bodies."""

    def __init__(
        self, plans: PlanIntake, announced: Announced, parser_pool: Executor, bodies: Bodies, pass_headers: Iterable[str] = ()
    ) -> None:
        self._plans = plans
        self._announced = announced
        self._parser_pool = parser_pool
        self._bodies = bodies
        self._pass_headers = frozenset(name.lower() for name in pass_headers)

    async def answer(self, path: str, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Announce (PUT), extend (POST) or withdraw (DELETE) one reader's plan. Raises ``MethodNotAllowed``, ``InvalidRequest``."""
        if request.method not in ("PUT", "POST", "DELETE"):
            raise MethodNotAllowed.of(path, request.method, ("PUT", "POST", "DELETE"))
        record.reader = reader = named_reader(
            path.removeprefix(f"{PLANS_PATH}/"), "the plan's reader", "use /v1/plans/{job}/{rank}/{worker}/{opener}"
        )
        if request.method == "DELETE":
            await self._plans.retract(reader)  # withdrawing twice is no error
            return web.Response(status=204)
        asks(request, reader)
        plan, _, headers = await self.read(request, expand=False)
        try:
            await self._plans.announce(reader, plan, headers, appended=request.method == "POST")
        except InvalidShardUrl as error:
            raise InvalidRequest(str(error), next_step="send a pattern of URLs such as s3://bucket/{000..999}.tar as the set") from error
        return web.Response(status=204)

    async def show(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """List announced plans, one page at a time."""
        return answer_json(self._announced(*parse_plan_query(request.raw_path.partition("?")[2])))

    async def read(self, request: web.BaseRequest, *, expand: bool = True) -> tuple[PlanBody, list[Shard], Headers]:
        """The plan in a request's body, its shards as ``parse_plan`` returns them, and the headers that travel to their origin."""
        async with self._bodies.read(request, PLAN_BODY_BYTES) as body:  # the body counts as held until it is parsed
            headers = credential_headers(request.headers.items(), self._pass_headers)
            arguments = (request.headers.get("Content-Type", ""), body, request.raw_path.partition("?")[2], headers, expand)
            if len(body) <= _PARSE_ON_LOOP_BYTES:
                return *parse_plan(*arguments), headers
            return *await asyncio.get_running_loop().run_in_executor(self._parser_pool, parse_plan, *arguments), headers


def parse_plan(
    content_type: str,
    body: bytes,
    query: str,
    headers: tuple[tuple[str, str], ...],
    expand: bool = True,
) -> tuple[PlanBody, list[Shard]]:
    """The plan in ``body``; with ``expand`` also its shards, including those given by indices.

    Large bodies are parsed in a thread, so this function uses its arguments alone. Raises ``InvalidRequest``.
    """
    try:
        plan = decode(content_type, body, query, expand=expand)
        return plan, shards_of(plan.shards, headers) if expand else []
    except PlanTooLong as error:
        step = f"send NDJSON ({NDJSON}, a JSON string a line), or a pattern with indices"
        raise InvalidRequest(str(error), status=413, next_step=step) from error
    except (InvalidPlan, InvalidShardUrl) as error:
        step = 'send {"shards": ["s3://bucket/00000.tar", …]}, or NDJSON with one URL a line as application/x-ndjson'
        raise InvalidRequest(str(error), next_step=step) from error


def shards_of(texts: Iterable[str], headers: tuple[tuple[str, str], ...] = ()) -> list[Shard]:
    """The shards that ``texts`` name. ``headers`` go to the first one's host and to no other. Raises ``InvalidShardUrl``."""
    siblings = Siblings(headers)
    return [siblings.shard(text) for text in texts]


def parse_plan_query(query: str) -> tuple[str | None, ReaderName | None, int]:
    """``?job=&after=&limit=``: the job (None: all jobs), the reader after which to continue, how many plans. Raises ``InvalidRequest``."""
    asked = dict(parse_qsl(query))
    limit = asked.get("limit", str(MOST_ROWS))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 9 and int(limit) > 0):
        raise InvalidRequest(f"limit is {limit[:40]!r}, not a number of plans", next_step=f"leave it out, or write ?limit={MOST_ROWS}")
    step = "give the `next` of the answer before, percent-encoded once more"
    after = named_reader(asked["after"], "after", step) if "after" in asked else None
    return asked.get("job"), after, min(int(limit), MOST_ROWS)
