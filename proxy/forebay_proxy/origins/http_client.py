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
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import InvalidShard, OriginError, OriginRefused, OriginTimeout, RangeNotSatisfiable, ShardChanged
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginAnswered, OriginOddity
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins import digests
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.errors import mapped_http_errors, mapped_proxy_errors, refused_by_proxy, report
from forebay_proxy.origins.http_body import chunks_of, close, narrow, start_of, take_larger_pieces
from forebay_proxy.origins.landing import Landing, LandingBuffers
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of
from forebay_proxy.origins.net.dial import GuardedResolver, new_session, travelling
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard, Hop
from forebay_proxy.origins.net.proxies import Proxy
from forebay_proxy.origins.request import OriginRequest, RequestTarget, next_hop
from forebay_proxy.origins.response import OriginResponse, Placement, check_pin, content_length, error_of, placement, vary_of

__all__ = ["OriginClient", "OverHttp"]

MAX_HOPS = 5  # Hugging Face needs two; a longer chain is a loop
MOST_DENIED = 1024
_GOOD = frozenset({200, 206})
_ONE_BYTE = ByteRange(0, 0)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """An answer; ``response`` is open and holds the body if the status is good, else None."""

    ask: OriginRequest
    answer: OriginResponse
    response: aiohttp.ClientResponse | None


@runtime_checkable
class OverHttp(RequestTarget, Protocol):
    """An origin whose bytes an ``OriginClient`` brings."""

    origin_client: OriginClient


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
        self._buffers = LandingBuffers()
        self._denied: OrderedDict[tuple[str, str], None] = OrderedDict()  # (shard, pin) that the last answer denied
        self._guard = guard
        self._user_agent = user_agent
        self._resolver = resolver or GuardedResolver(guard)
        self._egress = egress or Egress()
        self._session: aiohttp.ClientSession | None = None  # opened by the first request

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
            take_larger_pieces(response)
            try:
                placed = placement(shard.name, answer, range)
                check_pin(shard.name, answer.headers, pin)
                if placed.ranged and answer.status == 200:
                    self._events.emit(OriginOddity(shard.origin, "range-as-200"))
                version = source.version(shard, exchange.ask, answer, placed.total)
                self._denied.pop(wanted, None)
                landing = Landing.of(response, placed.count, self._buffers)
                content = landing or response.content
                chunks = chunks_of(shard.name, content, placed.count, self._connect_timeout_s, self._idle_timeout_s)
                with contextlib.nullcontext() if landing is None else contextlib.closing(landing):
                    async with contextlib.aclosing(chunks):
                        framed = placed.count is not None or "chunked" in answer.headers.get("transfer-encoding", "").lower()
                        narrowed = landing.narrow if landing else partial(narrow, response)
                        found = _digests(exchange.ask, answer, placed)
                        yield OriginBody(version, placed.first, placed.count, placed.ranged, framed, chunks, found, narrowed)
            except ShardChanged:
                self._deny(wanted)
                raise
            finally:
                close(response)

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
                    close(exchange.response)
                    return source.version(shard, exchange.ask, exchange.answer, content_length(exchange.answer.headers))
                # Some origins refuse HEAD where they grant GET; any other answer would be the same.
                if exchange.answer.status not in (403, 405, 501):
                    raise error_of(shard.name, exchange.answer)
        return await self._probe(source, shard)

    async def glance(self, shard: Shard, ask: OriginRequest) -> tuple[AddressClass, OriginResponse]:
        """One HEAD, no redirect followed: for a source whose hops each say something. The class of the host that answered, its answer."""
        kind, response = await self.send(shard, ask, "HEAD", {})
        exchange = await self._sorted(ask, response)
        if exchange.response is not None:
            close(exchange.response)
        return kind, exchange.answer

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._resolver.close()

    async def _probe(self, source: RequestTarget, shard: Shard, range: ByteRange | None = _ONE_BYTE) -> Version:
        """The version, by asking for one byte; a shard without any is asked for whole."""
        try:
            async with self.read(source, shard, range, Pin()) as body:
                return body.version
        except RangeNotSatisfiable as error:
            if error.length != 0:
                raise
        return await self._probe(source, shard, None)

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
            kind, response = await self.send(shard, ask, method, {**conditions, **ask.held_to(pin).headers()})
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
            body = await start_of(response, self._idle_timeout_s)
        finally:
            close(response)
        return _Exchange(ask, OriginResponse(response.status, headers, body), None)

    async def send(
        self, shard: Shard, ask: OriginRequest, method: str, conditions: Mapping[str, str]
    ) -> tuple[AddressClass, aiohttp.ClientResponse]:
        """The class of the host that answered, and its answer: headers in, body still to come. Raises the ``ShardError`` family."""
        place = _place(shard, ask.url)
        proxy = None if self._egress.proxies is None else self._egress.proxies.through(place)
        hop = Hop(place, ask.vouched, ask.came_from, proxy.place if proxy else None)
        loop_guard = self._egress.loop_guard
        marks = loop_guard.mark(shard.via) if shard.via else loop_guard.own
        headers = CIMultiDict[str]([*ask.headers, *conditions.items(), *marks.items()])
        loop = asyncio.get_running_loop()
        started, code, asked = loop.time(), 0, True
        try:
            with mapped_http_errors(shard.name, self._connect_timeout_s, self._idle_timeout_s):
                kind = await self._resolver.admit(hop)
                if kind is AddressClass.LOOPBACK:  # a name for this machine: it is nobody else's business
                    hop, proxy = replace(hop, proxy=None), None
                with travelling(hop), mapped_proxy_errors(shard.name, proxy):
                    response = await self._answered(shard, method, ask, headers, proxy)
            code = response.status
        except OriginRefused:  # nothing was asked: a URL anybody can write must not show up as one of our origins
            asked = False
            raise
        finally:
            if asked:
                self._events.emit(OriginAnswered(shard.origin, method, code, loop.time() - started))
        if proxy is not None and code == 407:
            response.close()
            raise refused_by_proxy(shard.name, proxy, code)
        return kind, response

    async def _answered(
        self, shard: Shard, method: str, ask: OriginRequest, headers: CIMultiDict[str], proxy: Proxy | None
    ) -> aiohttp.ClientResponse:
        """The answer's headers, within the connect and the idle time together."""
        url = URL(ask.url, encoded=True)
        way = {} if proxy is None else _way(proxy, url, headers)
        trusted = self._egress.trust.sdk if ask.sdk else self._egress.trust.everywhere
        try:
            async with asyncio.timeout(self._connect_timeout_s + self._idle_timeout_s):
                return await self._opened().request(method, url, headers=headers, allow_redirects=False, ssl=trusted, **way)
        except aiohttp.ServerTimeoutError:
            raise  # it says more: no connection came about
        except TimeoutError as error:
            raise OriginTimeout(shard.name, f"the origin was silent for {self._idle_timeout_s:g} s") from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = new_session(self._guard, self._resolver, self._connect_timeout_s, self._user_agent)
        return self._session


def _elsewhere(ask: OriginRequest, answer: OriginResponse) -> bool:
    """An S3 redirect to another region: following it would break the signature, which names the host. The source signs anew."""
    return bool(ask.region) and answer.headers.get("x-amz-bucket-region", ask.region) != ask.region


def _digests(ask: OriginRequest, answer: OriginResponse, placed: Placement) -> tuple[Digest, ...]:
    found: tuple[Digest, ...] = ()
    if not digests.HEADERS.isdisjoint(answer.headers):
        found = digests.offered(answer.headers, whole=not placed.ranged, length=placed.total)
    if ask.linked:
        found += digests.linked(ask.linked, answer.headers.get("content-encoding", ""))
    return found


def _place(shard: Shard, url: str) -> AllowedPlace:
    try:
        return place_of(url)
    except ValueError as error:
        raise InvalidShard(shard.name, "the host it leads to has no certain spelling", next_step="write its plain or xn-- form") from error


def _way(proxy: Proxy, url: URL, headers: CIMultiDict[str]) -> dict[str, Any]:
    """What to tell the client about the proxy. Not its ``proxy_auth``: that would print with every connection it complains about."""
    way: dict[str, Any] = {"proxy": URL(proxy.place.text())}
    if proxy.authorization:
        if url.scheme == "https":
            way["proxy_headers"] = {"Proxy-Authorization": proxy.authorization}  # of the CONNECT; the origin sees none of it
        else:
            headers["Proxy-Authorization"] = proxy.authorization
    return way
