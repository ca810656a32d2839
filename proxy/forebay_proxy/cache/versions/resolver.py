"""Finds the version of a shard: a stored one that is still fresh, or the origin's, by one opening for all readers that ask.

An *opening* is the first ranged GET itself: its headers tell version, length and whether the origin honours Range, its body is the first
segment. 206: the length is in Content-Range. 200: no Range support, this body brings all of it. 416 with ``*/0``: an empty shard.
Where the origin names no version, or tells no length, nothing is kept: each reader gets a body of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import nullcontext, suppress

from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.open_files import Retirement
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.opening import Opening, OpeningParts
from forebay_proxy.cache.versions.refusals import RefusalCache, SuspectVersions
from forebay_proxy.cache.versions.version_checks import VersionChecks
from forebay_proxy.cache.versions.versions import Freshness, Outdated, Versions
from forebay_proxy.core.errors import CacheFull, ShardChanged, ShardError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OpeningDone
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.single_flight import Urgency, UrgentCall

__all__ = ["VersionResolver"]

ATTEMPTS = 4  # a shard that changes again while it is being opened


class VersionResolver:
    """The way from a shard's name to a version of it, and the openings in the air."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        retirement: Retirement,
        fetches: SegmentFetches,
        outdated: Outdated,
        suspects: SuspectVersions,
        fetcher: Fetcher,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
        hmac_key: bytes,
        revalidate: str | float,
    ) -> None:
        self.suspects = suspects
        self.freshness = Freshness(revalidate, clock)
        self.versions = Versions(room=room, freshness=self.freshness, suspects=self.suspects, clock=clock, hmac_key=hmac_key)
        self._refusals = RefusalCache(clock)
        self._checks = VersionChecks(
            fetcher=fetcher, versions=self.versions, freshness=self.freshness, refusals=self._refusals, room=room, events=events,
            outdated=outdated, group=group, clock=clock,
        )  # fmt: skip
        self._resolver: UrgentCall[Entry] = UrgentCall(group, fetcher.hurried)
        self._parts = OpeningParts(
            fetcher=fetcher, fetches=fetches, layout=room.layout, versions=self.versions, outdated=outdated, clock=clock,
        )  # fmt: skip
        self._retirement = retirement
        self._events = events
        self._clock = clock

    def __len__(self) -> int:
        return len(self._resolver)

    def __repr__(self) -> str:
        return f"<VersionResolver {len(self.versions.current)} shards known, {len(self._resolver)} in the air>"

    @property
    def running(self) -> int:
        """Openings and checks whose task has not ended; those with an answer may still be at work."""
        return self._resolver.running + self._checks.running

    async def entry(
        self,
        shard: Shard,
        job: str,
        want: RangeRequest | None = None,
        *,
        head: bool = False,
        need: float = 0.0,
        need_at: float | None = None,
        reader: Hashable = None,
    ) -> tuple[Entry, bool]:
        """The version of ``shard`` to read now, and whether its opening was begun by this call. Waits for the origin if it must be asked.

        Raises ``ShardError``; with the ``need`` of a prefetch also ``CacheFull``, before the origin is asked: there is no free room, and
        nothing may leave for a shard that ``reader`` needs at ``need_at`` (seconds of the plans' clock).
        """
        mac = self._recalled(shard, ahead=need >= DEMAND)
        compared: Entry | None = None  # by this very call: with a TTL of 0 it is never fresh
        elsewhere: set[Entry] = set()  # entries that the origin shows to other credentials only
        for _ in range(ATTEMPTS):
            entry = self.versions.meant(shard.name, mac, elsewhere)
            if entry is None:
                with suppress(CacheFull) if need < DEMAND else nullcontext():  # the end of an opening that was begun ahead of need
                    return await self._opened(shard, mac, job, want, head=head, mine=Urgency(need, need_at, reader))
                continue
            proven = entry.access.may_read(mac, self._clock())
            if proven and (entry is compared or self.freshness.is_fresh(entry, job)):
                self.versions.known_by(entry, shard)
                return entry, False
            if await (self._checks.is_same(entry, shard, job, need) if proven else self._checks.is_shown(entry, shard)):
                self.freshness.checked(entry, job)  # also where another job had asked
                compared = entry
            else:
                elsewhere.add(entry)
        raise ShardChanged(shard.name, f"the origin changed it {ATTEMPTS} times while it was being opened")

    def ready(self, shard: Shard, job: str) -> Entry | None:
        """The result of ``entry`` if it needs no origin's answer, else None. Raises ``ShardError``."""
        self._recalled(shard)
        entry = self.versions.readable(shard)
        if entry is None:
            return None
        # Whatever the origin has now, who means this very version is right with its bytes, as with those of an object that is pinned.
        is_meant = bool(shard.meant) and shard.meant == entry.shown_version.etag(entry.shown_key)
        return entry if is_meant or self.freshness.is_fresh(entry, job) else None

    def _recalled(self, shard: Shard, *, ahead: bool = False) -> str:
        """The MAC of the credential of ``shard``. Raises the error by which the origin refused it a moment ago."""
        mac = self.versions.mac(shard)
        if self.suspects.refused:
            self.suspects.recall(shard.name, ahead=ahead)
        if self._refusals.refusals:
            self._refusals.recall(shard.name, mac)
        return mac

    async def _opened(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, *, head: bool, mine: Urgency
    ) -> tuple[Entry, bool]:
        key = (shard.name, mac, head)
        begun = key not in self._resolver
        entry = await self._resolver.join(
            key, shard.origin, mine, lambda needed, known: self._open(shard, mac, job, want, head=head, needed=needed, known=known)
        )
        self.freshness.checked(entry, job)
        return entry, begun

    async def _open(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, *, head: bool, needed: Urgency, known: asyncio.Future[Entry]
    ) -> None:
        started = self._clock()
        opening = Opening(self._parts, shard, job, want, head=head, needed=needed, known=known)
        try:
            await opening.run()
        except ShardError as error:
            if not known.done():
                self._refusals.remember(shard.name, mac, error)
                self._events.emit(OpeningDone(shard.origin, self._clock() - started, type(error).__name__))
            raise
        finally:
            if opening.entry is not None:
                self._retirement.retire(opening.entry)
        self._events.emit(OpeningDone(shard.origin, opening.seconds))

    def expire(self) -> None:
        """Once a second: drop what is remembered of refusals and wrong bytes no longer."""
        self._refusals.expire()
        self.suspects.expire()

    def cancel(self) -> None:
        """Shutdown: every opening and check ends now; the task group waits for them."""
        self._resolver.cancel()
        self._checks.cancel()

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """A drain: every opening ends now but those of shards whose name is ``wanted``, whose first body may be on its way."""
        self._resolver.drop(lambda key: wanted(key[0]))
        self._checks.drop()
