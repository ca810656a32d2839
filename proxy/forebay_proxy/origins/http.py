"""http and https origins: the shard's own URL, its own credential, and where redirects led last time."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from forebay_proxy.events import Events
from forebay_proxy.origins.answer import Answer
from forebay_proxy.origins.ask import Ask
from forebay_proxy.origins.base import Body
from forebay_proxy.origins.guard import Guard
from forebay_proxy.origins.mover import Mover
from forebay_proxy.shard import ByteRange, Credential, Pin, Shard, Version

__all__ = ["HttpOrigin"]

# Signed CDN links live from five minutes up; an expired one costs a single extra request, because it is answered 403.
RESOLVED_TTL_S = 240.0
RESOLVED_MAX = 4096  # shards being read at one time on one machine, with room; about 1 kB each
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
    ) -> None:
        self.mover = mover or Mover(
            guard=guard, events=events, connect_timeout_s=connect_timeout_s, idle_timeout_s=idle_timeout_s, user_agent=user_agent
        )
        self._clock = clock
        # Keyed with the credential: where one reader was led is not open to another.
        self._resolved: OrderedDict[tuple[str, Credential], tuple[float, Ask]] = OrderedDict()

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[Body]:
        return self.mover.read(self, shard, range, pin)

    async def head(self, shard: Shard) -> Version:
        """A new look at the origin: redirects are followed afresh."""
        self._forget(shard)
        return await self.mover.head(self, shard)

    async def aclose(self) -> None:
        await self.mover.aclose()

    async def prepare(self, shard: Shard) -> Ask:
        until, ask = self._resolved.get((shard.name, shard.credential), (0.0, None))
        if ask is not None and self._clock() < until:
            return ask
        return Ask(shard.url.text(), shard.credential.headers, signed_for_get=bool(shard.credential.signature))

    async def again(self, shard: Shard, ask: Ask, answer: Answer) -> Ask | None:
        """Where a remembered redirect is no longer good, the shard's own URL is asked once."""
        if ask.fresh or answer.status not in _STALE:
            return None
        self._forget(shard)
        return await self.prepare(shard)

    def arrived(self, shard: Shard, ask: Ask) -> None:
        # Never `fresh` again: that is what lets `again` tell a remembered URL from one just led to.
        remembered = Ask(ask.url, ask.headers, signed_for_get=True, fresh=False, came_from=ask.came_from)
        self._resolved[shard.name, shard.credential] = (self._clock() + RESOLVED_TTL_S, remembered)
        self._resolved.move_to_end((shard.name, shard.credential))
        if len(self._resolved) > RESOLVED_MAX:
            self._resolved.popitem(last=False)

    def _forget(self, shard: Shard) -> None:
        self._resolved.pop((shard.name, shard.credential), None)
