"""Checks how a request is framed (target, headers, body) and refuses any that two programs could read differently.

It also reads the headers that name the reader, and those that travel to the origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from forebay_proxy.core.errors import ClientGone, InvalidRequest
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import MAX_URL_BYTES

__all__ = ["BadFraming", "Bodies", "Busy", "checked_path", "credential_headers", "named_reader", "reader_of"]

# A plan of 64 MiB over a slow link still moves; a client that sends nothing for this long has gone, or sends slowly on purpose.
BODY_SILENCE_S = 30.0
# Four of the largest plans at once. Plans are parsed one after the other, so more bodies would only wait in memory.
BODIES_MOST_BYTES = 256 * 1024 * 1024

# If one of these is repeated, two programs may read the same request differently: the root of request smuggling.
_SINGLE = ("Host", "Range", "Content-Length", "Transfer-Encoding", "If-Range", "Forebay-Reader", "Forebay-Token")


class BadFraming(InvalidRequest):
    """It is unclear where this request ends. The connection is closed after the answer."""


class Busy(InvalidRequest):
    """The request is valid, but too many like it are being answered."""

    retryable = True
    title = "Too many requests"

    def __init__(self, message: str, *, next_step: str, status: int = 429) -> None:
        super().__init__(message, next_step=next_step, status=status)


def checked_path(request: web.BaseRequest) -> str:
    """The raw target without its query. Raises ``InvalidRequest`` unless it is a plain request for a path."""
    target = request.raw_path
    if len(target) > MAX_URL_BYTES:
        raise InvalidRequest(
            f"the target has {len(target)} bytes, and {MAX_URL_BYTES} are taken", status=414, next_step="use a shorter name"
        )
    _check_framing(request)
    if not target.startswith("/"):
        step = "write http://127.0.0.1:7070/https/host/path instead of using this address as http_proxy"
        raise BadFraming("the request target is not a path: Forebay is no forward proxy", next_step=step)
    return target.partition("?")[0]


class Bodies:
    """Bounds the memory of request bodies, for all clients together. Not thread-safe: used on the event loop alone."""

    def __init__(self, most_bytes: int = BODIES_MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @asynccontextmanager
    async def read(self, request: web.BaseRequest, limit_bytes: int) -> AsyncIterator[bytes]:
        """The whole body, which counts as held within the ``async with``.

        Raises ``InvalidRequest`` (413) for a body longer than ``limit_bytes``, before reading it if its length is announced. Raises
        ``Busy`` if there is no room for it, and ``ClientGone`` if the client is silent for ``BODY_SILENCE_S``.
        """
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise InvalidRequest("an encoded request body", status=415, next_step="send it without Content-Encoding")
        if (request.content_length or 0) > limit_bytes:
            raise _too_large(f"{request.content_length} bytes", limit_bytes)
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= (1, 1):
            assert request.transport is not None
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # curl waits a second for this before it sends a larger body
        parts: list[bytes] = []
        size = 0
        try:
            while part := await _more(request):
                if self.held_bytes + len(part) > self._most_bytes:
                    raise Busy(
                        f"{self.held_bytes} bytes of other request bodies are being read, and {self._most_bytes} are taken at once",
                        next_step="send it again in a moment",
                    )
                self.held_bytes += len(part)
                size += len(part)
                parts.append(part)
                if size > limit_bytes:
                    raise _too_large("more", limit_bytes)
            yield b"".join(parts)
        finally:
            self.held_bytes -= size


async def _more(request: web.BaseRequest) -> bytes:
    try:
        async with asyncio.timeout(BODY_SILENCE_S):
            return await request.content.readany()
    except RequestPayloadError as error:
        raise ClientGone("the client left in the middle of its request body") from error
    except TimeoutError as error:
        raise ClientGone(f"the client was silent for {BODY_SILENCE_S:g} s in the middle of its request body") from error


def credential_headers(headers: Iterable[tuple[str, str]], pass_headers: frozenset[str] = frozenset()) -> tuple[tuple[str, str], ...]:
    """The request headers for the origin: Authorization, Cookie, X-* but not X-Forwarded-*, and ``pass_headers`` (lower case)."""

    def travels(name: str) -> bool:
        name = name.lower()
        own = name in ("authorization", "cookie") or (name.startswith("x-") and not name.startswith("x-forwarded-"))
        return own or name in pass_headers

    return tuple((name, value) for name, value in headers if travels(name))


def reader_of(request: web.BaseRequest) -> ReaderName | None:
    """The reader named by ``Forebay-Reader``; None without it. Raises ``InvalidRequest`` if it is not ``job/rank/worker/opener``."""
    text = request.headers.get("Forebay-Reader")
    if text is None:
        return None
    return named_reader(text, "Forebay-Reader", "send job/rank/worker/opener, or leave the header out")


def named_reader(text: str, what: str, step: str) -> ReaderName:
    """The reader that ``text`` names. Raises ``InvalidRequest`` that says ``what`` is wrong, with the next ``step``."""
    try:
        return ReaderName.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"{what}: {error}", next_step=step) from error


def _check_framing(request: web.BaseRequest) -> None:
    """Raises ``BadFraming`` for repeated headers and for a body where none belongs."""
    for name in _SINGLE:
        if len(request.headers.getall(name, ())) > 1:
            raise BadFraming(f"the header {name} is there more than once", next_step="send it once")
    announces_body = "Transfer-Encoding" in request.headers or request.headers.get("Content-Length", "0") != "0"
    if request.method in ("GET", "HEAD") and announces_body:
        step = "send GET and HEAD without Content-Length and Transfer-Encoding"
        raise BadFraming(f"{request.method} with a body", next_step=step)


def _too_large(found: str, limit_bytes: int) -> InvalidRequest:
    step = (
        "send it in parts (POST appends), or as a pattern with indices"
        if limit_bytes > 1 << 20
        else "use a pattern: s3://bucket/train-*.tar"
    )
    return InvalidRequest(f"the body holds {found}, and {limit_bytes} bytes are taken", status=413, next_step=step)
