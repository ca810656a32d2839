"""Asks an origin about versions that are stored: whether it still has them, and whether another credential may read them too.

However many readers wait for an answer, the origin is asked once. The question itself is put by ``Revalidation``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.refusals import RefusalCache
from forebay_proxy.cache.versions.revalidation import Revalidation
from forebay_proxy.cache.versions.versions import Freshness, Outdated, Versions
from forebay_proxy.core.errors import OriginUnavailable, ShardError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import Revalidated
from forebay_proxy.core.shard import Shard
from forebay_proxy.transfer.single_flight import Urgency, UrgentCall

__all__ = ["VersionChecks"]

log = logging.getLogger("forebay")


class VersionChecks:
    """The questions in the air, and what follows from their answers."""

    def __init__(
        self,
        *,
        fetcher: Fetcher,
        versions: Versions,
        freshness: Freshness,
        refusals: RefusalCache,
        room: SpaceManager,
        outdated: Outdated,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
    ) -> None:
        self._fetcher = fetcher
        self._versions = versions
        self._freshness = freshness
        self._refusals = refusals
        self._room = room
        self._outdated = outdated
        self._events = events
        self._clock = clock
        self._question = Revalidation(fetcher, versions.is_same, clock)
        self._calls: UrgentCall[bool] = UrgentCall(group, fetcher.hurried)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def running(self) -> int:
        """Questions whose work has not ended, though those who asked may have their answer."""
        return self._calls.running

    async def is_same(self, entry: Entry, shard: Shard, job: str, need: float) -> bool:
        """Whether the stored version is still the origin's; waits for the origin, hurrying a question that was asked ahead of need.

        Also True where the origin cannot be asked now: then it is served as stored, and said. Raises ``ShardError`` for what the origin
        refuses.
        """
        key = shard.name, self._versions.mac(shard)
        mine = Urgency(need)
        return await self._calls.join(key, shard.origin, mine, lambda needed, done: self._compare(entry, shard, job, needed, done))

    async def is_shown(self, entry: Entry, shard: Shard) -> bool:
        """Whether the origin shows the stored version to the credential of ``shard`` too; waits for it. Raises ``ShardError``."""
        key = shard.name, self._versions.mac(shard), "proof", entry.key
        return await self._calls.join(key, shard.origin, Urgency(0.0), lambda needed, done: self._prove(entry, shard, needed, done))

    async def _compare(self, entry: Entry, shard: Shard, job: str, needed: Urgency, done: asyncio.Future[bool]) -> None:
        """Compare with the origin: the same -> good for this job; another -> outdated; unreachable -> served, and said."""
        if not job and self._freshness.is_silent(shard.origin):
            self._served_unasked(entry, job, done)
            return
        try:
            now = await self._question.still(entry, shard, needed)
        except OriginUnavailable as error:
            log.warning("shard %s: served as stored, the origin cannot be asked whether it changed (%s)", shard.name, error.cause)
            self._freshness.silenced(shard.origin)
            self._served_unasked(entry, job, done)
            return
        except ShardError as error:
            self._refusals.remember(shard.name, self._versions.mac(shard), error)
            raise
        self._events.emit(Revalidated("same" if now is not None else "changed"))
        if now is not None:
            if entry.dated(now):
                self._room.claim(entry)
            self._freshness.checked(entry, job)
        else:
            self._versions.not_shown(entry, shard, self._outdated)
        done.set_result(now is not None)

    def _served_unasked(self, entry: Entry, job: str, done: asyncio.Future[bool]) -> None:
        self._events.emit(Revalidated("unreachable"))
        self._freshness.checked(entry, job)
        done.set_result(True)

    async def _prove(self, entry: Entry, shard: Shard, needed: Urgency, done: asyncio.Future[bool]) -> None:
        """Let another credential in once the origin says yes to it, by a ranged GET with the version's pin."""
        mac = self._versions.mac(shard)
        try:
            shown = await self._question.shown(entry, shard, needed, self._fetcher.retry_budget(shard.origin))
        except ShardError as error:
            self._refusals.remember(shard.name, mac, error)
            raise
        if shown is not None:
            entry.access.proved(mac, self._clock())
        done.set_result(shown is not None)

    def cancel(self) -> None:
        """Shutdown: every question ends now, and each that comes after; the task group waits for them."""
        self._calls.cancel()

    def drop(self) -> None:
        """A drain: every question in the air ends now."""
        self._calls.drop(lambda key: False)
