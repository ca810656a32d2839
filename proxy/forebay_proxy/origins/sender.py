"""Sends one request where it may go: judged, on the right way (direct or through a proxy), marked as ours, its errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from forebay_proxy.errors import InvalidShard, OriginRefused, OriginTimeout
from forebay_proxy.events import Events, OriginAnswered
from forebay_proxy.origins.addresses import AddressClass
from forebay_proxy.origins.allow import Place, place_of
from forebay_proxy.origins.ask import Ask
from forebay_proxy.origins.failures import mapped_http_errors, mapped_proxy_errors, refused_by_proxy
from forebay_proxy.origins.guard import Guard, Trip
from forebay_proxy.origins.outward import Outward
from forebay_proxy.origins.proxies import Proxy
from forebay_proxy.origins.resolver import GuardedResolver, travelling
from forebay_proxy.origins.session import new_session
from forebay_proxy.shard import Shard

__all__ = ["Sender"]


class Sender:
    """Owns the HTTP session, opened by the first request."""

    def __init__(
        self,
        *,
        guard: Guard,
        events: Events,
        connect_timeout_s: float,
        idle_timeout_s: float,
        user_agent: str,
        resolver: GuardedResolver,
        outward: Outward,
    ) -> None:
        self._guard = guard
        self._events = events
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._user_agent = user_agent
        self._resolver = resolver
        self._outward = outward
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._resolver.close()

    async def send(self, shard: Shard, ask: Ask, method: str, conditions: Mapping[str, str]) -> tuple[AddressClass, aiohttp.ClientResponse]:
        """The class of the host that answered, and its answer: headers in, body still to come. Raises the ``ShardError`` family."""
        place = _place(shard, ask.url)
        proxy = self._outward.proxies.through(place)
        trip = Trip(place, ask.vouched, ask.came_from, proxy.place if proxy else None)
        marks = self._outward.echo.mark(shard.via)
        headers = CIMultiDict[str]([*ask.headers, *conditions.items(), *marks.items()])
        loop = asyncio.get_running_loop()
        started, code, asked = loop.time(), 0, True
        try:
            with mapped_http_errors(shard.name, self._connect_timeout_s, self._idle_timeout_s):
                kind = await self._resolver.admit(trip)
                if kind is AddressClass.LOOPBACK:  # a name for this machine: it is nobody else's business
                    trip, proxy = replace(trip, proxy=None), None
                with travelling(trip), mapped_proxy_errors(shard.name, proxy):
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
        self, shard: Shard, method: str, ask: Ask, headers: CIMultiDict[str], proxy: Proxy | None
    ) -> aiohttp.ClientResponse:
        """The answer's headers, within the connect and the idle time together."""
        url = URL(ask.url, encoded=True)
        way = {} if proxy is None else _way(proxy, url, headers)
        trusted = self._outward.trust.context(sdk=ask.sdk)
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


def _place(shard: Shard, url: str) -> Place:
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
