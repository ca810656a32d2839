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

from forebay_proxy.background.set_census import SetCensus
from forebay_proxy.background.unread_ahead import UnreadAhead
from forebay_proxy.background.warmer import AT_ONCE, Warmer
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.core.errors import CacheFull, ConfigError, ForebayError, NotTarArchive
from forebay_proxy.core.shard import Shard, shown_set
from forebay_proxy.policy.plans.registry import PlanRegistry, SetShardOpened
from forebay_proxy.policy.plans.sets.set_cursor import SetCursor
from forebay_proxy.policy.plans.sets.set_faults import FAILED_S, SetFaults
from forebay_proxy.policy.plans.sets.shard_sets import InvalidSet, PatternSet, ShardSet

__all__ = ["SetPrefetch", "check_sets"]

log = logging.getLogger("forebay")

STEPS = 64  # shards looked at in one turn of the loop: a millisecond
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


class _Declared:
    """One set, and how far it is fetched."""

    def __init__(self, key: str, text: str, shards: ShardSet, now: float, *, is_awaited: bool = False) -> None:
        self.key = key
        self.is_awaited = is_awaited  # its shards are not fetched before a reader opens one
        self.text = text
        self.shards = shards
        self.cursor = SetCursor(shards)
        self.rewound_at = now
        self.epochs: tuple[tuple[str, int], ...] = ()  # of each job, when the pass over the set began
        self.warned = False  # that something of it is no tar


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
        self._census = SetCensus(cache.room.entries.values)
        self._faults = SetFaults()
        self._runs = False  # until the service says so: not at all where nothing is to be prefetched
        self._again: deque[Shard] = deque()  # those that found no room
        self._woken = asyncio.Event()
        for text in texts:
            key = plans.epochs.declare_set(text, plans.clock())
            shards = plans.epochs.sets.get(key)
            if shards is not None:
                self._sets[key] = _Declared(key, text, shards, clock())

    def __repr__(self) -> str:
        return f"<SetPrefetch {len(self._sets)} sets, {self._unread!r}>"

    def __len__(self) -> int:
        return len(self._sets)

    def declare(self, text: str) -> None:
        """A person warmed the set ``text``: from its first reader on it is fetched like the others, until no job has read it for hours."""
        key = self._plans.epochs.declare_set(text, self._plans.clock(), for_good=False)
        shards = self._plans.epochs.sets.get(key)
        if shards is not None and key not in self._sets:
            self._sets[key] = _Declared(key, text, shards, self._clock(), is_awaited=True)

    def remove(self, name: str) -> bool:
        """Keep the set shown as ``name`` filled no longer; False: there is none."""
        keys = [key for key, declared in self._sets.items() if name in (declared.text, shown_set(declared.text))]
        for key in keys:
            del self._sets[key]
            self._plans.epochs.undeclare_set(key)
        return bool(keys)

    def status_rows(self) -> list[dict[str, object]]:
        """For ``/v1/status``: for each set the number of its shards, how many of them each live job has opened in its epoch, how many are
        stored (null: not counted yet), the failures, and what goes on.
        """
        return [self._row(declared) for declared in self._sets.values()]

    def _row(self, declared: _Declared) -> dict[str, object]:
        failures = self._faults.rows(declared.shards, self._is_here)
        return {
            "set": shown_set(declared.text),
            "shards": len(declared.shards),
            **self._census.counts(declared.key),
            "opened": {job: found.opened for job, found in self._plans.epochs.live(declared.key, self._plans.clock()).items()},
            "failures": failures,
            "state": self._state(declared, failed=bool(failures)),
        }

    def _is_here(self, name: str) -> bool:
        """Whether all of it is, and is no login page that a reader was given meanwhile."""
        entry = self._resolver.versions.current.get(name)
        return entry is not None and entry.segments.complete and not entry.trust.no_tar

    def _state(self, declared: _Declared, *, failed: bool) -> str:
        if not self._runs:
            return "not fetched ahead: prefetch is off"
        if declared.is_awaited:
            return "waits for its first reader"
        if self._census.counts(declared.key)["complete"] == len(declared.shards):
            return "all here"
        if declared.cursor.ended and not self._unread.coming and not self._again:
            return "the rest cannot be fetched" if failed else "nothing left to fetch in this epoch"
        if self._faults.leaves_all_alone(self._clock()):
            return "its origin is left alone for a while"
        return "the cache is full" if self._held_back() else "fetching"

    def look_again(self) -> None:
        """Once a second: there may be room now."""
        self._unread.look_again(len(self._cache.readers))
        for key in [key for key in self._sets if self._plans.epochs.sets.get(key) is None]:
            del self._sets[key]
        if self._sets:
            self._census.step({key: declared.shards for key, declared in self._sets.items()})
        self._woken.set()

    async def run(self) -> None:
        """Until cancelled."""
        self._runs = True
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._work(), name=f"set {number}")

    def read(self, fact: SetShardOpened) -> None:
        """A job has opened a shard of a set: it is unread no more."""
        declared = self._sets.get(fact.key)
        index = declared.shards.index(fact.name) if declared else None
        if declared is not None and index is not None:
            declared.is_awaited = False
            declared.cursor.opened(index, fact.job, fact.epoch)
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
        wants = any(not declared.is_awaited and not declared.cursor.ended for declared in self._sets.values())
        return wants and not self._held_back()  # in this order: to see whether there is room, thousands of tiny shards are walked over

    def _held_back(self) -> bool:
        """Whether nothing more may be asked for now."""
        self._unread.recount()
        return self._faults.leaves_all_alone(self._clock()) or self._unread.is_held_back()

    def _next(self) -> Shard | None:
        """The next shard to fetch; None if no shard is left, or no shard was found within a turn."""
        if not self._sets or self._held_back():
            return None
        while self._again:
            shard = self._again.popleft()
            if any(self._wanted(declared, shard.name) for declared in self._sets.values() if declared.shards.index(shard.name) is not None):
                return shard
        for declared in self._sets.values():
            if declared.is_awaited:
                continue
            self._begin_again(declared)
            index = declared.cursor.next(lambda index, of=declared: self._wanted(of, of.shards.at(index).name), STEPS)  # type: ignore[misc]
            if index is not None:
                return declared.shards.at(index)
        return None

    def _begin_again(self, declared: _Declared) -> None:
        """From the start of the set, when a job has begun another epoch, or some time after the pass ended."""
        epochs = tuple((job, found.epoch) for job, found in self._plans.epochs.of(declared.key).items())
        now = self._clock()
        late = declared.cursor.ended and now - declared.rewound_at > max(REWIND_S, REWIND_EACH_S * len(declared.shards))
        if late or epochs != declared.epochs:
            declared.epochs, declared.rewound_at = epochs, now
            self._again.clear()
            declared.cursor.rewind()

    def _wanted(self, declared: _Declared, name: str) -> bool:
        if self._unread.is_coming(name) or self._faults.leaves_alone(name, self._clock()):
            return False
        entry = self._resolver.versions.current.get(name)
        if entry is not None and entry.segments.complete:
            return self._warming.doubts(entry)
        return not self._plans.epochs.has_read(declared.key, name, self._plans.clock())

    async def _fetch(self, shard: Shard) -> None:
        self._unread.begin(shard.name)
        try:
            await self._bring(shard)
            self._faults.mended(shard.name)
        except CacheFull:
            self._unread.full = True
            self._again.append(shard)
        except NotTarArchive as error:
            self._warn(error)
            self._faults.fail(shard.name, error, self._clock(), NOT_TAR_S)
        except ForebayError as error:
            log.info("shard %s of a declared set could not be fetched (%s); its reader will ask again", shard.name, error)
            self._faults.fail(shard.name, error, self._clock(), FAILED_S)
        finally:
            self._unread.end(shard.name)

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
