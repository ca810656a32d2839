"""Fetches declared sets ahead: what no job has read yet in its present epoch, for programs that announce nothing.

Its fetches come behind every announced plan, and take free room and the room of segments that were read, never that of segments still
needed; at most half of the cache is unread and ahead. A shard that cannot be fetched is stepped over for a while. A file that is called a
tar and is none (a login page, as a rule) has failed like ``forebay warm`` fails it: it does not stay, also where a reader or an earlier
sidecar has stored it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forebay_proxy.background.warmer import AT_ONCE, Warmer
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.cache.versions.versions import Versions
from forebay_proxy.core.errors import CacheFull, ConfigError, ForebayError, NotTarArchive, ShardError
from forebay_proxy.core.shard import Shard, shown_set
from forebay_proxy.policy.plans.registry import PlanRegistry, SetShardOpened
from forebay_proxy.policy.plans.shard_sets import InvalidSet, PatternSet

__all__ = ["SetPrefetch", "check_sets"]

log = logging.getLogger("forebay")

STEPS = 64  # shards looked at in one turn of the loop: a millisecond
SPARE = 2  # segments a reader that are left free beside what comes
RECOUNTED = 64  # fetched shards that are checked for having been read, before each further one
FAILED_S = 30.0  # a shard that cannot be fetched is left to its reader for this long
MOST_FAILED = 16  # in a row: then the origin is left alone for that time
MOST_KNOWN = 1024  # failures; of more, the oldest are forgotten, and those shards tried again
MOST_CAUSES = 4  # of a set that are told
NOT_TAR_S = 600.0  # and one that was no tar for this long: to see that it is one now costs all of it
# A finished pass over a set is begun again after this, for shards that were evicted or failed meanwhile: each costs ten microseconds.
REWIND_S, REWIND_EACH_S = 10.0, 0.001


def check_sets(texts: Iterable[str]) -> None:
    """Raises ``ConfigError`` for what is no pattern of shard URLs."""
    for text in texts:
        try:
            PatternSet.of(text)
        except InvalidSet as error:
            raise ConfigError(f"--set: {error}", next_step="write --set 's3://bucket/shard-{000000..000999}.tar'") from error


@dataclass(slots=True)
class _Declared:
    """One set, and how far it is fetched."""

    key: str
    text: str
    shards: PatternSet
    rewound_at: float
    cursor: int = 0  # the next shard to look at
    epochs: tuple[tuple[str, int], ...] = ()  # of each job, when the pass over the set began
    warned: bool = False  # that something of it is no tar

    @property
    def ended(self) -> bool:
        """Whether every shard has been looked at since the start, or the last rewind."""
        return self.cursor >= len(self.shards)


@dataclass(frozen=True, slots=True)
class _Failure:
    """No reader waits for a declared set, so no reader gets its errors: they are kept for ``/v1/status``."""

    cause: str
    next_step: str
    until: float  # when it is tried again


def _stored_bytes(entry: Entry) -> int:
    """Bytes of it that are here; a part of a shard counts in whole segments."""
    segments = entry.segments
    size = segments.stored_count * segments.layout.segment_bytes
    return size if segments.length is None else min(size, segments.length)


class UnreadAhead:
    """Bytes of declared sets that are stored or in the air and that no reader has read yet: never more than half of the cache."""

    def __init__(self, room: SpaceManager, versions: Versions, plans: PlanRegistry) -> None:
        self.full = False  # something was refused: nothing more is begun before the next look
        self.readers = 0  # at a time, lately
        self._room = room
        self._versions = versions
        self._plans = plans
        self._here: dict[str, int] = {}  # fetched and not read: shard name -> bytes
        self._here_bytes = 0  # their sum
        self.coming: dict[str, int] = {}  # shards that are coming -> how many bytes of each have been asked for

    @property
    def bytes(self) -> int:
        """Bytes that are here or were asked for."""
        return self._here_bytes + sum(self.coming.values())

    def request(self, name: str, size: int) -> None:
        """``size`` bytes of the shard are about to be asked for.

        Raises ``CacheFull`` where that may not be; then nothing else is begun before the next look.
        """
        if (self.full and not self.coming.get(name)) or not self.may_have(size):
            self.full = True
            raise CacheFull("half of the cache holds what nobody has read yet")
        self.coming[name] = self.coming.get(name, 0) + size

    def look_again(self, readers: int) -> None:
        """Once a second: there may be room now. ``readers``: how many there are."""
        self.full = False
        self.readers = max(readers, self.readers - 1)

    def is_held_back(self) -> bool:
        """Whether nothing more may be begun now."""
        return self.full or not self.may_have(self._room.layout.segment_bytes) or not self.has_room(self.readers)

    def end(self, name: str) -> None:
        """The fetch of the shard is over: what of it is here and unread counts from now on."""
        self.coming.pop(name, None)
        entry = self._versions.current.get(name)
        if entry is not None and entry.segments.unread:
            size = sum(entry.segments.bytes_of(index) for index in entry.segments.unread)
            self._here_bytes += size - self._here.pop(name, 0)
            self._here[name] = size

    def may_have(self, size: int) -> bool:
        """Whether ``size`` bytes more may be stored or in the air unread; bytes that plans prefetched count first."""
        room = self._room
        ahead, most = self.bytes + size, room.ledger.capacity_bytes // 2
        return ahead + room.read_ahead.unread_bytes <= most

    def has_room(self, readers: int) -> bool:
        """Whether there is room beside what so many readers need for their next shards.

        The readers' next shards may be others than those fetched here: without that room they would evict unread segments, which would be
        fetched twice.
        """
        segments = 1 + len(self.coming) + SPARE * max(1, readers)
        return self._room.admission.has_spare(self._room.layout.segment_bytes * segments)

    def recount(self) -> None:
        """Stop counting shards that were read or evicted; ``RECOUNTED`` of them each time."""
        for _ in range(min(RECOUNTED, len(self._here))):
            name = next(iter(self._here))
            size = self._here.pop(name)
            if self._is_ahead(name):
                self._here[name] = size
            else:
                self._here_bytes -= size

    def _is_ahead(self, name: str) -> bool:
        """Whether segments of the shard are unread and will be read: those that a reader skipped, or left unread, will not."""
        entry = self._versions.current.get(name)
        if entry is None or not entry.segments.unread:
            return False
        if entry.in_use.readers or self._plans.epochs.last_opened(name) is None:
            return True
        return any(not self._plans.epochs.has_read(key, name, self._plans.clock()) for key in self._plans.epochs.sets.containing(name))


class SetPrefetch:
    """Keeps the unread part of the declared sets coming."""

    def __init__(
        self,
        cache: ShardCache,
        resolver: VersionResolver,
        plans: PlanRegistry,
        texts: Iterable[str],
        clock: Callable[[], float],
        tar_check: TarCheck | None = None,
    ) -> None:
        """With ``tar_check`` what is called a tar and is none does not stay."""
        self._cache = cache
        self._resolver = resolver
        self._plans = plans
        self._clock = clock
        self._unread = UnreadAhead(cache.room, resolver.versions, plans)
        self._warming = Warmer(cache, resolver, [], self._unread.request, tar_check)
        self._sets: dict[str, _Declared] = {}
        self._failures: dict[str, _Failure] = {}  # by the shard's name, the last one last
        self._failed_in_a_row = 0
        self._alone_until = float("-inf")  # nothing is asked for before
        self._runs = False  # until the service says so: not at all where nothing is to be prefetched
        self._again: deque[Shard] = deque()  # those that found no room
        self._woken = asyncio.Event()
        for text in texts:
            key = plans.epochs.declare_set(text, plans.clock())
            shards = plans.epochs.sets.get(key)
            if shards is not None:
                self._sets[key] = _Declared(key, text, shards, clock())

    def __repr__(self) -> str:
        return f"<SetPrefetch {len(self._sets)} sets>"

    def __len__(self) -> int:
        return len(self._sets)

    def status_rows(self) -> list[dict[str, object]]:
        """For ``/v1/status``: for each set the number of its shards, how many of them each live job has opened in its epoch, how many are
        stored, the failures, and what goes on.
        """
        here: dict[str, list[Entry]] = {key: [] for key in self._sets}
        for entry in self._cache.room.entries.values() if here else ():
            for key in self._plans.epochs.sets.containing(entry.name):
                if key in here:
                    here[key].append(entry)
        return [self._row(declared, here[key]) for key, declared in self._sets.items()]

    def _row(self, declared: _Declared, here: list[Entry]) -> dict[str, object]:
        failures = self._failed(declared.shards)
        complete = sum(entry.segments.complete and not entry.trust.no_tar for entry in here)
        return {
            "set": shown_set(declared.text),
            "shards": len(declared.shards),
            "complete": complete,
            "stored_bytes": sum(map(_stored_bytes, here)),
            "opened": {job: found.opened for job, found in self._plans.epochs.live(declared.key, self._plans.clock()).items()},
            "failures": failures,
            "state": self._state(declared, complete, failed=bool(failures)),
        }

    def _failed(self, shards: PatternSet) -> list[dict[str, object]]:
        """What of this set cannot be fetched: equal causes together, the most frequent first, each with one shard that has it."""
        found: dict[tuple[str, str], list[str]] = {}
        for name, failure in self._failures.items():
            if shards.index(name) is not None and not self._is_here(name):
                found.setdefault((failure.cause, failure.next_step), []).append(name)
        most = sorted(found.items(), key=lambda each: -len(each[1]))[:MOST_CAUSES]
        return [{"count": len(names), "shard": names[0], "cause": cause, "next_step": step} for (cause, step), names in most]

    def _is_here(self, name: str) -> bool:
        """Whether all of it is, and is no login page that a reader was given meanwhile."""
        entry = self._resolver.versions.current.get(name)
        return entry is not None and entry.segments.complete and not entry.trust.no_tar

    def _state(self, declared: _Declared, complete: int, *, failed: bool) -> str:
        if not self._runs:
            return "not fetched ahead: prefetch is off"
        if complete == len(declared.shards):
            return "all here"
        if declared.ended and not self._unread.coming and not self._again:
            return "the rest cannot be fetched" if failed else "nothing left to fetch in this epoch"
        if self._clock() < self._alone_until:
            return "its origin is left alone for a while"
        return "the cache is full" if self._held_back() else "fetching"

    def look_again(self) -> None:
        """Once a second: there may be room now."""
        self._unread.look_again(len(self._cache.readers))
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._runs = True
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._work(), name=f"set {number}")

    def read(self, fact: SetShardOpened) -> None:
        """A job has opened a shard of a set: it is unread no more."""
        if fact.key in self._sets:
            self._unread.readers = max(self._unread.readers, len(self._cache.readers))
            self._woken.set()

    async def _work(self) -> None:
        while True:
            shard = self._next()
            if shard is not None:
                await self._fetch(shard)
            elif self._has_more():
                await asyncio.sleep(0)
            else:
                self._woken.clear()
                await self._woken.wait()

    def _has_more(self) -> bool:
        wants = any(not declared.ended for declared in self._sets.values())
        return wants and not self._held_back()  # in this order: to see whether there is room, thousands of tiny shards are walked over

    def _held_back(self) -> bool:
        """Whether nothing more may be asked for now."""
        self._unread.recount()
        return self._clock() < self._alone_until or self._unread.is_held_back()

    def _next(self) -> Shard | None:
        """The next shard to fetch; None if no shard is left, or no shard was found within a turn."""
        if not self._sets or self._held_back():
            return None
        while self._again:
            shard = self._again.popleft()
            if any(self._wanted(declared, shard.name) for declared in self._sets.values() if declared.shards.index(shard.name) is not None):
                return shard
        for declared in self._sets.values():
            self._begin_again(declared)
            for index in range(declared.cursor, min(declared.cursor + STEPS, len(declared.shards))):
                declared.cursor = index + 1
                shard = declared.shards.at(index)
                if self._wanted(declared, shard.name):
                    return shard
        return None

    def _begin_again(self, declared: _Declared) -> None:
        """From the start of the set, when a job has begun another epoch, or some time after the pass ended."""
        epochs = tuple((job, found.epoch) for job, found in self._plans.epochs.of(declared.key).items())
        now = self._clock()
        late = declared.ended and now - declared.rewound_at > max(REWIND_S, REWIND_EACH_S * len(declared.shards))
        if late or epochs != declared.epochs:
            declared.epochs, declared.rewound_at = epochs, now
            self._again.clear()
            declared.cursor = 0

    def _wanted(self, declared: _Declared, name: str) -> bool:
        failure = self._failures.get(name)
        if name in self._unread.coming or (failure is not None and failure.until > self._clock()):
            return False
        entry = self._resolver.versions.current.get(name)
        if entry is not None and entry.segments.complete:
            return self._warming.doubts(entry)
        return not self._plans.epochs.has_read(declared.key, name, self._plans.clock())

    async def _fetch(self, shard: Shard) -> None:
        self._unread.coming[shard.name] = 0
        try:
            await self._bring(shard)
            self._failed_in_a_row = 0
            self._failures.pop(shard.name, None)
        except CacheFull:
            self._unread.full = True
            self._again.append(shard)
        except NotTarArchive as error:
            self._warn(error)
            self._fail(shard.name, error, NOT_TAR_S)
        except ForebayError as error:
            log.info("shard %s of a declared set could not be fetched (%s); its reader will ask again", shard.name, error)
            self._fail(shard.name, error, FAILED_S)
        finally:
            self._unread.end(shard.name)

    def _fail(self, name: str, error: ForebayError, for_s: float) -> None:
        """Leave the shard alone for so long, and after many in a row everything for a while."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= MOST_FAILED:
            self._failed_in_a_row, self._alone_until = 0, self._clock() + FAILED_S
        self._failures.pop(name, None)
        cause = error.cause if isinstance(error, ShardError) else str(error)
        self._failures[name] = _Failure(cause, error.step, self._clock() + for_s)
        if len(self._failures) > MOST_KNOWN:
            del self._failures[next(iter(self._failures))]

    async def _bring(self, shard: Shard) -> None:
        entry = self._resolver.versions.current.get(shard.name)
        if entry is None or not entry.segments.complete:
            await self._warming.one(shard)
        else:  # a reader has stored it, or an earlier sidecar
            await self._warming.judge(entry)

    def _warn(self, error: NotTarArchive) -> None:
        """Once a set; ``/v1/status`` counts the others."""
        of = [declared for declared in self._sets.values() if declared.shards.index(error.shard) is not None]
        for declared in of:
            if not declared.warned:
                declared.warned = True
                log.warning("declared set %s: %s; nothing of it is kept; %s", shown_set(declared.text), error, error.step)
