"""The body of an origin's answer: received in large pieces or small ones, ended where it stays silent, compared with what was promised.

One timer a body, not one a piece: pieces come thousands of times a second. The HTTP client's own limit does not do: it ends with the
connection, and after a chunk header that cannot be read the client neither ends the body nor fails it (tried). Time that the body's taker
needs for itself (a disk, a slow reader) is not silence.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType

import aiohttp

from forebay_proxy.core.errors import OriginLied, OriginTimeout, OriginUnavailable, TruncatedShard
from forebay_proxy.origins.errors import mapped_http_errors
from forebay_proxy.origins.landing import Landing

__all__ = ["IdleTimeout", "chunks_of", "close", "narrow", "start_of", "take_larger_pieces"]

RECEIVE_BYTES = 2**20  # what a busy loop finds waiting in a kernel buffer of the usual size
ERROR_BODY_BYTES = 16 * 1024  # enough for any S3 error; also what is drained to keep a connection


Content = aiohttp.StreamReader | Landing  # a body as it comes


class IdleTimeout:
    """Watches one body for the length of the ``with``; ``next`` raises ``TimeoutError`` after ``limit_s`` without a piece."""

    def __init__(self, content: Content, limit_s: float) -> None:
        self._content = content
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # when the wait began that is going on
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> IdleTimeout:
        self._look_in(self._limit_s)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def next(self) -> bytes | memoryview:
        """The bytes received, in the pieces in which they came (``readany`` would copy all that have gathered into one); b"" at an end."""
        self._since = self._loop.time()
        try:
            chunk, _ = await self._content.readchunk()
        finally:
            self._since = None
        return chunk

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        waited = 0.0 if self._since is None else self._loop.time() - self._since
        if waited >= self._limit_s:
            self._content.set_exception(TimeoutError())
        else:
            self._look_in(self._limit_s - waited)


async def chunks_of(
    shard: str, content: Content, promised: int | None, connect_timeout_s: float, idle_timeout_s: float
) -> AsyncGenerator[bytes | memoryview]:
    """The body, as it is received: ``promised`` bytes, None where the origin does not say. Raises the ``ShardError`` family."""
    received = 0
    with mapped_http_errors(shard, connect_timeout_s, idle_timeout_s), IdleTimeout(content, idle_timeout_s) as silence:
        while not content.at_eof():
            try:
                chunk = await silence.next()
            except TimeoutError as error:
                raise OriginTimeout(shard, f"the origin was silent for {idle_timeout_s:g} s") from error
            except RuntimeError as error:  # how the client says that the connection went away under a paused body
                raise OriginUnavailable(shard, "the origin's connection broke") from error
            if not chunk:  # the end of a chunk in chunked coding, or of the body
                continue
            received += len(chunk)
            if promised is not None and received > promised:
                raise OriginLied(shard, f"the origin sent more than the {promised} bytes it promised")
            yield chunk
    if promised is not None and received < promised:
        raise TruncatedShard(shard, f"the origin sent {received} of {promised} bytes")


def take_larger_pieces(response: aiohttp.ClientResponse) -> None:
    """Let the transport take what the kernel holds in one piece: asyncio asks for 256 KiB at a time, and each piece costs the same."""
    connection = response.connection  # None: the body is here already
    if connection is not None and hasattr(connection.transport, "max_size"):
        connection.transport.max_size = RECEIVE_BYTES  # type: ignore[union-attr]  # an attribute of asyncio's own transports


def narrow(response: aiohttp.ClientResponse, size: int) -> None:
    """Let no more than ``size`` bytes, and a piece of that size, wait in this process; what is more waits in the kernel.

    The client library has no word for it once a response has begun; where its own names change, more memory is used.
    """
    connection, content = response.connection, response.content
    if connection is not None and hasattr(connection.transport, "max_size"):
        connection.transport.max_size = size  # type: ignore[union-attr]
    if hasattr(content, "_low_water") and hasattr(content, "_high_water"):
        content._low_water, content._high_water = size // 2, size


async def start_of(response: aiohttp.ClientResponse, patience_s: float) -> bytes:
    """The first 16 KiB of an error body, or what came of it; its end is not worth an error of its own."""
    body = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(patience_s):
            while len(body) < ERROR_BODY_BYTES and (chunk := await response.content.read(ERROR_BODY_BYTES - len(body))):
                body += chunk
    return body


def close(response: aiohttp.ClientResponse) -> None:
    """Give the connection back if its body was read to the end, else close it: the rest would have to be drained first."""
    if response.content.at_eof() and response.content.exception() is None:
        response.release()
    else:
        response.close()
