"""http and https origins: the shard's own URL, its own credential, and where redirects led last time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from forebay_proxy.events import Events
from forebay_proxy.origins import az
from forebay_proxy.origins.answer import Answer, version_of
from forebay_proxy.origins.ask import Ask
from forebay_proxy.origins.base import Body
from forebay_proxy.origins.guard import Guard
from forebay_proxy.origins.links import LINK_TTL_S, Links
from forebay_proxy.origins.mover import Mover
from forebay_proxy.origins.outward import Outward
from forebay_proxy.shard import ByteRange, Pin, Shard, Version

__all__ = ["HttpOrigin"]

RESOLVED_TTL_S = LINK_TTL_S  # not longer, though a link may say so: an opening starts where the last one was led
_STALE = frozenset({400, 401, 403, 404, 410})


class HttpOrigin:
    """All http(s) hosts; an ``Origin``. Owns the mover, which s3 shares."""

    def __init__(
        self,
        *,
        guard: Guard,
        events: Events,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 15.0,
        user_agent: str = "forebay",
        clock: Callable[[], float] = time.monotonic,
        mover: Mover | None = None,
        outward: Outward | None = None,
    ) -> None:
        self.mover = mover or Mover(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent,
            outward=outward,
        )  # fmt: skip
        self._links = Links(RESOLVED_TTL_S, clock)

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[Body]:
        return self.mover.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        """A new look at the origin: redirects are followed afresh."""
        self._links.forget(shard)
        return await self.mover.head(self, shard)

    async def aclose(self) -> None:
        await self.mover.aclose()

    async def prepare(self, shard: Shard) -> Ask:
        link = self._links.find(shard)
        if link is not None:
            return link
        url, headers = shard.url.text(), shard.credential.headers
        return Ask(url, (*headers, *az.headers_of(url, headers)), signed_for_get=bool(shard.credential.signature))

    async def again(self, shard: Shard, ask: Ask, answer: Answer) -> Ask | None:
        """Where a remembered redirect is no longer good, the shard's own URL is asked once."""
        if ask.fresh or answer.status not in _STALE:
            return None
        self._links.forget(shard)
        return await self.prepare(shard)

    def arrived(self, shard: Shard, ask: Ask) -> None:
        # Never `fresh` again: that is what lets `again` tell a remembered URL from one just led to.
        self._links.keep(shard, Ask(ask.url, ask.headers, signed_for_get=True, fresh=False, came_from=ask.came_from))

    def version(self, shard: Shard, ask: Ask, answer: Answer, length: int | None) -> Version:
        return version_of(answer.headers, length)
