"""``/v1/meter``: training processes report their stalls, and clients read the totals of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.server.http.connection import asks
from forebay_proxy.server.http.framing import Bodies, named_reader
from forebay_proxy.server.http.problem import MethodNotAllowed, answer_json
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.telemetry.meter_board import MeterBoard
from forebay_proxy.wire.protocol.meter import MAX_BODY_BYTES, InvalidMeter, decode_meter
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["METER_PATH", "MeterRoute"]

METER_PATH = "/v1/meter"
_NAMED = "/v1/meter/{job}/{rank}/{worker}/{opener}"


class MeterRoute:
    """Answers requests below ``/v1/meter``. ``page`` returns the totals of a job; ``bodies`` bounds the memory of request bodies."""

    def __init__(self, meters: MeterBoard, page: Callable[[str], dict[str, Any]], bodies: Bodies) -> None:
        self._meters = meters
        self._page = page
        self._bodies = bodies

    async def answer(self, path: str, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Take the totals of a process (POST), note its end (DELETE), or show those of a job (GET).

        Raises ``MethodNotAllowed`` or ``InvalidRequest``.
        """
        if "/" not in path.removeprefix(f"{METER_PATH}/"):
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed.of(path, request.method, ("GET",))
            record.looks_only = True
            return answer_json(self._page(_job(path)))
        if request.method not in ("POST", "DELETE"):
            raise MethodNotAllowed.of(path, request.method, ("POST", "DELETE"))
        record.reader = reader = named_reader(
            path.removeprefix(f"{METER_PATH}/"), "who tells the totals", f"use {_NAMED}, with main for the training process"
        )
        asks(request, reader)
        if request.method == "DELETE":
            self._meters.end(reader)
            return web.Response(status=204)
        async with self._bodies.read(request, MAX_BODY_BYTES) as body:
            try:
                self._meters.take(reader, decode_meter(body))
            except InvalidMeter as error:
                step = "send the totals of this process as JSON: docs/protocol.md lists the fields"
                raise InvalidRequest(str(error), next_step=step) from error
        return web.Response(status=204)


def _job(path: str) -> str:
    """The job in the path of a GET. Raises ``InvalidRequest``."""
    job = unquote(path.removeprefix(f"{METER_PATH}/"))
    try:
        return ReaderName(job, "0", "main", "0").job
    except ValueError as error:
        raise InvalidRequest(f"the job: {error}", next_step=f"use {METER_PATH}/{{job}}, percent-encoded") from error
