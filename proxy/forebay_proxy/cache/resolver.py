"""Finds the version of a shard: a stored one that is still good, or the origin's, by one opening however many ask.

An *opening* is the first ranged GET itself: its headers tell version, length and whether the origin honours Range, its body is the first
segment. 206: the length is in Content-Range. 200: no Range support, this very body is the single stream. 416 with ``*/0``: an empty shard.
An origin that gives no identity cannot be asked in pieces (nothing would tell two versions apart): its body is one stream too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Hashable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from forebay_proxy.cache.fetcher import Fetcher
from forebay_proxy.cache.opening import Opening, OpeningFill
from forebay_proxy.cache.resident.entry import Entry, fresh_key
from forebay_proxy.cache.resident.retirement import Retirement
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.resident.suspects import SuspectVersions
from forebay_proxy.cache.revalidation import Revalidation
from forebay_proxy.core import events
from forebay_proxy.core.errors import (
    CacheFull,
    OriginUnavailable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    bare,
)
from forebay_proxy.core.events import Events
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard, Version, store_key
from forebay_proxy.origins.response import check_length
from forebay_proxy.policy.plans.bursts import Bursts
from forebay_proxy.transfer.buffer_budget import BufferBudget
from forebay_proxy.transfer.flights import Flights
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.single_flight import SingleFlight
from forebay_proxy.transfer.urgency import Urgency

__all__ = ["VersionResolver"]

log = logging.getLogger("forebay")

REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
REMEMBERED_MOST = 4096
LEARNED_MOST = 4096  # groups whose shards' size is remembered
# Who names no job cannot say that a new run began. A minute is what a person waits before asking why the new data is not read, and costs
# the origin one small request a shard and minute at most, of shards that are read. So long it is also left alone where it did not answer.
NO_JOB_S = 60.0
MOST_VARIANTS = 16  # of a shard, beside the latest: a user or two have theirs; what made-up credentials are shown leaves again
ATTEMPTS = 4  # a shard that changes again while it is being opened


class VersionResolver:
    """The versions in use by name, and the openings in the air."""

    fill: OpeningFill  # the cache; it is made after us and sets this

    def __init__(
        self,
        *,
        room: SpaceManager,
        retiring: Retirement,
        flights: Flights,
        fetcher: Fetcher,
        buffers: BufferBudget,
        events: Events,
        group: asyncio.TaskGroup,
        clock: Callable[[], float],
        hmac_key: bytes,
        revalidate: str | float,
    ) -> None:
        self.current: dict[str, Entry] = {}  # the latest that the origin has named
        self._variants: dict[str, list[Entry]] = {}  # what it shows to other credentials, where that is something else; none is stale
        self._calls: SingleFlight[Entry] = SingleFlight(group)
        self._checks: SingleFlight[bool] = SingleFlight(group)
        self._needs: dict[object, Urgency] = {}
        self.distrust = SuspectVersions(clock)
        self.bursts = Bursts(clock)
        self._silent: dict[str, float] = {}  # origins that could not be asked whether a shard changed, and until when they are not asked
        self._refusals: dict[tuple[str, str], tuple[ShardError, float]] = {}
        self.room = room
        self._retiring = retiring
        self.flights = flights
        self.fetcher = fetcher
        self._comparing = Revalidation(fetcher, self._is, clock)
        self.buffers = buffers
        self.events = events
        self.clock = clock
        self._hmac_key = hmac_key
        self._revalidate = revalidate
        self._serial = 0
        self._largest: OrderedDict[str, int] = OrderedDict()  # group -> bytes of its largest first segment, longest unopened first

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"<VersionResolver {len(self.current)} shards known, {len(self._calls)} in the air>"

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
        elsewhere: set[Entry] = set()  # what the origin shows to others, and not to this credential
        for _ in range(ATTEMPTS):
            entry = self._meant(shard.name, mac, elsewhere)
            if entry is None:
                with suppress(CacheFull) if need < DEMAND else nullcontext():  # the end of an opening that was begun ahead of need
                    return await self._opened(shard, mac, job, want, head=head, mine=Urgency(need, need_at, reader))
                continue
            if not entry.may_read(mac, self.clock()):
                if await self._proved(entry, shard, mac):
                    self._checked(entry, job)
                    compared = entry
                else:
                    elsewhere.add(entry)
                continue
            if entry is not compared and not self.fresh(entry, job):
                if await self._compared(entry, shard, mac, job, need):
                    self._checked(entry, job)  # also where another job had asked
                    compared = entry
                else:
                    elsewhere.add(entry)
                continue
            if entry.variant is None:  # an earlier process stored it: now it is known to whom it is shown
                entry.variant = shard.credential.variant(self._hmac_key)
            return entry, False
        raise ShardChanged(shard.name, f"the origin changed it {ATTEMPTS} times while it was being opened")

    def ready(self, shard: Shard, job: str) -> Entry | None:
        """What ``entry`` would return without asking the origin anything; None where it would ask. Raises ``ShardError``."""
        self._recalled(shard)
        entry = self.readable(shard)
        return entry if entry is not None and self.fresh(entry, job) else None

    def readable(self, shard: Shard) -> Entry | None:
        """The version in use that the origin has shown to the credential of ``shard``; None where it must be asked first."""
        mac = shard.credential.mac(self._hmac_key)
        entry = self._meant(shard.name, mac)
        return entry if entry is not None and entry.may_read(mac, self.clock()) else None

    def _meant(self, name: str, mac: str, elsewhere: Container[Entry] = ()) -> Entry | None:
        """What ``name`` means to this credential: what it may read, else the latest, which it has yet to be shown."""
        latest = self.current.get(name)
        if latest is None:
            return None
        now = self.clock()
        for entry in (latest, *self._variants.get(name, [])):
            if entry not in elsewhere and entry.may_read(mac, now):
                return entry
        return None if latest in elsewhere else latest

    async def _compared(self, entry: Entry, shard: Shard, mac: str, job: str, need: float) -> bool:
        """Whether the stored version is still the origin's. A reader that comes hurries a question that was asked ahead of need."""
        key = (shard.name, mac)
        needed = self._needed(self._checks, key, Urgency(need), shard.origin)

        def ask(done: asyncio.Future[bool]) -> Coroutine[Any, Any, None]:
            done.add_done_callback(lambda _: self._forget_need(key, needed))
            return self._check(entry, shard, mac, job, needed, done)

        return await self._checks.join(key, ask)

    async def _proved(self, entry: Entry, shard: Shard, mac: str) -> bool:
        """Whether the origin shows the stored version to this credential too."""
        return await self._checks.join((shard.name, mac, "proof", entry.key), lambda done: self._prove(entry, shard, mac, done))

    def _needed(self, calls: SingleFlight[Any], key: object, mine: Urgency, origin: str) -> Urgency:
        """The need of the call in the air, ``mine`` where there is none; as soon as ``mine`` says."""
        if key not in calls:
            self._needs[key] = mine
            return mine
        needed = self._needs[key]
        if mine.need < needed.need:
            needed.need = mine.need
            self.fetcher.hurried(origin)
        return needed

    async def _opened(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, *, head: bool, mine: Urgency
    ) -> tuple[Entry, bool]:
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
            if job:
                return job in entry.checked_jobs
            return entry.checked_at >= self.bursts.began(entry.group) and self.clock() - entry.checked_at < NO_JOB_S
        return self.clock() - entry.checked_at < float(self._revalidate)

    def _checked(self, entry: Entry, job: str) -> None:
        entry.checked(job, self.clock())

    def forget(self, entry: Entry) -> None:
        """``entry`` is not what its name means any more, to anybody."""
        if entry.stale:
            self.fetcher.flapping.gone(entry)
        others = self._variants.get(entry.name, [])
        if self.current.get(entry.name) is entry:
            if others:
                self.current[entry.name] = others.pop()
            else:
                del self.current[entry.name]
        elif entry in others:
            others.remove(entry)
        if not others:
            self._variants.pop(entry.name, None)

    def found(self, entry: Entry) -> None:
        """An earlier process stored it."""
        before = self.current.get(entry.name)
        if before is not None:
            self._variants.setdefault(entry.name, []).append(before)
        self.current[entry.name] = entry

    def _note(self, entry: Entry, variant: str, mac: str) -> None:
        """``entry`` is what the origin shows to ``mac``: what it showed to this variant before is outdated, and to others it is not."""
        name = entry.name
        others = [known for known in (*self._variants.get(name, []), self.current.get(name)) if known is not None and known is not entry]
        for other in others:
            self._not_shown(other, variant, mac)
            if other.stale and other.version.modified == entry.version.modified:  # two writes in one second: the date does not tell which
                entry.version = replace(entry.version, settled=False)
        others = [other for other in others if not other.stale]
        for other in others[:-MOST_VARIANTS]:
            self.fill.outdated(other)
        self.current[name] = entry
        if others:
            self._variants[name] = others[-MOST_VARIANTS:]
        else:
            self._variants.pop(name, None)

    def _not_shown(self, entry: Entry, variant: str, mac: str) -> None:
        """The origin shows something else to a request that is of ``variant``: to all of them; of the others nothing is known."""
        if entry.variant is None or entry.variant == variant:
            self.fill.outdated(entry)
        else:
            entry.refuse(mac)

    def _is(self, entry: Entry, shard: Shard, version: Version) -> bool:
        """Whether ``version``, which the origin names to ``shard``, is about the bytes of ``entry``.

        A strong ETag, a version id or a generation tells variants apart too (RFC 9110, section 8.8.3.2); a date and a length do not.
        """
        if not entry.same_version(version):
            return False
        return not version.is_weak or entry.chosen == shard.credential.chosen_by({*entry.vary, *version.vary}, self._hmac_key)

    # How much room

    def guess(self, shard: Shard) -> int:
        """How much room to reserve for a first segment whose length nobody knows: as the largest of its group had.

        A whole segment each would have thousands of tiny shards leave for one of them.
        """
        return self._largest.get(shard.group, SEGMENT_BYTES)

    def learn(self, shard: Shard, size: int) -> None:
        """The first segment of ``shard`` has ``size`` bytes."""
        self._largest[shard.group] = max(size, self._largest.get(shard.group, 0))
        self._largest.move_to_end(shard.group)
        if len(self._largest) > LEARNED_MOST:
            self._largest.popitem(last=False)

    # Refusals

    def _recalled(self, shard: Shard, *, ahead: bool = False) -> str:
        """The MAC of the credential of ``shard``. Raises what the origin said to it a moment ago."""
        mac = shard.credential.mac(self._hmac_key)
        self._recall(shard.name, mac, ahead=ahead)
        return mac

    def _recall(self, name: str, mac: str, *, ahead: bool) -> None:
        self.distrust.recall(name, ahead=ahead)
        self.expire()
        remembered = self._refusals.get((name, mac))
        if remembered is not None:
            raise bare(remembered[0])

    def expire(self) -> None:
        """Drop what is remembered no longer."""
        now = self.clock()
        while self._refusals and self._refusals[oldest := next(iter(self._refusals))][1] <= now:  # in the order of their ends
            del self._refusals[oldest]
        self.distrust.expire()

    def _remember(self, name: str, mac: str, error: ShardError) -> None:
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self._refusals.pop((name, mac), None)
            if len(self._refusals) >= REMEMBERED_MOST:
                self._refusals.clear()
            self._refusals[name, mac] = bare(error), self.clock() + REMEMBERED_S

    # Asking the origin about a stored version

    async def _check(self, entry: Entry, shard: Shard, mac: str, job: str, needed: Urgency, done: asyncio.Future[bool]) -> None:
        """Compare with the origin: the same -> good for this job; another -> outdated; unreachable -> served, and said."""
        if not job and self._silent.get(shard.origin, 0.0) > self.clock():
            self._served_unasked(entry, job, done)
            return
        try:
            now = await self._comparing.still(entry, shard, needed)
        except OriginUnavailable as error:
            log.warning("shard %s: served as stored, the origin cannot be asked whether it changed (%s)", shard.name, error.cause)
            self._silenced(shard.origin)
            self._served_unasked(entry, job, done)
            return
        except ShardError as error:
            self._remember(shard.name, mac, error)
            raise
        self.events.emit(events.Revalidated("same" if now is not None else "changed"))
        if now is not None:
            if entry.dated(now):
                self.room.claim(entry)
            self._checked(entry, job)
        else:
            self._not_shown(entry, shard.credential.variant(self._hmac_key), mac)
        done.set_result(now is not None)

    def _served_unasked(self, entry: Entry, job: str, done: asyncio.Future[bool]) -> None:
        self.events.emit(events.Revalidated("unreachable"))
        self._checked(entry, job)
        done.set_result(True)

    def _silenced(self, origin: str) -> None:
        """``origin`` cannot be asked now: where each shard is compared again and again, each would wait out its silence once more."""
        now = self.clock()
        self._silent = {known: until for known, until in self._silent.items() if until > now}
        self._silent[origin] = now + NO_JOB_S

    async def _prove(self, entry: Entry, shard: Shard, mac: str, done: asyncio.Future[bool]) -> None:
        """Let another credential in once the origin says yes to it, by a ranged GET with the version's pin."""
        try:
            shown = await self._comparing.shown(entry, shard, Urgency(0.0), self.fetcher.patience(shard.origin))
        except ShardError as error:
            self._remember(shard.name, mac, error)
            raise
        if shown is not None:
            entry.proved(mac, self.clock())
        done.set_result(shown is not None)

    # Asking the origin for a version

    async def _open(
        self, shard: Shard, mac: str, job: str, want: RangeRequest | None, head: bool, needed: Urgency, future: asyncio.Future[Entry]
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

    def _forget_need(self, key: object, needed: Urgency) -> None:
        if self._needs.get(key) is needed:  # or the next opening has its own there already
            del self._needs[key]

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """A drain: every opening ends now but those of shards whose name is ``wanted``, whose first body may be on its way."""
        self._calls.drop(lambda key: wanted(key[0]))
        self._checks.drop(lambda key: False)

    def admit(self, shard: Shard, mac: str, job: str, version: Version, *, ranged: bool) -> Entry:
        """The entry of a version the origin has just named; what the name meant before, to this variant of the request, is outdated.

        Raises ``OriginError`` for a length that no shard may have here, whoever said it: an answer, a hub, a file system.
        """
        check_length(shard.name, version.length)
        variant = shard.credential.variant(self._hmac_key)
        chosen = shard.credential.chosen_by(version.vary, self._hmac_key) if version.is_weak else ""
        key = store_key(shard.name, version.identity, chosen)
        entry = self.room.entries.get(key) if version.identity else None
        if entry is not None and not (entry.same_version(version) and _can_go_on(entry, ranged)):
            entry = None
        if entry is None:
            self._serial += 1
            taken = not version.identity or key in self.room.entries
            entry = Entry(fresh_key(shard, version, self._serial) if taken else key, shard, version, ranged=ranged, transient=taken)
            entry.access = {mac}
            entry.variant, entry.vary, entry.chosen = variant, version.vary, chosen
            entry.remade = self.distrust.count(shard.name)
            self.room.entries[entry.key] = entry
        else:
            entry.stale = False
            entry.admit(mac)
            if entry.variant is None:
                entry.variant = variant
            entry.dated(version)
            self.room.claim(entry)
        if "*" in version.vary:
            entry.stale = True  # it serves who asked for it, and leaves: the next one may be meant to get something else
            return entry
        self._note(entry, variant, mac)
        self.fetcher.flapping.opened(entry)
        self._checked(entry, job)  # now, not when the opener runs again: whoever looks in between must not ask the origin once more
        return entry


def _can_go_on(entry: Entry, ranged: bool) -> bool:
    """Whether what is here of a version can be completed; part of a body that cannot be asked in pieces is of no use for another."""
    return entry.fault is None and (entry.segments.complete or entry.stream_flying or (entry.ranged and ranged))
