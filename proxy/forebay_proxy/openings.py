"""Finds the version of a shard: a stored one that is still good, or the origin's, by one opening however many ask.

An *opening* is the first ranged GET itself: its headers tell version, length and whether the origin honours Range, its body is the first
segment. 206: the length is in Content-Range. 200: no Range support, this very body is the single stream. 416 with ``*/0``: an empty shard.
An origin that gives no identity cannot be asked in pieces (nothing would tell two versions apart): its body is one stream too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import nullcontext, suppress
from typing import Any

from forebay_proxy import events
from forebay_proxy.buffers import Buffers
from forebay_proxy.distrust import Distrust
from forebay_proxy.entry import Entry, fresh_key
from forebay_proxy.errors import CacheFull, OriginUnavailable, RangeNotSatisfiable, ShardChanged, ShardError, ShardForbidden, ShardNotFound
from forebay_proxy.events import Events
from forebay_proxy.fetch import Fetcher
from forebay_proxy.flights import Flights
from forebay_proxy.http_range import RangeRequest
from forebay_proxy.limiter import DEMAND
from forebay_proxy.needed import Needed
from forebay_proxy.opening import Opening, OpeningGround
from forebay_proxy.retiring import Retiring
from forebay_proxy.room import Room
from forebay_proxy.shard import ByteRange, Shard, Version, store_key
from forebay_proxy.single import SingleFlight

__all__ = ["Openings"]

log = logging.getLogger("forebay")

REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
REMEMBERED_MOST = 4096
ATTEMPTS = 4  # a shard that changes again while it is being opened


class Openings:
    """The versions in use by name, and the openings in the air."""

    ground: OpeningGround  # the cache; it is made after us and sets this

    def __init__(
        self,
        *,
        room: Room,
        retiring: Retiring,
        flights: Flights,
        fetcher: Fetcher,
        buffers: Buffers,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
        hmac_key: bytes,
        revalidate: str | float,
    ) -> None:
        self.current: dict[str, Entry] = {}
        self._calls: SingleFlight[Entry] = SingleFlight(group)
        self._checks: SingleFlight[bool] = SingleFlight(group)
        self._needs: dict[object, Needed] = {}
        self.distrust = Distrust(clock)
        self._refusals: dict[tuple[str, str], tuple[ShardError, float]] = {}
        self.room = room
        self._retiring = retiring
        self.flights = flights
        self.fetcher = fetcher
        self.buffers = buffers
        self.events = events
        self.clock = clock
        self._hmac_key = hmac_key
        self._revalidate = revalidate
        self._serial = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"<Openings {len(self.current)} shards known, {len(self._calls)} in the air>"

    # Which version

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
        """The version of ``shard`` to read now, and whether its opening was begun by this call.

        Raises ``ShardError``; with a ``need`` that is a prefetch's also ``CacheFull``, before the origin is asked: there is no room, nor
        anything that may leave for what ``reader`` needs at ``need_at``.
        """
        mac = self._recalled(shard, ahead=need >= DEMAND)
        compared: Entry | None = None  # by this very call: with a TTL of 0 it is never fresh
        for _ in range(ATTEMPTS):
            entry = self.current.get(shard.name)
            if entry is None:
                with suppress(CacheFull) if need < DEMAND else nullcontext():  # the end of an opening that was begun ahead of need
                    return await self._opened(shard, mac, job, want, head=head, mine=Needed(need, need_at, reader))
                continue
            if entry is not compared and not self.fresh(entry, job):
                if await self._compared(entry, shard, mac, job, need):
                    self._checked(entry, job)  # also where another job had asked
                    compared = entry
                continue
            if not entry.may_read(mac, self.clock()):
                await self._checks.join((shard.name, mac, "proof"), lambda done, entry=entry: self._prove(entry, shard, mac, done))  # type: ignore[misc]
                continue
            return entry, False
        raise ShardChanged(shard.name, f"the origin changed it {ATTEMPTS} times while it was being opened")

    def ready(self, shard: Shard, job: str) -> Entry | None:
        """What ``entry`` would return without asking the origin anything; None where it would ask. Raises ``ShardError``."""
        mac = self._recalled(shard)
        entry = self.current.get(shard.name)
        if entry is None or not self.fresh(entry, job) or not entry.may_read(mac, self.clock()):
            return None
        return entry

    async def _compared(self, entry: Entry, shard: Shard, mac: str, job: str, need: float) -> bool:
        """Whether the stored version is still the origin's. A reader that comes hurries a question that was asked ahead of need."""
        key = (shard.name, mac)
        needed = self._needed(self._checks, key, Needed(need), shard.origin)

        def ask(done: asyncio.Future[bool]) -> Coroutine[Any, Any, None]:
            done.add_done_callback(lambda _: self._forget_need(key, needed))
            return self._check(entry, shard, mac, job, needed, done)

        return await self._checks.join(key, ask)

    def _needed(self, calls: SingleFlight[Any], key: object, mine: Needed, origin: str) -> Needed:
        """The need of the call in the air, ``mine`` where there is none; as soon as ``mine`` says."""
        if key not in calls:
            self._needs[key] = mine
            return mine
        needed = self._needs[key]
        if mine.need < needed.need:
            needed.need = mine.need
            self.fetcher.hurried(origin)
        return needed

    async def _opened(self, shard: Shard, mac: str, job: str, want: RangeRequest | None, *, head: bool, mine: Needed) -> tuple[Entry, bool]:
        key = (shard.name, mac, head)
        begun = key not in self._calls
        needed = self._needed(self._calls, key, mine, shard.origin)
        needed.waiting += 1
        try:
            entry = await self._calls.join(key, lambda future: self._open(shard, mac, job, want, head, needed, future))
        finally:
            needed.waiting -= 1
        self._checked(entry, job)
        return entry, begun

    def fresh(self, entry: Entry, job: str) -> bool:
        """Whether ``job`` may read the stored version without asking the origin about it first."""
        if self._revalidate == "never" or entry.immutable:
            return True
        if self._revalidate == "job":
            return job in entry.checked_jobs
        return self.clock() - entry.checked_at < float(self._revalidate)

    def _checked(self, entry: Entry, job: str) -> None:
        entry.checked(job, self.clock())

    def forget(self, entry: Entry) -> None:
        """``entry`` is not what its name means any more."""
        if self.current.get(entry.name) is entry:
            del self.current[entry.name]

    # Refusals

    def _recalled(self, shard: Shard, *, ahead: bool = False) -> str:
        """The MAC of the credential of ``shard``. Raises what the origin said to it a moment ago."""
        mac = shard.credential.mac(self._hmac_key)
        self._recall(shard.name, mac, ahead=ahead)
        return mac

    def _recall(self, name: str, mac: str, *, ahead: bool) -> None:
        self.distrust.recall(name, ahead=ahead)
        remembered = self._refusals.get((name, mac))
        if remembered is not None:
            error, until = remembered
            if self.clock() < until:
                raise error
            del self._refusals[name, mac]

    def _remember(self, name: str, mac: str, error: ShardError) -> None:
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            if len(self._refusals) >= REMEMBERED_MOST:
                self._refusals.clear()
            self._refusals[name, mac] = error, self.clock() + REMEMBERED_S

    # Asking the origin about a stored version

    async def _check(self, entry: Entry, shard: Shard, mac: str, job: str, needed: Needed, done: asyncio.Future[bool]) -> None:
        """Compare with the origin: the same -> good for this job; another -> outdated; unreachable -> served, and said."""
        try:
            same = entry.same_version(await self.fetcher.version(shard, needed))
        except OriginUnavailable as error:
            log.warning("shard %s: served as stored, the origin cannot be asked whether it changed (%s)", shard.name, error.cause)
            self.events.emit(events.Revalidated("unreachable"))
            self._checked(entry, job)
            done.set_result(True)
            return
        except ShardError as error:
            self._remember(shard.name, mac, error)
            raise
        self.events.emit(events.Revalidated("same" if same else "changed"))
        if same:
            self._checked(entry, job)
        else:
            self.ground.outdated(entry)
        done.set_result(same)

    async def _prove(self, entry: Entry, shard: Shard, mac: str, done: asyncio.Future[bool]) -> None:
        """Let another credential in once the origin says yes to it, by a ranged GET with the version's pin."""
        try:
            same = await self._shown_to(entry, shard)
        except ShardError as error:
            self._remember(shard.name, mac, error)
            raise
        if not same:
            self.ground.outdated(entry)  # the next look finds what this credential is shown
            done.set_result(False)
            return
        entry.proved(mac, self.clock())
        done.set_result(True)

    async def _shown_to(self, entry: Entry, shard: Shard) -> bool:
        """Whether the origin shows this very version to the credential of ``shard``."""
        patience = self.fetcher.patience(shard.origin)
        while True:
            try:
                async with self.fetcher.ask(shard, ByteRange(0, 0), entry.version.pin, Needed(0.0), patience) as (body, _):
                    return entry.same_version(body.version)
            except RangeNotSatisfiable as error:
                if error.length != 0 or entry.version.length != 0:
                    raise
                return True
            except ShardChanged:
                return False
            except ShardError as error:
                await self.fetcher.again(shard, error, patience)

    # Asking the origin for a version

    async def _open(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, head: bool, needed: Needed, future: asyncio.Future[Entry]
    ) -> None:
        started = self.clock()
        future.add_done_callback(lambda _: self._forget_need((shard.name, mac, head), needed))
        opening = Opening(self, shard, mac, job, want, head=head, needed=needed, known=future)
        try:
            await opening.run()
        except ShardError as error:
            if not future.done():
                self._remember(shard.name, mac, error)
                self.events.emit(events.OpeningDone(shard.origin, self.clock() - started, type(error).__name__))
            raise
        finally:
            if opening.entry is not None:
                self._retiring.retire(opening.entry)
        self.events.emit(events.OpeningDone(shard.origin, opening.seconds))

    def cancel(self) -> None:
        """Shutdown: every opening and check ends now; the task group waits for them."""
        self._calls.cancel()
        self._checks.cancel()

    def _forget_need(self, key: object, needed: Needed) -> None:
        if self._needs.get(key) is needed:  # or the next opening has its own there already
            del self._needs[key]

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """A drain: every opening ends now but those of shards whose name is ``wanted``, whose first body may be on its way."""
        self._calls.drop(lambda key: wanted(key[0]))
        self._checks.drop(lambda key: False)

    def admit(self, shard: Shard, mac: str, job: str, version: Version, *, ranged: bool) -> Entry:
        """The entry of a version the origin has just named; what the name meant before is outdated."""
        key = store_key(shard.name, version.identity)
        entry = self.room.entries.get(key) if version.identity else None
        if entry is not None and not (entry.same_version(version) and _can_go_on(entry, ranged)):
            entry = None
        if entry is None:
            self._serial += 1
            taken = not version.identity or key in self.room.entries
            entry = Entry(fresh_key(shard, version, self._serial) if taken else key, shard, version, ranged=ranged, transient=taken)
            entry.access = {mac} if mac else set()
            entry.remade = self.distrust.count(shard.name)
            self.room.entries[entry.key] = entry
        else:
            entry.stale = False
            entry.admit(mac)
            self.room.claim(entry)
        before = self.current.get(shard.name)
        if before is not None and before is not entry:
            self.ground.outdated(before)
        self.current[shard.name] = entry
        self._checked(entry, job)  # now, not when the opener runs again: whoever looks in between must not ask the origin once more
        return entry


def _can_go_on(entry: Entry, ranged: bool) -> bool:
    """Whether what is here of a version can be completed; part of a body that cannot be asked in pieces is of no use for another."""
    return entry.fault is None and (entry.segments.complete or entry.stream_flying or (entry.ranged and ranged))
