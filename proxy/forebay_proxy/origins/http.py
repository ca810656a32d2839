"""http and https origins: the shard's own URL, its own credential, and where redirects led last time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.cloud import az
from forebay_proxy.origins.http_client import OriginClient
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.origins.request import LINK_TTL_S, OriginRequest, RedirectCache
from forebay_proxy.origins.response import OriginResponse, version_of

__all__ = ["HttpOrigin"]

log = logging.getLogger("forebay")

RESOLVED_TTL_S = LINK_TTL_S  # not longer, though a link may say so: an opening starts where the last one was led
_STALE = frozenset({400, 401, 403, 404, 410})


class HttpOrigin:
    """All http(s) hosts; an ``Origin``. Owns the client, which s3 shares."""

    def __init__(
        self,
        *,
        guard: Guard,
        events: Events,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 15.0,
        user_agent: str = "forebay",
        clock: Callable[[], float] = time.monotonic,
        origin_client: OriginClient | None = None,
        egress: Egress | None = None,
    ) -> None:
        self.origin_client = origin_client or OriginClient(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent,
            egress=egress,
        )  # fmt: skip
        self._redirects = RedirectCache(RESOLVED_TTL_S, clock)

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[OriginBody]:
        return self.origin_client.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        """A new look at the origin: redirects are followed afresh."""
        self._redirects.forget(shard)
        return await self.origin_client.head(self, shard)

    async def aclose(self) -> None:
        await self.origin_client.aclose()

    async def prepare(self, shard: Shard) -> OriginRequest:
        link = self._redirects.find(shard)
        if link is not None:
            return link
        url, headers = shard.url.text(), shard.credential.headers
        if az.MARK in url:
            headers = (*headers, *az.headers_of(url, headers))
        return OriginRequest(url, headers, signed_for_get=bool(shard.credential.signature))

    async def again(self, shard: Shard, ask: OriginRequest, answer: OriginResponse) -> OriginRequest | None:
        """Where a remembered redirect is no longer good, the shard's own URL is asked once."""
        if ask.fresh or answer.status not in _STALE:
            return None
        self._redirects.forget(shard)
        return await self.prepare(shard)

    def arrived(self, shard: Shard, ask: OriginRequest) -> None:
        # Never `fresh` again: that is what lets `again` tell a remembered URL from one just led to.
        self._redirects.keep(
            shard, OriginRequest(ask.url, ask.headers, signed_for_get=True, fresh=False, came_from=ask.came_from, vary=ask.vary)
        )

    def version(self, shard: Shard, ask: OriginRequest, answer: OriginResponse, length: int | None) -> Version:
        version = version_of(answer.headers, length)
        if ask.vary:
            version = replace(version, vary=(*version.vary, *ask.vary), led=True)
        if "*" not in version.vary:
            return version
        # Chosen by something that no request shows (RFC 9110, section 12.5.5): no two answers may be taken for the same.
        return replace(version, identity="")
