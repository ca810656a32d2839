"""Moves bytes from any place that speaks HTTP: sends, follows redirects by hand, checks the answer, streams the body.

What to send comes from a ``RequestTarget`` (http: the URL itself; s3: a presigned one); all rules about the wire live here once. A hop is
judged by the guard before anything is sent, credential headers stay with the first host, https never falls back to http. One attempt: a
source may offer one second try (a new signature, the URL before its redirects), everything else is repeated by the fetch.

Chunks are what the event loop received, about 256 KiB each over loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import (
    OriginError,
    OriginLied,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    TruncatedShard,
)
from forebay_proxy.core.events import Events, OriginOddity
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins import digests
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.errors import mapped_http_errors, report
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.net.idle_timeout import IdleTimeout
from forebay_proxy.origins.net.resolver import GuardedResolver
from forebay_proxy.origins.request import OriginRequest, RequestTarget, next_hop
from forebay_proxy.origins.response import (
    OriginResponse,
    Placement,
    check_pin,
    content_length,
    error_of,
    placement,
    vary_of,
)
from forebay_proxy.origins.send import Sender

__all__ = ["OriginClient"]

MAX_HOPS = 5  # Hugging Face needs two; a longer chain is a loop
RECEIVE_BYTES = 2**20  # what a busy loop finds waiting in a kernel buffer of the usual size
ERROR_BODY_BYTES = 16 * 1024  # enough for any S3 error; also what is drained to keep a connection
MOST_DENIED = 1024
_GOOD = frozenset({200, 206})
_ONE_BYTE = ByteRange(0, 0)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An answer; ``response`` is open and holds the body if the status is good, else None."""

    ask: OriginRequest
    answer: OriginResponse
    response: aiohttp.ClientResponse | None


class OriginClient:
    """One HTTP session for all origins. The limiter bounds requests, so the session does not."""

    def __init__(
        self,
        *,
        guard: Guard,
        events: Events,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 15.0,
        user_agent: str = "forebay",
        resolver: GuardedResolver | None = None,
        egress: Egress | None = None,
    ) -> None:
        self._events = events
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._denied: OrderedDict[tuple[str, str], None] = OrderedDict()  # (shard, pin) that the last answer denied
        self._sender = Sender(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent,
            resolver=resolver or GuardedResolver(guard), egress=egress or Egress(),
        )  # fmt: skip

    @asynccontextmanager
    async def read(self, source: RequestTarget, shard: Shard, range: ByteRange | None, pin: Pin) -> AsyncIterator[OriginBody]:
        """As ``Origin.read``."""
        conditions = {} if range is None else {"Range": range.header()}
        wanted = shard.name, pin.value
        if wanted in self._denied:
            conditions["Connection"] = "close"
        with report(self._events, shard):
            exchange = await self._exchange(source, shard, "GET", conditions, pin)
            response, answer = exchange.response, exchange.answer
            pin = exchange.ask.held_to(pin)
            if response is None:
                if answer.status == 412:
                    self._deny(wanted)
                raise error_of(shard.name, answer, asked=range, pinned=bool(pin))
            _take_larger_pieces(response)
            try:
                placed = placement(shard.name, answer, range)
                check_pin(shard.name, answer.headers, pin)
                if placed.ranged and answer.status == 200:
                    self._events.emit(OriginOddity(shard.origin, "range-as-200"))
                version = source.version(shard, exchange.ask, answer, placed.total)
                self._denied.pop(wanted, None)
                chunks = self._chunks(shard, response, placed.count)
                async with contextlib.aclosing(chunks):
                    yield _body(exchange.ask, answer, version, placed, chunks, partial(_narrow, response))
            except ShardChanged:
                self._deny(wanted)
                raise
            finally:
                _leave(response)

    def _deny(self, wanted: tuple[str, str]) -> None:
        """A kept connection may lead to the same backend for ever, and another one may have the version: it is asked for by a new one."""
        self._denied[wanted] = None
        if len(self._denied) > MOST_DENIED:
            self._denied.popitem(last=False)

    async def head(self, source: RequestTarget, shard: Shard) -> Version:
        """As ``Origin.head``."""
        with report(self._events, shard):
            ask = await source.prepare(shard)
            if not ask.signed_for_get:
                exchange = await self._exchange(source, shard, "HEAD", {}, Pin())
                if exchange.response is not None:
                    _leave(exchange.response)
                    return source.version(shard, exchange.ask, exchange.answer, content_length(exchange.answer.headers))
                # Some origins refuse HEAD where they grant GET; any other answer would be the same.
                if exchange.answer.status not in (403, 405, 501):
                    raise error_of(shard.name, exchange.answer)
        return await self._probe(source, shard)

    async def glance(self, shard: Shard, ask: OriginRequest) -> tuple[AddressClass, OriginResponse]:
        """One HEAD, no redirect followed: for a source whose hops each say something. The class of the host that answered, its answer."""
        kind, response = await self._sender.send(shard, ask, "HEAD", {})
        exchange = await self._sorted(ask, response)
        if exchange.response is not None:
            _leave(exchange.response)
        return kind, exchange.answer

    async def aclose(self) -> None:
        await self._sender.aclose()

    async def _probe(self, source: RequestTarget, shard: Shard) -> Version:
        """The version, by asking for one byte; a shard without any is asked for whole."""
        try:
            return await self._version_by(source, shard, _ONE_BYTE)
        except RangeNotSatisfiable as error:
            if error.length != 0:
                raise
            return await self._version_by(source, shard, None)

    async def _version_by(self, source: RequestTarget, shard: Shard, range: ByteRange | None) -> Version:
        async with self.read(source, shard, range, Pin()) as body:
            return body.version

    async def _exchange(self, source: RequestTarget, shard: Shard, method: str, conditions: Mapping[str, str], pin: Pin) -> _Exchange:
        ask = await source.prepare(shard)
        exchange = await self._follow(shard, ask, method, conditions, pin)
        if exchange.response is None:
            second = await source.again(shard, exchange.ask, exchange.answer)
            if second is not None:
                ask = second
                exchange = await self._follow(shard, second, method, conditions, pin)
        # Where a HEAD was led (a login page, a link signed for it) says nothing of where the bytes are.
        if method == "GET" and exchange.response is not None and exchange.ask is not ask:
            source.arrived(shard, exchange.ask)
        return exchange

    async def _follow(self, shard: Shard, ask: OriginRequest, method: str, conditions: Mapping[str, str], pin: Pin) -> _Exchange:
        for _ in range(MAX_HOPS + 1):
            kind, response = await self._sender.send(shard, ask, method, {**conditions, **ask.held_to(pin).headers()})
            exchange = await self._sorted(ask, response)
            if not exchange.answer.is_redirect or _elsewhere(ask, exchange.answer):
                return exchange
            ask = next_hop(shard, ask, exchange.answer.headers["location"], kind, vary_of(exchange.answer.headers))
        raise OriginError(shard.name, f"more than {MAX_HOPS} redirects")

    async def _sorted(self, ask: OriginRequest, response: aiohttp.ClientResponse) -> _Exchange:
        """A good answer keeps its body; any other gives up a little of it and the connection."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        if "vary" in headers:  # a list, and each of those who answered on the way may have added a line
            headers["vary"] = ",".join(response.headers.getall("Vary"))
        if response.status in _GOOD:
            return _Exchange(ask, OriginResponse(response.status, headers), response)
        try:
            body = await _start_of(response, self._idle_timeout_s)
        finally:
            _leave(response)
        return _Exchange(ask, OriginResponse(response.status, headers, body), None)

    async def _chunks(self, shard: Shard, response: aiohttp.ClientResponse, promised: int | None) -> AsyncGenerator[bytes]:
        received = 0
        with (
            mapped_http_errors(shard.name, self._connect_timeout_s, self._idle_timeout_s),
            IdleTimeout(response.content, self._idle_timeout_s) as silence,
        ):
            while not response.content.at_eof():
                chunk = await self._next(shard, silence)
                if not chunk:  # the end of a chunk in chunked coding, or of the body
                    continue
                received += len(chunk)
                if promised is not None and received > promised:
                    raise OriginLied(shard.name, f"the origin sent more than the {promised} bytes it promised")
                yield chunk
        if promised is not None and received < promised:
            raise TruncatedShard(shard.name, f"the origin sent {received} of {promised} bytes")

    async def _next(self, shard: Shard, silence: IdleTimeout) -> bytes:
        try:
            return await silence.next()
        except TimeoutError as error:
            raise OriginTimeout(shard.name, f"the origin was silent for {self._idle_timeout_s:g} s") from error
        except RuntimeError as error:  # how the client says that the connection went away under a paused body
            raise OriginUnavailable(shard.name, "the origin's connection broke") from error


def _take_larger_pieces(response: aiohttp.ClientResponse) -> None:
    """Let the transport take what the kernel holds in one piece: asyncio asks for 256 KiB at a time, and each piece costs the same."""
    connection = response.connection  # None: the body is here already
    if connection is not None and hasattr(connection.transport, "max_size"):
        connection.transport.max_size = RECEIVE_BYTES  # type: ignore[union-attr]  # an attribute of asyncio's own transports


def _narrow(response: aiohttp.ClientResponse, size: int) -> None:
    """Let no more than ``size`` bytes, and a piece of that size, wait in this process; what is more waits in the kernel.

    The client library has no word for it once a response has begun; where its own names change, more memory is used.
    """
    connection, content = response.connection, response.content
    if connection is not None and hasattr(connection.transport, "max_size"):
        connection.transport.max_size = size  # type: ignore[union-attr]
    if hasattr(content, "_low_water") and hasattr(content, "_high_water"):
        content._low_water, content._high_water = size // 2, size


def _elsewhere(ask: OriginRequest, answer: OriginResponse) -> bool:
    """An S3 redirect to another region: following it would break the signature, which names the host. The source signs anew."""
    return bool(ask.region) and answer.headers.get("x-amz-bucket-region", ask.region) != ask.region


def _body(
    ask: OriginRequest,
    answer: OriginResponse,
    version: Version,
    placed: Placement,
    chunks: AsyncIterator[bytes],
    narrow: Callable[[int], None],
) -> OriginBody:
    framed = placed.count is not None or "chunked" in answer.headers.get("transfer-encoding", "").lower()
    found: tuple[Digest, ...] = ()
    if not digests.HEADERS.isdisjoint(answer.headers):
        found = digests.offered(answer.headers, whole=not placed.ranged, length=placed.total)
    if ask.linked:
        found += digests.linked(ask.linked, answer.headers.get("content-encoding", ""))
    return OriginBody(version, placed.first, placed.count, placed.ranged, framed, chunks, found, narrow)


async def _start_of(response: aiohttp.ClientResponse, patience_s: float) -> bytes:
    """The first 16 KiB of an error body, or what came of it; its end is not worth an error of its own."""
    body = b""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(patience_s):
            while len(body) < ERROR_BODY_BYTES and (chunk := await response.content.read(ERROR_BODY_BYTES - len(body))):
                body += chunk
    return body


def _leave(response: aiohttp.ClientResponse) -> None:
    """Give the connection back if its body was read to the end, else close it: the rest would have to be drained first."""
    if response.content.at_eof() and response.content.exception() is None:
        response.release()
    else:
        response.close()
