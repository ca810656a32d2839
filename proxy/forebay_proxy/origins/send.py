"""Sends one request where it may go: judged, on the right way (direct or through a proxy), marked as ours, its errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from forebay_proxy.core.errors import InvalidShard, OriginRefused, OriginTimeout
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginAnswered
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.errors import mapped_http_errors, mapped_proxy_errors, refused_by_proxy
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of
from forebay_proxy.origins.net.dial import GuardedResolver, new_session, travelling
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard, Hop
from forebay_proxy.origins.net.proxies import Proxy
from forebay_proxy.origins.request import OriginRequest

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
        egress: Egress,
    ) -> None:
        self._guard = guard
        self._events = events
        self._connect_timeout_s = connect_timeout_s
        self._idle_timeout_s = idle_timeout_s
        self._user_agent = user_agent
        self._resolver = resolver
        self._egress = egress
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._resolver.close()

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
