"""One task: while plans want more, ``ensure`` it.

Nearest need first over all readers, each at most its window ahead, through the same door a request uses. Demand goes first because the
limiter gives it the next slot; prefetch only ever takes room that is free, has been read, or is needed later (two segments a reader).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from forebay_proxy.cache import ShardCache
from forebay_proxy.chores import Chores
from forebay_proxy.entry import Entry
from forebay_proxy.errors import CacheFull, ForebayError
from forebay_proxy.limiter import DEMAND
from forebay_proxy.openings import Openings
from forebay_proxy.plan import Plans, ReaderPlan
from forebay_proxy.segments import SEGMENT_BYTES, segment_count, segment_span
from forebay_proxy.shard import Shard
from forebay_proxy.window import Window
from forebay_proxy.wire.plan import ReaderName

__all__ = ["Prefetcher"]

log = logging.getLogger("forebay")

MOST_IN_AIR = 48  # the free slots of an origin in full swing (64, a quarter of them for demand only)
MOST_OPENINGS = 16  # shards being opened ahead: as many as a node's readers begin at once when an epoch starts
ROUND_S = 0.02  # rounds are not counted in events: at 1 GB/s a segment lands every 8 ms, and one look at the plans serves several
# A full cache refuses an opening at once, and every reader's step is a reason to look again: hundreds a second, for nothing.
NO_ROOM_S = 0.1
FAILED_S = 30.0  # a shard that cannot be opened ahead is left to its reader for this long
MOST_PASSED = 1024  # failed ones a round steps over: an origin that has lost a whole set is not asked for all of it in a minute


class Prefetcher:
    """Walks the plans and keeps the windows of their readers full."""

    def __init__(self, cache: ShardCache, openings: Openings, plans: Plans, chores: Chores, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._openings = openings
        self._plans = plans
        self._chores = chores
        self._clock = clock
        self._woken = asyncio.Event()
        self._windows: dict[ReaderName, Window] = {}
        self._opening: set[str] = set()
        self._failed: dict[str, float] = {}
        self._no_room_until = 0.0
        self._full = False
        cache.ground.landed_signal = self._woken.set
        cache.waited_signal = self.waited

    def __repr__(self) -> str:
        return f"<Prefetcher {len(self._windows)} windows, {len(self._opening)} openings>"

    def wake(self) -> None:
        """Plans changed."""
        self._woken.set()

    def waited(self, reader: ReaderName | None) -> None:
        """A reader waited for bytes: it needs a longer window, unless the disk is what holds it back."""
        window = self._windows.get(reader) if reader else None
        if window is not None and not self._full:
            window.waited()

    def look_again(self) -> None:
        """Once a second: shards whose opening failed are tried again when their time is over, with no other event to wake us."""
        if self._forgive() or self._no_room_until:
            self._no_room_until = 0.0
            self.wake()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._round()
            await asyncio.sleep(ROUND_S)

    def ahead_bytes(self, plan: ReaderPlan) -> int:
        """How many bytes of what the reader announced are stored already, counted from its position without a gap."""
        total = 0
        for shard in plan.shards[plan.position :]:
            entry = self._openings.current.get(shard.name)
            if entry is None or entry.version.length is None:
                return total
            for index in range(segment_count(entry.version.length)):
                if not entry.segments.has(index):
                    return total
                total += segment_span(index, entry.version.length)[1]
        return total

    def _round(self) -> None:
        """Look at all plans once, and ask for what their windows lack."""
        self._share_windows()
        self._forgive()
        self._full = False
        air = MOST_IN_AIR - sum(flight.need >= DEMAND for flight in self._cache.flights.all())
        ahead = dict.fromkeys(self._windows, 0)
        hungry, passed = len(ahead), 0
        for need_at, plan, shard in self._plans.nearest():
            if air <= 0 or hungry <= 0 or self._full:
                return
            window = self._windows[plan.reader]
            if ahead[plan.reader] >= window.bytes:
                continue
            entry = self._ready(shard, plan, need_at)
            if entry is None and shard.name in self._failed and passed < MOST_PASSED:
                passed += 1  # nothing comes of it for now: the window is for those behind it
            elif entry is None:
                ahead[plan.reader] += SEGMENT_BYTES  # its length is not known yet; at least a segment
            else:
                counted, launched = self._extend(entry, shard, plan, need_at, window.bytes - ahead[plan.reader], air)
                ahead[plan.reader] += counted
                air -= launched
            hungry -= ahead[plan.reader] >= window.bytes

    def _share_windows(self) -> None:
        """A window per reader with a plan; all windows together never exceed half the cache."""
        readers = [plan.reader for plan in self._plans.all()]
        limit = self._cache.room.ledger.capacity_bytes // 2 // max(1, len(readers))
        for reader in readers:
            self._windows.setdefault(reader, Window(limit)).limit(limit)
        for reader in self._windows.keys() - set(readers):
            del self._windows[reader]

    def _ready(self, shard: Shard, plan: ReaderPlan, need_at: float) -> Entry | None:
        """The shard's version if it may be read; else its opening begins, and None."""
        entry = self._openings.current.get(shard.name)
        if entry is not None and not entry.stale and self._openings.fresh(entry, plan.reader.job):
            return entry
        may_open = len(self._opening) < MOST_OPENINGS and self._clock() >= self._no_room_until
        if may_open and shard.name not in self._opening and shard.name not in self._failed:
            self._opening.add(shard.name)
            self._chores.spawn(self._open(shard, plan.reader.job, need_at), "prefetch opening")
        return None

    async def _open(self, shard: Shard, job: str, need_at: float) -> None:
        try:
            await self._openings.entry(shard, job, need=self._need(need_at))
        except CacheFull:
            self._no_room_until = self._clock() + NO_ROOM_S
            return  # tried again when something has left; woken now, we would turn round and round
        except ForebayError as error:
            log.info("shard %s could not be opened ahead of need (%s); its reader will ask again", shard.name, error)
            self._failed[shard.name] = self._clock() + FAILED_S
        finally:
            self._opening.discard(shard.name)
        self._woken.set()

    def _forgive(self) -> bool:
        """Forget the failures whose time is over; whether there were any. They are in the order of their ends."""
        now, before = self._clock(), len(self._failed)
        while self._failed and self._failed[name := next(iter(self._failed))] <= now:
            del self._failed[name]
        return len(self._failed) < before

    def _need(self, need_at: float) -> float:
        return DEMAND + max(0.0, need_at - self._clock())

    def _extend(self, entry: Entry, shard: Shard, plan: ReaderPlan, need_at: float, room_bytes: int, air: int) -> tuple[int, int]:
        """Ask for the shard's missing segments, as far as the window goes: (bytes counted into it, flights launched)."""
        if not entry.ranged or entry.version.length is None:
            return entry.version.length or SEGMENT_BYTES, 0
        counted = launched = 0
        for index in range(segment_count(entry.version.length)):
            if counted >= room_bytes or launched >= air:
                break
            counted += segment_span(index, entry.version.length)[1]
            try:
                flight = self._cache.ensure(entry, index, shard, need=self._need(need_at), need_at=need_at, reader=plan.reader)
            except CacheFull:
                self._windows[plan.reader].refused()
                self._full = True
                break
            launched += flight is not None
        return counted, launched
