"""The shared tier in front of the far origins: what one sidecar of a cluster has fetched, the others read from a store nearby.

A version that is complete and verified here is written once (``background/shared_writer.py``): its bytes, then its manifest. Who opens a
shard asks its origin for the version only (a HEAD), then the tier for the manifest. Found: segments are read from the tier, each whole and
compared with its checksum before a byte of it is given out. Not found: whoever makes the *lease object* (``If-None-Match: *``, RFC 9110,
section 13.1.2) fetches the shard from afar; the others wait until the manifest is there, the lease is old, or the wait is too long. Who
does not read to the shard's end takes no lease and awaits none: nothing would come of it.

Everything fails open, to a request of the far origin: a lease that two believe to hold costs bytes twice, and no wrong one, since names
hold the origin's version. Trouble with the tier is counted, said once, and the tier is left alone for a while. No reader sees it.

What came with a request's own credential stays in this sidecar: whoever may read the bucket could read it else. So does a version that
its origin names by a date or a weak ETag (two states may have the same), or that it encodes. An origin whose HEAD is not answered, or
names another version than its GET, is read without the tier.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
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

__all__ = ["BYTES", "LEASE", "MANIFEST", "SharedNeed", "SharedTier"]

log = logging.getLogger("forebay")
T = TypeVar("T")

WARM = "forebay-1/start"  # there is none
MANIFEST, LEASE, SECOND_LEASE, BYTES = ".json", ".lease", ".lease2", ".bytes"
# Segments in memory until they are verified: 64 MiB with the usual segments, as many as a bypass may have.
MOST_SEGMENTS = 8
# Near, or of no use: a far origin answers within a second, too. That long an answer, and each next piece of a body, may take. A segment
# then takes 2.6 MB/s at least.
ANSWER_S = 1.0
FIRST_S = 5.0  # the first answer of all: the SDK is loaded for it, and looks for credentials
SEGMENT_S = 3.0
HEAD_S = 5.0  # of the far origin, once it is its turn
UNLIKE_S = 60.0  # an origin whose HEAD says other things than its GET is not asked by HEAD for so long
LEASE_S = 7.0  # an older one is nobody's: its sidecar died. Those that wait see that before a reader has waited too long
RENEW_S = 2.0
# Who asks for nothing of a shard for so long does not fetch it any more. Where the origin is ten times too slow, the next shards of a node
# wait longer than 3 s for their turn: given back then, their leases let nine nodes fetch one shard (benchmarks/cluster_simulation.py).
ACTIVE_S = 10.0
QUEUE_S = 60.0  # a complete shard may wait for its turn to be written
WAIT_S = 60.0  # for another sidecar, ahead of need: a shard of 3 GB at 50 MB/s
# Where a reader waits: so long for the holder of the lease, then for one more sidecar that fetches the shard too. If all asked the origin
# then, copies of the same bytes would fill its line, the next shards would be late for that reason, and it would not end.
DEMAND_WAIT_S, MOST_DEMAND_WAIT_S = 10.0, 30.0
POLL_S, MOST_POLL_S = 0.1, 1.0
LOOK_S = 1.0  # how often a waiting one looks whether the lease is old
AWAY_S, MOST_AWAY_S = 5.0, 60.0  # the tier is left alone after trouble; twice as long each time that it fails again
MOST_KNOWN = 16384  # shards; 1 kB each and 8 bytes a segment
MOST_UNLIKE = 1024  # origins


class SharedNeed(SlotNeed, Protocol):
    """``in_part``: whoever needs it does not read to the shard's end, so this sidecar may never have all of it."""

    @property
    def in_part(self) -> bool: ...


@dataclass(slots=True)
class _Known:
    """What is known of one version. ``name``: of its objects; "": it is none for the tier. ``manifest``: the tier has it. ``mine``: this
    sidecar fetches it for all, and keeps ``lease``. ``spoilt``: what the tier has of it is wrong, and is to be written again. ``until``:
    then the tier is asked for it once more. ``asked_at``: for its bytes, the last time. ``asking``: so many of its segments come from afar
    now. ``busy``: the origin could not tell the version now. ``in_part``: the tier does not have it, and nobody took or awaited the lease.
    """

    name: str
    version: Version
    learned_at: float
    busy: bool = False
    in_part: bool = False
    manifest: Manifest | None = None
    mine: bool = False
    lease: str = LEASE
    spoilt: bool = False
    until: float = float("inf")
    asked_at: float = 0.0
    asking: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Finding:
    """What asks for one shard now, of which one at a time learns its version: as urgent as the most urgent. A ``SharedNeed``."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    needs: list[SharedNeed] = field(default_factory=list)

    @property
    def need(self) -> float:
        return min(each.need for each in self.needs)

    @property
    def in_part(self) -> bool:
        return all(each.in_part for each in self.needs)


@dataclass(slots=True)
class _Trouble:
    """One direction, reading or writing: how long it is left alone, and what was said of it."""

    until: float = 0.0
    pause_s: float = AWAY_S
    cause: str = ""

    def failed(self, now: float, cause: str) -> None:
        self.cause = cause
        if now >= self.until:  # else it was asked before the last trouble, which is the same
            self.until = now + self.pause_s
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
        head: Callable[[Shard, SlotNeed, float], Awaitable[Version]],
        events: Events,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        """``head``: the version that the far origin has now, told within so many seconds once it is its turn (else TimeoutError)."""
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
        self._mine: dict[str, _Known] = {}  # whose lease this sidecar holds, by their objects' name
        self._finding: WeakValueDictionary[str, _Finding] = WeakValueDictionary()
        self._unlike: dict[str, float] = {}  # origins, until when they are not asked by HEAD
        self._reading, self._writing = _Trouble(), _Trouble()
        self._late_at = 0.0  # since when answers are late and none has come; 0: they come
        self._answer_s = self._taken_s = FIRST_S
        self._came_at = float("-inf")  # a piece of a body, by the loop's clock
        self._said: set[str] = set()  # reasons

    def __repr__(self) -> str:
        return f"<SharedTier {self.store.place}, {len(self._known)} versions known>"

    # Reading

    @asynccontextmanager
    async def asked(
        self, shard: Shard, want: ByteRange | None, pin: Pin, need: SharedNeed
    ) -> AsyncIterator[tuple[OriginBody, Slot] | None]:
        """As ``Fetcher.ask``; None where the far origin is to be asked, inside. Of the tier's troubles it raises none."""
        known = await self._found(shard, pin, need) if self._may_ask(shard, want) else None
        if known is None or want is None:
            yield None
            return
        if known.manifest is not None:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(SEGMENT_S if need.need < AHEAD else None):
                        slot = await held.enter_async_context(self._limiter.slot(need))
                except TimeoutError:
                    body = None
                else:
                    body = await self._body(shard, known, known.manifest, want, slot)
                if body is not None:
                    yield body, slot
                    return
        known.asking += 1
        try:
            yield None
        finally:
            known.asking -= 1
            if known.asked_at > float("-inf"):  # nobody has let it go
                known.asked_at = max(known.asked_at, self._clock())

    def answered(self, shard: Shard, pin: Pin, version: Version) -> None:
        """The far origin's answer to an opening: what its HEAD said before is to be the same."""
        known = self._known.get(shard.name)
        if pin or shard.credential or known is None or known.busy:
            return
        if version.identity and not version.is_weak and known.version.identity == version.identity:
            return
        self.let_go(shard.name)
        if len(self._unlike) >= MOST_UNLIKE:
            self._unlike.clear()
        self._unlike[shard.origin] = self._clock() + UNLIKE_S

    def let_go(self, name: str) -> None:
        """This sidecar does not bring the shard to the tier: others need not wait for it."""
        if (known := self._known.get(name)) is not None:
            known.asked_at = float("-inf")

    def hurried(self) -> None:
        """A fetch that may wait for its turn here is needed sooner."""
        self._limiter.wake()

    def _may_ask(self, shard: Shard, want: ByteRange | None) -> bool:
        """Whole segments only: no smaller part has a checksum. One byte is asked for by who wants to know the version."""
        if want is None or isinstance(want, SparseRange) or want.last in (None, want.first) or want.first % self._layout.segment_bytes:
            return False
        if shard.credential or shard.url.scheme == "file" or self.store.place.holds(shard):
            return False
        return self._clock() >= max(self._reading.until, self._unlike.get(shard.origin, 0.0))

    async def _found(self, shard: Shard, pin: Pin, need: SharedNeed) -> _Known | None:
        """What is known of the version that is fetched, learned first where it must be; one asks, the others of this sidecar wait."""
        finding = self._finding.get(shard.name)
        if finding is None:
            finding = self._finding[shard.name] = _Finding()
        finding.needs.append(need)
        try:
            async with finding.lock:
                known = self._known.get(shard.name)
                # An opening, which has no pin, learns it anew. So does who fetches another version than the one that was known long ago,
                # and who reads to the end what others read a part of.
                old = known is not None and known.version.pin != pin and self._clock() > known.learned_at + UNLIKE_S
                if known is None or not pin or old or (known.in_part and not need.in_part):
                    known = await self._learn(shard, finding)
                elif self._clock() > known.until:
                    await self._look_again(shard, known)
        finally:
            finding.needs.remove(need)
        if not known.name or (pin and known.version.pin != pin):
            return None
        known.asked_at = max(known.asked_at, self._clock())
        return known

    def _remember(self, shard: Shard, known: _Known) -> None:
        self._known[shard.name] = known
        self._known.move_to_end(shard.name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    async def _learn(self, shard: Shard, need: SharedNeed) -> _Known:
        """Ask the origin for the version, the tier for its manifest, and take or await the lease."""
        version, busy = Version("", Pin(), None), False
        try:
            version = await self._head(shard, need, HEAD_S)
        except ShardError as error:  # the far origin's GET will say what is wrong
            busy = isinstance(error, OriginUnavailable) and not isinstance(error, OriginTimeout)
        except TimeoutError:
            pass
        name = object_name(shard.name, version, self._layout.segment_bytes) if _fits(version) else ""
        before = self._known.get(shard.name)
        if before is not None and name and before.name == name and (before.mine or before.spoilt):
            return before
        known = _Known(name, version, self._clock(), busy)
        self._remember(shard, known)
        if not name:
            return known
        try:
            known.manifest = await self._manifest(shard, known)
            if known.manifest is not None:
                self._told("hit")
            elif need.in_part:
                known.in_part = True
            elif await self._waited_for(shard, known, need):
                self._told("waited")
            elif known.mine:
                self._told("fetched")
            else:
                self._told("given-up")
        except StoreRefused as error:
            self._write_failed(error.reason, str(error))
        except (ShardError, TimeoutError) as error:
            self._read_failed(error)
        if not known.mine:
            known.until = self._clock() + LEASE_S
        return known

    async def _look_again(self, shard: Shard, known: _Known) -> None:
        """For a version that is fetched without a lease, as others were too slow or the tier in trouble: perhaps it has it by now."""
        known.until = self._clock() + LEASE_S
        try:
            known.manifest = known.manifest or await self._manifest(shard, known)
        except (ShardError, TimeoutError) as error:
            self._read_failed(error)

    async def _manifest(self, shard: Shard, known: _Known) -> Manifest | None:
        """None where there is none. Raises ``ShardError``, ``TimeoutError``."""
        try:
            async with asyncio.timeout(self._answer_s):
                data = await self.store.get(known.name + MANIFEST)
        finally:
            self._answer_s = ANSWER_S
        if data is None:
            self._read_well()
            return None
        try:
            return Manifest.decoded(data, shard.name, known.version, self._layout.segment_bytes)
        except NotOurs as error:
            self._failed("foreign", f"{known.name}{MANIFEST}: {error}")
            return None

    async def _waited_for(self, shard: Shard, known: _Known, need: SlotNeed) -> bool:
        """Whether another sidecar has brought it; else ``mine``, where this one is to fetch it. Raises ``StoreRefused``, ``ShardError``."""
        came = looked = self._clock()
        pause_s, old = POLL_S, ""
        if came < self._writing.until:
            return False  # whoever may not write waits for nobody either: how long would not be known
        while not await self._leased(known, old):
            while True:
                now = self._clock()
                if now - came > (MOST_DEMAND_WAIT_S if need.need < AHEAD else WAIT_S):
                    return False
                if need.need < AHEAD and known.lease == LEASE and now - came > DEMAND_WAIT_S:
                    known.lease, old = SECOND_LEASE, ""
                    break
                if now - looked > LOOK_S:
                    looked = now
                    lease = await self._soon(self.store.age(known.name + known.lease))
                    if lease is None or lease[0] > LEASE_S:
                        old = "" if lease is None else lease[1]
                        break
                await self._sleep(pause_s * self._chance.uniform(0.5, 1.0))
                pause_s = min(MOST_POLL_S, 1.5 * pause_s)
                known.manifest = await self._manifest(shard, known)
                if known.manifest is not None:
                    return True
        # Its last holder may have written the manifest just before it gave the lease back.
        known.manifest = await self._manifest(shard, known)
        if known.manifest is not None:
            await self._soon(self._give_back(known))
        return known.manifest is not None

    async def _leased(self, known: _Known, old: str) -> bool:
        """Take the lease, or that of a sidecar that died: the one with this ETag, of which only one can take it."""
        known.mine = await self._soon(self.store.take(known.name + known.lease, _lease_text(), old))
        if known.mine:
            known.asked_at = self._clock()
            self._mine[known.name] = known
        return known.mine

    async def _soon(self, call: Awaitable[T]) -> T:
        """What a reader may wait for, of what goes through the SDK. Raises ``StoreRefused``."""
        try:
            async with asyncio.timeout(self._taken_s):
                return await call
        except TimeoutError as error:
            raise StoreRefused("timeout", f"no answer within {self._taken_s:g} s") from error
        finally:
            self._taken_s = ANSWER_S

    async def _body(self, shard: Shard, known: _Known, manifest: Manifest, want: ByteRange, slot: Slot) -> OriginBody | None:
        """A segment, verified; None where that was not to be had."""
        index = self._layout.index_of(want.first)
        if index >= len(manifest.sums):
            return None
        first, size = self._layout.span(index, manifest.length)
        if want.last is None or min(want.last, manifest.length - 1) != first + size - 1:
            return None
        part, pieces = ByteRange(first, first + size - 1), list[bytes | memoryview]()
        hasher = xxhash.xxh3_64()
        try:
            async with asyncio.timeout(SEGMENT_S):
                async with asyncio.timeout(ANSWER_S) as still, self.store.read(known.name + BYTES, part, manifest.etag) as body:
                    async for piece in body.chunks:
                        pieces.append(piece)
                        hasher.update(piece)
                        self._came_at = asyncio.get_running_loop().time()
                        still.reschedule(self._came_at + ANSWER_S)
        except (ShardNotFound, ShardChanged):  # a lifecycle rule took it, or somebody wrote something else there
            known.manifest = await self._other_manifest(shard.name, known, manifest)
            known.spoilt = known.manifest is None
            return None
        except (ShardError, TimeoutError) as error:
            slot.pushed_back()
            self._read_failed(error)
            return None
        slot.went_well()
        if sum(map(len, pieces)) != size or (hasher.intdigest() or 1) != manifest.sums[index]:
            known.manifest, known.spoilt = None, True
            self._failed("wrong", f"segment {index} of {known.name}{BYTES} is not what its manifest says")
            return None
        self._read_well()
        self.counts.read_bytes += size
        self._events.emit(SharedBytes(size, "read"))
        return OriginBody(known.version, first, size, ranged=True, framed=True, chunks=_each(pieces), shared=True)

    # Writing

    def to_write(self, name: str, version: Version) -> bool:
        """Whether this version of the shard is to be written: it was fetched from afar, and the tier does not have it."""
        return self._unwritten(name, version) is not None and self._clock() >= max(self._reading.until, self._writing.until)

    def _unwritten(self, name: str, version: Version) -> _Known | None:
        known = self._known.get(name)
        if known is None or not known.name or known.manifest is not None:
            return None
        mine, theirs = known.version, version
        same = (mine.identity, mine.length, mine.encoding) == (theirs.identity, theirs.length, theirs.encoding)
        return known if same and not theirs.is_weak else None

    def queued(self, name: str) -> None:
        """The shard is complete, and will be written when it is its turn."""
        if (known := self._known.get(name)) is not None:
            known.asked_at = self._clock() + QUEUE_S

    async def wrote(self, name: str, version: Version, descriptor: int, sums: tuple[int, ...]) -> None:
        """Write the shard's bytes, then its manifest; the lease is over. Trouble is counted, and said once."""
        known = self._unwritten(name, version)
        if known is None:
            return
        length, segment_bytes = version.length or 0, self._layout.segment_bytes
        known.asked_at = float("inf")  # however long it takes
        try:
            if not known.spoilt:
                known.manifest = await self._other_manifest(name, known, None)  # another sidecar was as far
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
            known.asked_at = float("-inf")
            with suppress(StoreRefused):
                await self._give_back(known)

    async def _other_manifest(self, name: str, known: _Known, than: Manifest | None) -> Manifest | None:
        """The manifest there is now, if it is another one."""
        try:
            async with asyncio.timeout(ANSWER_S):
                data = await self.store.get(known.name + MANIFEST)
            found = None if data is None else Manifest.decoded(data, name, known.version, self._layout.segment_bytes)
        except (ShardError, TimeoutError, NotOurs):
            return None
        return None if found == than else found

    async def run(self) -> None:
        """Keep the leases of shards that are being fetched, for ever; give back those of shards that are not."""
        await self._warm()
        while True:
            await self._sleep(RENEW_S)
            for known in list(self._mine.values()):
                try:
                    if known.asking or self._clock() - known.asked_at < ACTIVE_S:
                        await self.store.put(known.name + known.lease, _lease_text())
                    else:
                        known.until = self._clock()  # another may bring it now
                        await self._give_back(known)
                except StoreRefused as error:
                    self._mine.pop(known.name, None)
                    known.mine, known.until = False, self._clock() + LEASE_S
                    self._write_failed(error.reason, str(error))

    async def _warm(self) -> None:
        """Have the SDK loaded and the credentials found before a reader waits for that, or know that the store is down."""
        try:
            async with asyncio.timeout(FIRST_S):
                await self.store.get(WARM)
            await self._soon(self.store.age(WARM))
        except StoreRefused as error:
            self._write_failed(error.reason, str(error))
        except (ShardError, TimeoutError) as error:
            self._read_failed(error)
        self._answer_s = ANSWER_S

    async def aclose(self) -> None:
        """Others need not wait for what this sidecar fetched no further."""
        with suppress(StoreRefused, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                for known in list(self._mine.values()):
                    await self._give_back(known)
        self.store.close()

    async def _give_back(self, known: _Known) -> None:
        known.mine = False
        if known.name not in self._mine:
            return
        try:
            await self.store.delete(known.name + known.lease)
        except StoreRefused:
            self._mine.pop(known.name, None)
            raise
        self._mine.pop(known.name, None)  # not of who is cancelled: ``aclose`` tries it again

    # Trouble

    def _read_well(self) -> None:
        self._late_at = 0.0
        self._reading.went_well()

    def _read_failed(self, error: ShardError | TimeoutError) -> None:
        """A store that is late with one answer while others come is busy, not away: it gets fewer requests, and is not left alone.

        Nor after a single late answer: a node that is short of processors is late itself. With the next one in a row it is away.
        """
        reason = "unavailable" if isinstance(error, OriginUnavailable) else "other"
        reason = "timeout" if isinstance(error, (TimeoutError, OriginTimeout)) else reason
        reason = "refused" if isinstance(error, ShardForbidden) else reason
        cause = error.cause if isinstance(error, ShardError) else f"no answer within {ANSWER_S:g} s"
        now = asyncio.get_running_loop().time()
        busy = reason == "timeout" and (now - self._came_at < ANSWER_S or now - self._late_at < ANSWER_S / 2 or not self._late_at)
        if reason == "timeout" and not self._late_at:
            self._late_at = now
        self._failed(reason, cause, None if busy else self._reading)

    def _write_failed(self, reason: str, cause: str) -> None:
        self._failed(reason, cause, None if reason == "file" else self._writing)

    def _failed(self, reason: str, cause: str, trouble: _Trouble | None = None) -> None:
        self.counts.failures += 1
        self._events.emit(SharedFailed(reason))
        if trouble is None:
            level = logging.INFO if reason in self._said else logging.WARNING
            self._said.add(reason)
            log.log(level, "shared tier %s: %s; the origin is asked instead. More of this is counted only", self.store.place, cause)
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

    def status(self) -> dict[str, Any]:
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


def _fits(version: Version) -> bool:
    """Whether the tier may have it: nothing but these bytes has this name, and they can be written at once."""
    return (
        bool(version.identity and version.length) and not version.is_weak and not version.encoding and (version.length or 0) <= MOST_BYTES
    )


def _lease_text() -> bytes:
    """For people who look into the bucket; and no two are the same, or an old one could not be told from one that was just kept."""
    return json.dumps({"held_by": socket.gethostname(), "nonce": secrets.token_hex(8)}).encode()
