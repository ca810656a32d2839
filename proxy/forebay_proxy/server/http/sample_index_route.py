"""``GET /v1/index/<shard path>``: the sample index of a shard, for every client that may read the shard."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aiohttp import web

from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.core import http_range
from forebay_proxy.core.errors import ClientGone
from forebay_proxy.server.http.body_writer import BodyWriter, cut
from forebay_proxy.server.http.framing import reader_of
from forebay_proxy.server.http.problem import SERVER, MethodNotAllowed
from forebay_proxy.server.http.request_record import RequestRecord
from forebay_proxy.server.http.shard_response import joined
from forebay_proxy.server.http.shard_route import INSTANCE, VERSION, shard_in
from forebay_proxy.wire.tar.sample_index import counts_in

__all__ = ["INDEX_PATH", "IndexRoute"]

INDEX_PATH = "/v1/index"
SAMPLES = "Forebay-Samples"  # the number of samples; GET with If-None-Match: * returns it without the index
AGAIN, LEFT_OUT = "Forebay-Keys-Again", "Forebay-Links-Left-Out"  # sent if not zero
CONTENT_TYPE = "application/vnd.forebay.samples"
_PIECE_BYTES = 1 << 20


class IndexRoute:
    """Answers requests below ``INDEX_PATH``. The rest of the path and the query name the shard, as in a request for the shard itself."""

    def __init__(self, indexes: SampleIndexer, pass_headers: Iterable[str] = (), instance: str = "") -> None:
        self._indexes = indexes
        self._pass_headers = frozenset(name.lower() for name in pass_headers)
        self._own = {"Server": SERVER, **({INSTANCE: instance} if instance else {})}

    async def answer(self, request: web.BaseRequest, record: RequestRecord, via: str = "") -> web.StreamResponse:
        """Send the index. Raises a ``ForebayError`` if there is none."""
        if request.method not in ("GET", "HEAD"):
            step = "nobody can put an index; the sidecar makes it of the shard itself"
            raise MethodNotAllowed(f"{request.method} of a sample index", allow=("GET", "HEAD"), next_step=step)
        reader = reader_of(request)
        record.reader = reader
        step = f"write {INDEX_PATH} and then the shard's path, as {INDEX_PATH}/s3/bucket/00000.tar"
        shard = shard_in(request.raw_path[len(INDEX_PATH) :], request, self._pass_headers, step)
        shard = replace(shard, via=via, meant=request.headers.get(VERSION, ""))
        only_kept = "only-if-cached" in request.headers.get("Cache-Control", "")
        async with self._indexes.asked(shard, reader, only_kept=only_kept) as (encoded, etag, _):
            samples, *amiss = counts_in(encoded)
            headers = {"ETag": etag, SAMPLES: str(samples), "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
            headers |= {name: str(count) for name, count in zip((AGAIN, LEFT_OUT), amiss, strict=True) if count}
            if not http_range.if_none_match(joined(request.headers, "If-None-Match"), etag):
                return web.Response(status=304, headers=headers)
            headers |= {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(encoded))}
            if request.method == "HEAD":
                return web.Response(headers=headers)
            return await self._send(request, record, headers, encoded)

    async def _send(self, request: web.BaseRequest, record: RequestRecord, headers: dict[str, str], encoded: bytes) -> web.StreamResponse:
        record.answered(200)
        response = web.StreamResponse(status=200, headers=headers | self._own)
        try:
            writer = await response.prepare(request)
            assert writer is not None
            body_writer, view = BodyWriter(writer, chunked=False), memoryview(encoded)
            for first in range(0, len(view), _PIECE_BYTES):
                await body_writer.send(view[first : first + _PIECE_BYTES])
        except (ClientGone, ConnectionError):
            cut(request.transport)
            record.abort("client_gone")
        return response
