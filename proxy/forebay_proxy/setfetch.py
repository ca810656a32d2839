"""Fetches declared sets ahead: what no job has read yet in its present epoch, for programs that announce nothing.

Behind every announced plan, into free room and what has been read, never in place of what is still needed; never more unread bytes ahead
than half of the cache. What cannot be fetched is stepped over for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from forebay_proxy.cache import ShardCache
from forebay_proxy.census import Census
from forebay_proxy.errors import CacheFull, ConfigError, ForebayError
from forebay_proxy.openings import Openings
from forebay_proxy.plan import Plans
from forebay_proxy.segments import SEGMENT_BYTES
from forebay_proxy.sets import InvalidSet, PatternSet, ShardSet, shown
from forebay_proxy.shard import Shard
from forebay_proxy.tour import Tour
from forebay_proxy.warm import AT_ONCE, Warming

__all__ = ["SetFetching", "check_sets"]

log = logging.getLogger("forebay")

STEPS = 64  # shards looked at in one turn of the loop: a millisecond
FAILED_S = 30.0  # a shard that cannot be fetched is left to its reader for this long
MOST_FAILED = 16  # in a row: then the origin is left alone for that time
# A finished tour is begun again after this, for what was evicted or failed meanwhile: each look costs ten microseconds.
REWIND_S, REWIND_EACH_S = 10.0, 0.001
SPARE = 2  # segments a reader
SETTLED = 64  # shards of the last fetched that are looked at, whether somebody has read them, before each further one


def check_sets(texts: Iterable[str]) -> None:
    """Raises ``ConfigError`` for what is no pattern of shard URLs."""
    for text in texts:
        try:
            PatternSet.of(text)
        except InvalidSet as error:
            raise ConfigError(f"--set: {error}", next_step="write --set 's3://bucket/shard-{000000..000999}.tar'") from error


class _Declared:
    """One set, and how far it is fetched."""

    def __init__(self, key: str, text: str, shards: ShardSet, now: float, *, is_awaited: bool = False) -> None:
        self.key = key
        self.is_awaited = is_awaited  # nothing of it is fetched before somebody reads it
        self.text = text
        self.shards = shards
        self.tour = Tour(shards)
        self.rewound_at = now
        self.epochs: tuple[tuple[str, int], ...] = ()  # of each job, when the tour began


class SetFetching:
    """Keeps the unread part of the declared sets coming."""

    def __init__(self, cache: ShardCache, openings: Openings, plans: Plans, texts: Iterable[str], clock: Callable[[], float]) -> None:
        self._cache = cache
        self._openings = openings
        self._plans = plans
        self._clock = clock
        self._warming = Warming(cache, openings, [], self._asks)
        self._sets: dict[str, _Declared] = {}
        self._census = Census(cache.room.entries.values)
        self._ahead: dict[str, int] = {}  # fetched and not read: shard name -> bytes
        self._ahead_bytes = 0  # their sum
        self._busy: dict[str, int] = {}  # shards that are coming -> how many bytes of each have been asked for
        self._failed: dict[str, float] = {}  # shard name -> until when
        self._failures = 0  # in a row
        self._paused_until = clock()
        self._full = False
        self._runs = False  # until the house says so: not at all where nothing is to be prefetched
        self._readers = 0  # at a time, lately
        self._again: deque[Shard] = deque()  # those that found no room
        self._woken = asyncio.Event()
        for text in texts:
            key = plans.declare_set(text)
            shards = plans.sets.get(key)
            if shards is not None:
                self._sets[key] = _Declared(key, text, shards, clock())
        plans.read_in_set = self._read

    def __repr__(self) -> str:
        return f"<SetFetching {len(self._sets)} sets, {len(self._busy)} shards coming, {len(self._ahead)} unread>"

    def __len__(self) -> int:
        return len(self._sets)

    def declare(self, text: str) -> None:
        """A person warmed the set ``text``: from its first reader on it comes as the others, until nobody has read it for hours."""
        key = self._plans.declare_set(text, for_good=False)
        shards = self._plans.sets.get(key)
        if shards is not None and key not in self._sets:
            self._sets[key] = _Declared(key, text, shards, self._clock(), is_awaited=True)

    def told(self) -> list[dict[str, object]]:
        """For ``/v1/status``: each set, how many shards it has, how many of them each job has opened in its epoch, what of it is here
        (null: not counted yet), and what goes on."""
        return [
            {
                "set": shown(declared.text),
                "shards": len(declared.shards),
                **self._here(declared.key),
                "opened": {job: found.opened for job, found in self._plans.passes_of(declared.key).items()},
                "state": self._state(declared),
            }
            for declared in self._sets.values()
        ]

    def _here(self, key: str) -> dict[str, int | None]:
        here = self._census.of(key)
        return {"complete": here.complete if here else None, "stored_bytes": here.stored_bytes if here else None}

    def _state(self, declared: _Declared) -> str:
        if not self._runs:
            return "not fetched ahead: prefetch is off"
        if declared.is_awaited:
            return "waits for its first reader"
        if declared.tour.ended and not self._busy and not self._again:
            return "looked through"
        if self._clock() < self._paused_until:
            return "its origin is left alone for a while"
        return "waits for room" if self._held_back() else "fetching"

    def look_again(self) -> None:
        """Once a second: there may be room now."""
        self._full = False
        for key in [key for key in self._sets if self._plans.sets.get(key) is None]:
            del self._sets[key]
        if self._sets:
            self._census.step({key: declared.shards for key, declared in self._sets.items()})
        self._readers = max(len(self._cache.readings), self._readers - 1)
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._runs = True
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._work(), name=f"set {number}")

    def _read(self, key: str, name: str, job: str, epoch: int) -> None:
        declared = self._sets.get(key)
        index = declared.shards.index(name) if declared else None
        if declared is not None and index is not None:
            declared.is_awaited = False
            declared.tour.opened(index, job, epoch)
            self._readers = max(self._readers, len(self._cache.readings))
            self._woken.set()

    async def _work(self) -> None:
        while True:
            shard = self._next()
            if shard is not None:
                await self._fetch(shard)
            elif self._paused():
                await asyncio.sleep(0)
            else:
                self._woken.clear()
                await self._woken.wait()

    def _paused(self) -> bool:
        return not self._held_back() and any(not declared.is_awaited and not declared.tour.ended for declared in self._sets.values())

    def _held_back(self) -> bool:
        """Whether nothing more may be asked for now."""
        self._settle()
        return self._full or self._clock() < self._paused_until or not self._may_be_unread(SEGMENT_BYTES) or not self._roomy()

    def _may_be_unread(self, size: int) -> bool:
        """Whether so much more may be here or on its way for nobody yet; what plans had fetched counts before it."""
        ahead = self._ahead_bytes + sum(self._busy.values()) + self._cache.room.displacers.unread_bytes
        return ahead + size <= self._cache.room.ledger.capacity_bytes // 2

    def _asks(self, name: str, size: int) -> None:
        """So many bytes of a shard are about to be asked for. Raises ``CacheFull``; then no other is begun before the next look."""
        if (self._full and not self._busy.get(name)) or not self._may_be_unread(size):
            self._full = True
            raise CacheFull("half of the cache holds what nobody has read yet")
        self._busy[name] = self._busy.get(name, 0) + size

    def _roomy(self) -> bool:
        """Whether there is room beside what the readers need for their next shards.

        Those may be others than what comes here: without that room they would take the place of something unread, which comes twice then.
        """
        return self._cache.room.has_spare(SEGMENT_BYTES * (1 + len(self._busy) + SPARE * max(1, self._readers)))

    def _settle(self) -> None:
        """What has been read, or has left, is not ahead any more; a part of them each time."""
        for _ in range(min(SETTLED, len(self._ahead))):
            name = next(iter(self._ahead))
            size = self._ahead.pop(name)
            if self._is_ahead(name):
                self._ahead[name] = size
            else:
                self._ahead_bytes -= size

    def _is_ahead(self, name: str) -> bool:
        """Whether something of the shard is unread, and will be read: who left early, or skipped a part, leaves that for good."""
        entry = self._openings.current.get(name)
        if entry is None or not entry.segments.unread:
            return False
        if entry.readers or self._plans.last_opened(name) is None:
            return True
        return any(not self._plans.has_read(key, name) for key in self._plans.sets.holding(name))

    def _next(self) -> Shard | None:
        """The next shard to fetch; None if there is none, or none was found within a turn."""
        if self._held_back():
            return None
        while self._again:
            shard = self._again.popleft()
            if any(self._wanted(declared, shard.name) for declared in self._sets.values() if declared.shards.index(shard.name) is not None):
                return shard
        for declared in self._sets.values():
            if declared.is_awaited:
                continue
            self._begin_again(declared)
            index = declared.tour.next(lambda index, of=declared: self._wanted(of, of.shards.at(index).name), STEPS)  # type: ignore[misc]
            if index is not None:
                return declared.shards.at(index)
        return None

    def _begin_again(self, declared: _Declared) -> None:
        """From the start of the tour, when a job has begun another epoch, or some time after its end."""
        epochs = tuple((job, found.epoch) for job, found in self._plans.passes_of(declared.key).items())
        now = self._clock()
        late = declared.tour.ended and now - declared.rewound_at > max(REWIND_S, REWIND_EACH_S * len(declared.shards))
        if late or epochs != declared.epochs:
            declared.epochs, declared.rewound_at = epochs, now
            self._again.clear()
            declared.tour.rewind()

    def _wanted(self, declared: _Declared, name: str) -> bool:
        if name in self._busy or self._failed.get(name, 0.0) > self._clock() or self._plans.has_read(declared.key, name):
            return False
        entry = self._openings.current.get(name)
        return entry is None or not entry.segments.complete

    async def _fetch(self, shard: Shard) -> None:
        self._busy[shard.name] = 0
        try:
            await self._warming.one(shard)
            self._failures = 0
        except CacheFull:
            self._full = True
            self._again.append(shard)
        except ForebayError as error:
            log.info("shard %s of a declared set could not be fetched (%s); its reader will ask again", shard.name, error)
            self._leave_alone(shard.name)
        finally:
            self._busy.pop(shard.name, None)
            entry = self._openings.current.get(shard.name)
            if entry is not None and entry.segments.unread:
                size = sum(entry.segments.bytes_of(index) for index in entry.segments.unread)
                self._ahead_bytes += size - self._ahead.pop(shard.name, 0)
                self._ahead[shard.name] = size

    def _leave_alone(self, name: str) -> None:
        now = self._clock()
        self._failures += 1
        if self._failures >= MOST_FAILED:
            self._failures, self._paused_until = 0, now + FAILED_S
        self._failed.pop(name, None)
        self._failed[name] = now + FAILED_S
        while self._failed and next(iter(self._failed.values())) <= now:
            del self._failed[next(iter(self._failed))]
