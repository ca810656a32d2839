"""Asks an origin about stored versions: whether it still has them, and whether another credential may read them too.

All readers that wait share one question. The sidecar asks by HEAD and, if that says no, by a GET of one byte that is pinned to the version.
Many servers answer HEAD wrongly: with 404 or 400, without the ETag, with a weak one, or with a login page. So only a yes to HEAD is
believed. If the GET of an origin contradicts its HEAD, it is asked by GET alone for ``HEAD_DIFFERS_S``. So is a version without an
identity: no answer to HEAD is about its bytes.

Other servers refuse HEAD like an origin in trouble (503, 429, a closed connection), or never answer it. So after a refused HEAD the origin
is asked by GET too, before stored bytes are served without a comparison. If the GET also fails, the origin is in trouble, and for the next
minute only one question is asked. After a timeout only GET is used for a while, so that later shards do not wait for two timeouts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.cache.versions.versions import Versions
from forebay_proxy.core.errors import OriginRefused, OriginTimeout, OriginUnavailable, RangeNotSatisfiable, ShardChanged, ShardError
from forebay_proxy.core.events import Events
from forebay_proxy.core.expiry import Expiring
from forebay_proxy.core.facts.origins import Revalidated
from forebay_proxy.core.shard import ByteRange, Shard, Version
from forebay_proxy.transfer.retry import RetryBudget
from forebay_proxy.transfer.single_flight import SingleFlight, Urgency

__all__ = ["VersionChecks"]

log = logging.getLogger("forebay")

HEAD_DIFFERS_S = 3600.0  # after a HEAD that was contradicted; a GET of one byte costs the origin the same
IN_TROUBLE_S = 60.0
MOST_ORIGINS = 1024


class VersionChecks:
    """The running questions, and the consequences of their answers. Not thread-safe: used on the event loop alone."""

    def __init__(
        self, *, fetcher: Fetcher, versions: Versions, faults: ShardFaults, room: SpaceManager, events: Events,
        group: asyncio.TaskGroup, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.calls: SingleFlight[bool] = SingleFlight(group, fetcher.hurried)
        self._fetcher = fetcher
        self._versions = versions
        self._faults = faults
        self._room = room
        self._events = events
        self._clock = clock
        self._head_differs: Expiring[str, bool] = Expiring(HEAD_DIFFERS_S, MOST_ORIGINS, clock)  # origins that are asked by GET alone
        self._in_trouble: Expiring[str, bool] = Expiring(IN_TROUBLE_S, MOST_ORIGINS, clock)  # origins for which one failed HEAD is enough

    async def is_same(self, entry: Entry, shard: Shard, job: str, need: float) -> bool:
        """Whether the stored version is still the origin's. Waits for the origin, and hurries a question that was asked ahead of need.

        Also True if the origin cannot be asked now: then the version is served as stored, and logged. Raises ``ShardError`` if the origin
        refuses.
        """
        key = shard.name, self._versions.mac(shard)
        return await self.calls.join(
            key, shard.origin, Urgency(need), lambda needed, done: self._compare(entry, shard, job, needed, done)
        )  # fmt: skip

    async def is_shown(self, entry: Entry, shard: Shard) -> bool:
        """Whether the origin gives the stored version to the credential of ``shard`` too; waits for it. Raises ``ShardError``."""
        key = shard.name, self._versions.mac(shard), "proof", entry.key
        return await self.calls.join(key, shard.origin, Urgency(0.0), lambda needed, done: self._prove(entry, shard, needed, done))

    async def _compare(self, entry: Entry, shard: Shard, job: str, needed: Urgency, done: asyncio.Future[bool]) -> None:
        """Compare with the origin. The same: valid for this job. Another: outdated. Unreachable: served as stored, and logged."""
        result, now = "unreachable", None
        if job or not self._versions.is_silent(shard.origin):
            try:
                now = await self._still(entry, shard, needed)
                result = "changed" if now is None else "same"
            except OriginUnavailable as error:
                log.warning("shard %s: served as stored, the origin cannot be asked whether it changed (%s)", shard.name, error.cause)
                self._versions.silenced(shard.origin)
            except ShardError as error:
                self._faults.origin_refused(shard.name, self._versions.mac(shard), error)
                raise
        self._events.emit(Revalidated(result))
        if now is not None and entry.dated(now):
            self._room.claim(entry)
        if result == "changed":
            self._versions.not_shown(entry, shard)
        else:
            self._versions.checked(entry, job)
        done.set_result(result != "changed")

    async def _prove(self, entry: Entry, shard: Shard, needed: Urgency, done: asyncio.Future[bool]) -> None:
        """Admit another credential if the origin accepts it, by a ranged GET with the version's pin."""
        mac = self._versions.mac(shard)
        try:
            shown = await self._shown(entry, shard, needed, self._fetcher.retry_budget(shard.origin))
        except ShardError as error:
            self._faults.origin_refused(shard.name, mac, error)
            raise
        if shown is not None:
            entry.access.proved(mac, self._clock())
        done.set_result(shown is not None)

    # Questions

    async def _still(self, entry: Entry, shard: Shard, needed: Urgency) -> Version | None:
        """The version in the origin's answer if the origin still has it, else None. Waits for the answer.

        Raises ``OriginUnavailable`` if the origin cannot be asked now, and otherwise the error of its GET.
        """
        if not entry.version.identity or self._head_differs.get(shard.origin):
            return await self._shown(entry, shard, needed)
        said = await self._by_head(entry, shard, needed)
        if said is not None:
            return said
        try:
            shown = await self._shown(entry, shard, needed)
        except OriginUnavailable:
            self._in_trouble.put(shard.origin, True)
            raise
        if shown is not None:
            self._by_get_from_now(shard.origin, "does not say what its GET says")
        return shown

    async def _by_head(self, entry: Entry, shard: Shard, needed: Urgency) -> Version | None:
        """The version, if HEAD confirms it; None for any answer that a GET may contradict."""
        try:
            said = await self._fetcher.version(shard, needed)
            return said if self._versions.is_same(entry, shard, said) else None
        except OriginRefused:
            raise
        except OriginTimeout:
            # Whatever GET says: for the next shard, this timeout must not come before the GET.
            self._by_get_from_now(shard.origin, "was not answered in time")
        except OriginUnavailable:
            if self._in_trouble.get(shard.origin):
                raise  # no GET has succeeded recently
        except ShardError:
            pass
        return None

    async def _shown(self, entry: Entry, shard: Shard, needed: Urgency, retry_budget: RetryBudget | None = None) -> Version | None:
        """The version that the origin gives to the credential of ``shard`` if it is this one, else None.

        ``retry_budget``: ask an origin in trouble again; None: raise.
        """
        lies = self._fetcher.retry_budget(shard.origin)
        while True:
            try:
                async with self._fetcher.ask(shard, ByteRange(0, 0), entry.version.pin, needed, retry_budget) as (body, _):
                    return body.version if self._versions.is_same(entry, shard, body.version) else None
            except RangeNotSatisfiable as error:
                if error.length != 0 or entry.version.length != 0:
                    raise
                return entry.version
            except ShardChanged:
                return None
            except ShardError as error:
                if isinstance(error, OriginUnavailable) and retry_budget is None:
                    raise
                await self._fetcher.again(shard, error, retry_budget or lies)

    def _by_get_from_now(self, origin: str, why: str) -> None:
        if not self._head_differs.get(origin):
            log.info("origin %s: its HEAD %s; stored shards are compared by GETs of one byte", origin, why)
        self._head_differs.put(origin, True)
