"""GET and HEAD of a shard: open it, decide the answer, send the bytes as they arrive.

The header is sent only when the first byte of the body is there. Until then a failure is an answer with a status and a reason, and
clients such as curl repeat the request by themselves. After the header, only a cut connection tells the client that the body is incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

from aiohttp import web

from forebay_proxy.cache.readers.chunk_reader import FileStretch
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.errors import (
    ClientGone,
    InvalidRequest,
    InvalidShard,
    OriginError,
    ShardChanged,
    ShardError,
    TruncatedShard,
    VersionLost,
)
from forebay_proxy.core.shard import Shard, shown
from forebay_proxy.server.http.body_writer import BodyWriter, cut
from forebay_proxy.server.http.connection import asks
from forebay_proxy.server.http.framing import credential_headers, reader_of
from forebay_proxy.server.http.problem import SERVER, MethodNotAllowed
from forebay_proxy.server.http.request_record import RequestRecord, ShardRecord
from forebay_proxy.server.http.s3_requests import object_target, speaks_s3
from forebay_proxy.server.http.shard_response import ShardRequest, ShardResponse, cache_status, decide
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_proxy_target

__all__ = ["INSTANCE", "VERSION", "ShardRoute", "closing", "shard_in"]

log = logging.getLogger("forebay")

VERSION = "Forebay-Version"  # the ETag of the version that the client wants
INSTANCE = "Forebay-Instance"  # in every answer but refusals: if it changes, a reader knows that the sidecar restarted and lost its plan

Piece = bytes | memoryview | FileStretch
T = TypeVar("T")


# From this many bodies at once, bodies are sent from their files. With fewer, a copy costs no more, and less for a single reader, because
# it leaves the bytes in the processor's cache (measured on two busy cores). With 64 warm readers, sending from files gives 1.6 times the
# rate of copies, at half the processor time and memory.
MANY_BODIES = 8
REOPENED = 2  # a shard that changes or breaks a third time before its first byte is not worth waiting for


class ShardRoute:
    """Answers requests for shards. ``pass_headers`` travel to the origin, in addition to Authorization, Cookie and X-*."""

    def __init__(self, cache: ShardCache, pass_headers: Iterable[str] = (), instance: str = "") -> None:
        self._cache = cache
        self._own = {"Server": SERVER, **({INSTANCE: instance} if instance else {})}
        self._pass_headers = frozenset(name.lower() for name in pass_headers)
        self._bodies = 0  # bodies being sent

    async def answer(self, request: web.BaseRequest, record: RequestRecord, via: str = "") -> web.StreamResponse:
        """Answer the request. ``via``: the sidecars it has passed. Raises a ``ForebayError`` as long as no header is sent."""
        if request.method not in ("GET", "HEAD"):
            step = "write to the origin itself; what is cached of the old bytes is noticed by its version"
            raise MethodNotAllowed(f"{request.method} of a shard: Forebay only reads", allow=("GET", "HEAD"), next_step=step)
        shard = replace(self._shard(request), via=via, meant=request.headers.get(VERSION, ""))
        reader = reader_of(request)
        asks(request, reader)
        told = ShardRecord(shard.name)
        record.shard, record.reader = told, reader
        asked = ShardRequest.of(request.method, request.headers)
        for _ in range(REOPENED):
            with suppress(ShardChanged, VersionLost):  # no header is sent: the client has seen nothing of that version and need not know
                return await self._opened(request, record, told, shard, asked)
        return await self._opened(request, record, told, shard, asked)

    async def _opened(
        self, request: web.BaseRequest, record: RequestRecord, told: ShardRecord, shard: Shard, asked: ShardRequest
    ) -> web.StreamResponse:
        """Answer with the version that the shard has now. Raises ``ShardError`` as long as no header is sent."""
        head = request.method == "HEAD"
        async with self._cache.open(shard, record.reader, asked.range, head=head) as reading:
            answer = decide(asked, shard.name, reading.entry.shown_version, reading.entry.shown_key)
            told.length, told.epoch = reading.entry.shown_version.length, reading.epoch
            told.range = (answer.first, answer.last) if answer.status == 206 and answer.last is not None else None
            if head or answer.empty:
                return web.Response(status=answer.status, headers=answer.headers)  # no byte is read, so no Cache-Status either
            _refuse_old_client(request, shard, answer)
            told.outcome = await reading.begin(answer.first, answer.last)
            self._bodies += 1
            try:
                return await _stream(request, shard, answer, reading, record, told, self._own, lambda: self._bodies >= MANY_BODIES)
            finally:
                self._bodies -= 1
                # a disk that fails meanwhile turns it into a bypass
                told.outcome, told.waited_s = reading.outcome, reading.waited_s

    def _shard(self, request: web.BaseRequest) -> Shard:
        target = request.raw_path
        if target[1:3].lower() == "s3" and speaks_s3(target, request.headers):
            target = object_target(target, request.headers)
        return shard_in(target, request, self._pass_headers, "write /s3/bucket/key or /https/host/path after this address")


def shard_in(target: str, request: web.BaseRequest, pass_headers: frozenset[str], step: str) -> Shard:
    """The shard that ``target`` names, with the request's credentials. Raises ``InvalidShard`` with the next ``step``."""
    try:
        url = parse_proxy_target(target)
    except InvalidShardUrl as error:
        raise InvalidShard(_without_userinfo(target.partition("?")[0])[:200], str(error), next_step=step) from error
    return Shard.of(url, credential_headers(request.headers.items(), pass_headers))


def _without_userinfo(path: str) -> str:
    """A target's path for people and logs. A path that could not be parsed may hold a password anywhere before its last ``@``."""
    scheme = path[1:].partition("/")[0]
    return path if "@" not in path else f"/{scheme}/…@{path.rpartition('@')[2]}"


def _refuse_old_client(request: web.BaseRequest, shard: Shard, answer: ShardResponse) -> None:
    if answer.length is None and request.version < (1, 1):
        cause = "its length is unknown, and HTTP/1.0 cannot tell the end of such a body from a cut"
        raise InvalidRequest(f"shard {shown(shard.name)}: {cause}", status=505, next_step="ask with HTTP/1.1")


async def _stream(
    request: web.BaseRequest, shard: Shard, answer: ShardResponse, reading: ShardReader, record: RequestRecord, told: ShardRecord,
    own: Mapping[str, str], many: Callable[[], bool],
) -> web.StreamResponse:  # fmt: skip
    async with closing(reading.pieces(many) if answer.length is not None else reading.chunks()) as pieces:
        counted = _counted(pieces, shard, answer.length, told)
        first = await anext(counted, b"")
        record.answered(answer.status)
        response = web.StreamResponse(status=answer.status, headers=answer.headers | {"Cache-Status": cache_status(reading.outcome), **own})
        try:
            writer = await response.prepare(request)
            assert writer is not None
            body_writer = BodyWriter(writer, chunked=answer.length is None)
            try:
                await _copy(first, counted, body_writer, told, reading)
            finally:
                body_writer.close()
        except (ClientGone, ConnectionError):
            _end_early(request, record, "client_gone")
        except ShardError as error:
            cause = f"shard {shown(shard.name)}: {error.cause}"
            log.warning("cut after %d bytes: %s", told.bytes_sent, cause)
            _end_early(request, record, "changed" if isinstance(error, ShardChanged) else "origin_failed", cause)
        return response


async def _copy(first: Piece, pieces: AsyncIterator[Piece], body_writer: BodyWriter, told: ShardRecord, reading: ShardReader) -> None:
    """Send all pieces. A chunk counts as sent, and as a hit, once all of it is sent.

    So bytes that were read from the store for a client that left are no hits.
    """
    piece: Piece | None = first
    while piece is not None:
        if isinstance(piece, bytes | memoryview):
            await body_writer.send(piece)
            told.bytes_sent += len(piece)
        else:
            await _sent(piece, body_writer, told)
        told.hit_bytes = reading.hit_bytes
        piece = await anext(pieces, None)


async def _sent(stretch: FileStretch, body_writer: BodyWriter, told: ShardRecord) -> None:
    before = len(stretch)
    try:
        await body_writer.send_stretch(stretch)
    finally:
        told.bytes_sent += before - len(stretch)


async def _counted(pieces: AsyncIterator[Piece], shard: Shard, promised: int | None, told: ShardRecord) -> AsyncIterator[Piece]:
    """``pieces``, checked against the length in the header, so that a body of the wrong length never looks complete."""
    async for piece in pieces:
        if promised is not None and told.bytes_sent + len(piece) > promised:
            raise OriginError(shard.name, f"more than the {promised} bytes promised came")
        yield piece
    if promised is not None and told.bytes_sent < promised:
        raise TruncatedShard(shard.name, f"{told.bytes_sent} of {promised} bytes came")


def _end_early(request: web.BaseRequest, record: RequestRecord, reason: str, cause: str = "") -> None:
    cut(request.transport)
    record.abort(reason, cause)


@asynccontextmanager
async def closing(items: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a generator at the end of the ``async with``, not when the garbage collector finds it: it holds a lease."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
