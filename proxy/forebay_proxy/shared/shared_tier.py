"""The shared tier in front of the far origins: what one sidecar of a cluster has fetched, the others read from a store nearby.

A version that is complete and verified here is written once (``background/shared_writer.py``): its bytes, then its manifest. Who opens a
shard asks its origin for the version only (a HEAD), then the tier for the manifest. Found: segments are read from the tier, each whole and
compared with its checksum before a byte of it is given out. Not found: whoever makes the *lease object* (``If-None-Match: *``, RFC 9110,
section 13.1.2) fetches the shard from afar; the others wait until the manifest is there, the lease is old, or the wait is too long.

Everything fails open, to a request of the far origin: a lease that two believe to hold costs bytes twice, and no wrong one, since names
hold the origin's version. Trouble with the tier is counted, said once, and the tier is left alone for a while. No reader sees it.

What came with a request's own credential stays in this sidecar: whoever may read the bucket could read it else.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from weakref import WeakValueDictionary

import xxhash

from forebay_proxy.core.errors import OriginTimeout, OriginUnavailable, ShardChanged, ShardError, ShardForbidden, ShardNotFound
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import SharedAnswered, SharedBytes, SharedFailed
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import ByteRange, Pin, Shard, SparseRange, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.shared.manifest import Manifest, NotOurs, object_name
from forebay_proxy.shared.shared_store import MOST_BYTES, SharedStore, StoreRefused
from forebay_proxy.transfer.limiter import AHEAD, Limiter, Slot, SlotNeed

__all__ = ["BYTES", "LEASE", "MANIFEST", "SharedTier"]

log = logging.getLogger("forebay")

MANIFEST, LEASE, BYTES = ".json", ".lease", ".bytes"
# Segments in memory until they are verified: 64 MiB with the usual segments, as many as a bypass may have.
MOST_SEGMENTS = 8
# Near, or of no use: a far origin answers within a second, too. A segment then takes 2.6 MB/s at least.
ANSWER_S = 1.0
FIRST_S = 10.0  # the first answer of all: the SDK is loaded for it, and looks for credentials
SEGMENT_S = 3.0
LEASE_S = 15.0  # an older one is nobody's: its sidecar died
RENEW_S = 4.0
ACTIVE_S = 60.0  # who has asked for nothing of a shard for so long does not fetch it any more
WAIT_S = 60.0  # for another sidecar, ahead of need: a shard of 3 GB at 50 MB/s
DEMAND_WAIT_S = 10.0  # where a reader waits, too
POLL_S, MOST_POLL_S = 0.1, 1.0
LOOK_S = 2.0  # how often a waiting one looks whether the lease is old
AWAY_S, MOST_AWAY_S = 5.0, 60.0  # the tier is left alone after trouble; twice as long each time that it fails again
MOST_KNOWN = 16384  # shards; 1 kB each and 8 bytes a segment
_SCHEMES = frozenset({"http", "https", "s3", "gs", "hf"})


@dataclass(slots=True)
class _Known:
    """What is known of one version. ``manifest``: the tier has it. ``mine``: this sidecar fetches it for all. ``spoilt``: what the
    tier has of it is wrong, and is to be written again. ``until`` then it holds."""

    name: str
    version: Version
    manifest: Manifest | None = None
    mine: bool = False
    spoilt: bool = False
    until: float = float("inf")
    asked_at: float = 0.0


@dataclass(slots=True)
class _Trouble:
    """One direction, reading or writing: how long it is left alone, and what was said of it."""

    until: float = 0.0
    pause_s: float = AWAY_S
    cause: str = ""

    def failed(self, now: float, cause: str) -> None:
        self.until, self.cause = now + self.pause_s, cause
        self.pause_s = min(MOST_AWAY_S, 2 * self.pause_s)

    def went_well(self) -> None:
        self.until, self.pause_s, self.cause = 0.0, AWAY_S, ""


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    waited: int = 0
    fetched: int = 0
    given_up: int = 0
    failures: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    written: int = 0


class SharedTier:
    """``asked`` is the door for bytes, ``to_write`` and ``wrote`` are the writer's."""

    def __init__(
        self,
        store: SharedStore,
        layout: SegmentLayout,
        head: Callable[[Shard, SlotNeed], Awaitable[Version]],
        events: Events,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        """``head``: the version that the far origin has now."""
        self.store = store
        self.counts = _Counts()
        self._layout = layout
        self._head = head
        self._events = events
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._limiter = Limiter(MOST_SEGMENTS, clock)
        self._known: OrderedDict[str, _Known] = OrderedDict()  # by shard name
        self._finding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading, self._writing = _Trouble(), _Trouble()
        self._answer_s = FIRST_S

    def __repr__(self) -> str:
        return f"<SharedTier {self.store.place}, {len(self._known)} versions known>"

    # Reading

    @asynccontextmanager
    async def asked(self, shard: Shard, want: ByteRange | None, pin: Pin, need: SlotNeed) -> AsyncIterator[tuple[OriginBody, Slot] | None]:
        """As ``Fetcher.ask``; None where the far origin is to be asked. Of the tier's troubles it raises none."""
        known = await self._found(shard, pin, need) if self._may_ask(shard, want) else None
        if known is None or known.manifest is None or want is None:
            yield None
            return
        async with self._limiter.slot(need) as slot:
            body = await self._body(shard, known, known.manifest, want)
            if body is None:
                slot.leave()
            yield None if body is None else (body, slot)

    def _may_ask(self, shard: Shard, want: ByteRange | None) -> bool:
        """Whole segments only: no smaller part has a checksum."""
        if want is None or isinstance(want, SparseRange) or want.last is None or want.first % self._layout.segment_bytes:
            return False
        if shard.credential or shard.url.scheme not in _SCHEMES or self.store.place.holds(shard):
            return False
        return self._clock() >= self._reading.until

    async def _found(self, shard: Shard, pin: Pin, need: SlotNeed) -> _Known | None:
        """What is known of the version that is fetched, learned first where it must be; one asks, the others of this sidecar wait."""
        lock = self._finding.setdefault(shard.name, asyncio.Lock())
        async with lock:
            known = self._recalled(shard, pin)
            if known is None:
                with suppress(ShardError):  # the far origin itself will say what is wrong
                    known = await self._learn(shard, need)
                if known is not None:
                    self._remember(shard, known)
        if known is None or (pin and known.version.pin != pin):
            return None
        known.asked_at = self._clock()
        return known

    def _recalled(self, shard: Shard, pin: Pin) -> _Known | None:
        """An opening, which has no pin, learns it anew."""
        known = self._known.get(shard.name) if pin else None
        return None if known is None or self._clock() > known.until else known

    def _remember(self, shard: Shard, known: _Known) -> None:
        self._known[shard.name] = known
        self._known.move_to_end(shard.name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    async def _learn(self, shard: Shard, need: SlotNeed) -> _Known | None:
        """Ask the origin for the version, the tier for its manifest, and take or await the lease. Raises ``ShardError`` of the origin."""
        version = await self._head(shard, need)
        if not version.identity or not version.length or version.length > MOST_BYTES:
            return None
        known = _Known(object_name(shard.name, version, self._layout.segment_bytes), version)
        before = self._known.get(shard.name)
        if before is not None and before.name == known.name and (before.mine or before.spoilt):
            return before
        try:
            known.manifest = await self._manifest(shard, known)
            if known.manifest is not None:
                self._told("hit")
            elif await self._waited_for(shard, known, need):
                self._told("waited")
            elif known.mine:
                self._told("fetched")
            else:
                known.until = self._clock() + LEASE_S
                self._told("given-up")
        except StoreRefused as error:
            self._write_failed(error.reason, str(error))
        except (ShardError, TimeoutError) as error:
            self._read_failed(error)
        return known

    async def _manifest(self, shard: Shard, known: _Known) -> Manifest | None:
        """None where there is none. Raises ``ShardError``, ``TimeoutError``."""
        within_s, self._answer_s = self._answer_s, ANSWER_S
        async with asyncio.timeout(within_s):
            data = await self.store.get(known.name + MANIFEST)
        self._reading.went_well()
        if data is None:
            return None
        try:
            return Manifest.decoded(data, shard.name, known.version, self._layout.segment_bytes)
        except NotOurs as error:
            self._failed("foreign", f"{known.name}{MANIFEST}: {error}")
            return None

    async def _waited_for(self, shard: Shard, known: _Known, need: SlotNeed) -> bool:
        """Whether another sidecar has brought it; else ``mine``, where this one is to fetch it. Raises ``StoreRefused``, ``ShardError``."""
        came, looked, pause_s = self._clock(), self._clock(), POLL_S
        if self._clock() < self._writing.until:
            return False  # whoever may not write waits for nobody either: how long would not be known
        while not await self._leased(known):
            while True:
                now = self._clock()
                if now - came > (DEMAND_WAIT_S if need.need < AHEAD else WAIT_S):
                    return False
                if now - looked > LOOK_S:
                    looked = now
                    age_s = await self.store.age_s(known.name + LEASE)
                    if age_s is None or age_s > LEASE_S:
                        break
                await self._sleep(pause_s * self._chance.uniform(0.5, 1.0))
                pause_s = min(MOST_POLL_S, 1.5 * pause_s)
                known.manifest = await self._manifest(shard, known)
                if known.manifest is not None:
                    return True
            if age_s is not None:
                await self.store.delete(known.name + LEASE)
        # Its last holder may have written the manifest just before it gave the lease back.
        known.manifest = await self._manifest(shard, known)
        if known.manifest is not None:
            await self._give_back(known)
        return known.manifest is not None

    async def _leased(self, known: _Known) -> bool:
        known.mine = await self.store.put(known.name + LEASE, _lease_text(), only_new=True)
        self._writing.went_well()
        return known.mine

    async def _body(self, shard: Shard, known: _Known, manifest: Manifest, want: ByteRange) -> OriginBody | None:
        """A segment, verified; None where that was not to be had."""
        index = self._layout.index_of(want.first)
        if index >= len(manifest.sums):
            return None
        first, size = self._layout.span(index, manifest.length)
        if want.last is None or want.last < first + size - 1:
            return None
        pieces: list[bytes | memoryview] = []
        hasher = xxhash.xxh3_64()
        try:
            async with asyncio.timeout(SEGMENT_S):
                async with AsyncExitStack() as held:
                    async with asyncio.timeout(ANSWER_S):
                        reading = self.store.read(known.name + BYTES, ByteRange(first, first + size - 1), manifest.etag)
                        body = await held.enter_async_context(reading)
                    async for piece in body.chunks:
                        pieces.append(piece)
                        hasher.update(piece)
        except (ShardNotFound, ShardChanged):  # a lifecycle rule took it, or it was written again: that is no trouble
            self._known.pop(shard.name, None)
            return None
        except (ShardError, TimeoutError) as error:
            self._read_failed(error)
            return None
        if sum(map(len, pieces)) != size or (hasher.intdigest() or 1) != manifest.sums[index]:
            known.manifest, known.spoilt = None, True
            self._failed("wrong", f"segment {index} of {known.name}{BYTES} is not what its manifest says")
            return None
        self.counts.read_bytes += size
        self._events.emit(SharedBytes(size, "read"))
        return OriginBody(known.version, first, size, ranged=True, framed=True, chunks=_each(pieces), shared=True)

    # Writing

    def to_write(self, name: str, version: Version) -> bool:
        """Whether this version of the shard is to be written: it was fetched from afar, and the tier does not have it."""
        known = self._known.get(name)
        if known is None or known.manifest is not None or known.version.identity != version.identity:
            return False
        return self._clock() >= self._writing.until

    async def wrote(self, name: str, descriptor: int, sums: tuple[int, ...]) -> None:
        """Write the shard's bytes, then its manifest; the lease is over. Trouble is counted, and said once."""
        known = self._known.get(name)
        if known is None or known.manifest is not None:
            return
        version, segment_bytes = known.version, self._layout.segment_bytes
        length = version.length or 0
        known.asked_at = self._clock()
        try:
            if not known.spoilt:
                known.manifest = await self._manifest_again(name, known)  # another sidecar was as far
            if known.manifest is None:
                etag = await self.store.put_shard(known.name + BYTES, descriptor, length, segment_bytes, sums)
                manifest = Manifest(name, version.identity, length, segment_bytes, sums, etag)
                await self.store.put(known.name + MANIFEST, manifest.encoded())
                known.manifest, known.spoilt = manifest, False
                self.counts.written += 1
                self.counts.written_bytes += length
                self._events.emit(SharedBytes(length, "written"))
            self._writing.went_well()
        except StoreRefused as error:
            self._write_failed(error.reason, str(error))
        finally:
            with suppress(StoreRefused):
                await self._give_back(known)

    async def _manifest_again(self, name: str, known: _Known) -> Manifest | None:
        try:
            data = await self.store.get(known.name + MANIFEST)
            return None if data is None else Manifest.decoded(data, name, known.version, self._layout.segment_bytes)
        except (ShardError, NotOurs):
            return None

    async def run(self) -> None:
        """Keep the leases of shards that are being fetched, for ever; give back those of shards that are not."""
        while True:
            await asyncio.sleep(RENEW_S)
            for known in [known for known in self._known.values() if known.mine]:
                try:
                    if self._clock() - known.asked_at < ACTIVE_S:
                        await self.store.put(known.name + LEASE, _lease_text())
                    else:
                        await self._give_back(known)
                except StoreRefused as error:
                    known.mine = False
                    self._write_failed(error.reason, str(error))

    async def aclose(self) -> None:
        """Others need not wait for what this sidecar fetched no further."""
        with suppress(StoreRefused, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for known in [known for known in self._known.values() if known.mine]:
                    await self._give_back(known)
        self.store.close()

    async def _give_back(self, known: _Known) -> None:
        if known.mine:
            known.mine = False
            await self.store.delete(known.name + LEASE)

    # Trouble

    def _read_failed(self, error: ShardError | TimeoutError) -> None:
        reason = "unavailable" if isinstance(error, OriginUnavailable) else "other"
        reason = "timeout" if isinstance(error, (TimeoutError, OriginTimeout)) else reason
        reason = "refused" if isinstance(error, ShardForbidden) else reason
        cause = error.cause if isinstance(error, ShardError) else f"no answer within {ANSWER_S:g} s"
        self._failed(reason, cause, self._reading)

    def _write_failed(self, reason: str, cause: str) -> None:
        self._failed(reason, cause, self._writing)

    def _failed(self, reason: str, cause: str, trouble: _Trouble | None = None) -> None:
        self.counts.failures += 1
        self._events.emit(SharedFailed(reason))
        if trouble is None:
            log.warning("shared tier %s: %s; the origin is asked instead", self.store.place, cause)
            return
        if not trouble.cause:
            way = "nothing is read from it" if trouble is self._reading else "nothing is written to it"
            step = {
                "refused": "check the bucket, its policy and the credentials of --shared",
                "full": "give the bucket room, or a lifecycle rule that deletes what is old",
            }.get(reason, "see whether the store is up")
            log.warning("shared tier %s: %s; %s for a while, and origins are asked instead. %s", self.store.place, cause, way, step)
        trouble.failed(self._clock(), cause)

    def _told(self, result: str) -> None:
        name = {"hit": "hits", "given-up": "given_up"}.get(result, result)
        setattr(self.counts, name, getattr(self.counts, name) + 1)
        self._events.emit(SharedAnswered(result))

    def status(self) -> dict[str, object]:
        """``shared`` of ``/v1/status``."""
        now, counts = self._clock(), self.counts
        troubles = [trouble.cause for trouble in (self._reading, self._writing) if trouble.until > now]
        return {
            "place": str(self.store.place), "hits": counts.hits, "waited": counts.waited, "fetched": counts.fetched,
            "given_up": counts.given_up, "failures": counts.failures, "read_bytes": counts.read_bytes,
            "written_bytes": counts.written_bytes, "written": counts.written, "troubles": troubles,
        }  # fmt: skip


async def _each(pieces: list[bytes | memoryview]) -> AsyncIterator[bytes | memoryview]:
    while pieces:
        yield pieces.pop(0)


def _lease_text() -> bytes:
    """For people who look into the bucket."""
    return json.dumps({"held_by": socket.gethostname()}).encode()
