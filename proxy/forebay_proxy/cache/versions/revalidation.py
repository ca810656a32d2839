"""Asks an origin whether it still has a stored version: by HEAD, and where that says no, by a GET of one byte that is held to the version.

Many servers answer HEAD wrongly: with 404 or 400, without the ETag, with a weak one, or with a login page. So only a yes to HEAD is
believed. An origin whose GET said otherwise is asked by GET from then on, for a while. So is a version without an identity: no answer to
HEAD is about its bytes. Not thread-safe: the event loop's only.

Other servers refuse HEAD as an origin in trouble would (503, 429, a closed connection), or never answer it. So an origin that refuses HEAD
is asked by GET too, before stored bytes are served without a comparison. If the GET fails as well, the origin is in trouble, and is asked
once only for the next minute. After a silence only GET is asked for a while: a silent origin costs each later shard one silence, not two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import OriginRefused, OriginTimeout, OriginUnavailable, RangeNotSatisfiable, ShardChanged, ShardError
from forebay_proxy.core.shard import ByteRange, Shard, Version
from forebay_proxy.transfer.limiter import SlotNeed
from forebay_proxy.transfer.retry import RetryBudget

__all__ = ["Revalidation"]

log = logging.getLogger("forebay")

HEAD_DIFFERS_S = 3600.0  # after a HEAD that was not to be believed; a GET of one byte costs the origin the same
IN_TROUBLE_S = 60.0
MOST_ORIGINS = 1024


class Revalidation:
    """One question at a time for a shard; the caller sees to that."""

    def __init__(self, fetcher: Fetcher, same: Callable[[Entry, Shard, Version], bool], clock: Callable[[], float]) -> None:
        """``same``: whether what the origin says to a request is about an entry's very bytes."""
        self._fetcher = fetcher
        self._same = same
        self._clock = clock
        self._head_differs: dict[str, float] = {}  # origin -> until when it is asked by GET
        self._in_trouble: dict[str, float] = {}  # origin -> until when a HEAD in vain is enough

    async def still(self, entry: Entry, shard: Shard, needed: SlotNeed) -> Version | None:
        """The version in the origin's answer if the origin still has it, else None. Waits for the answer.

        Raises ``OriginUnavailable`` where the origin cannot be asked now, and the error of its GET otherwise.
        """
        if not entry.version.identity or self._head_differs.get(shard.origin, 0.0) > self._clock():
            return await self.shown(entry, shard, needed)
        said = await self._by_head(entry, shard, needed)
        if said is not None:
            return said
        try:
            shown = await self.shown(entry, shard, needed)
        except OriginUnavailable:
            self._until(self._in_trouble, shard.origin, IN_TROUBLE_S)
            raise
        if shown is not None:
            self._by_get_from_now(shard.origin, "does not say what its GET says")
        return shown

    async def _by_head(self, entry: Entry, shard: Shard, needed: SlotNeed) -> Version | None:
        """Its yes; None for anything that a GET may contradict."""
        try:
            said = await self._fetcher.version(shard, needed)
            return said if self._same(entry, shard, said) else None
        except OriginRefused:
            raise
        except OriginTimeout:
            # Whatever GET says: the next shard shall not wait out this silence before it is asked about by GET.
            self._by_get_from_now(shard.origin, "was not answered in time")
            return None
        except OriginUnavailable:
            if self._in_trouble.get(shard.origin, 0.0) > self._clock():
                raise  # no GET has come through just now
            return None
        except ShardError:
            return None

    async def shown(self, entry: Entry, shard: Shard, needed: SlotNeed, retry_budget: RetryBudget | None = None) -> Version | None:
        """What the origin shows to the credential of ``shard`` if that is this version, else None.

        ``retry_budget``: an origin in trouble is asked again.
        """
        lies = self._fetcher.retry_budget(shard.origin)
        while True:
            try:
                async with self._fetcher.ask(shard, ByteRange(0, 0), entry.version.pin, needed, retry_budget) as (body, _):
                    return body.version if self._same(entry, shard, body.version) else None
            except RangeNotSatisfiable as error:
                if error.length != 0 or entry.version.length != 0:
                    raise
                return entry.version
            except ShardChanged:
                return None
            except OriginUnavailable as error:
                if retry_budget is None:
                    raise
                await self._fetcher.again(shard, error, retry_budget)
            except ShardError as error:
                await self._fetcher.again(shard, error, retry_budget or lies)

    def _by_get_from_now(self, origin: str, why: str) -> None:
        if origin not in self._head_differs:
            log.info("origin %s: its HEAD %s; stored shards are compared by GETs of one byte", origin, why)
        self._until(self._head_differs, origin, HEAD_DIFFERS_S)

    def _until(self, origins: dict[str, float], origin: str, seconds: float) -> None:
        if len(origins) >= MOST_ORIGINS:
            origins.clear()
        origins[origin] = self._clock() + seconds
