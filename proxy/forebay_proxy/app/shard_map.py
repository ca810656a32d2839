"""The map of shards for people: one letter a shard, in the order of their names, and where the readers are. Asks the parts.

Names are long and seldom change, letters are short and change all the time. So a page asks for the names once (``version`` tells when
anew), and gets only letters after that: 10 kB for 10,000 shards. Both are made in slices, with the loop's other work in between.

======  =====================================================================
letter  meaning; a capital one: and read in this epoch
======  =====================================================================
h       here, all of it
p       partly here
c       coming: a fetch of it runs
l       leaving: segments of it are being removed
n       not here, and planned next: one of the next few of some reader
a       not here, announced for later, or read and gone
======  =====================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import Any

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.policy.plans.registry import PlanRegistry

__all__ = ["MOST_CELLS", "NEXT", "ShardMap"]

MOST_CELLS = 16_384  # more are no map for people; a page would hold megabytes of names
MOST_READERS = 256
NEXT = 4  # shards of each reader that count as planned next
NAMES_S = 10.0  # a set of names that changes all the time is told anew so often
SLICE = 512  # shards between two turns of the loop: some 2 ms


class ShardMap:
    """Keeps the names and their order. Not thread-safe: the event loop's only."""

    def __init__(self, cache: ShardCache, plans: PlanRegistry, current: dict[str, Entry], clock: Callable[[], float]) -> None:
        """``current``: by name, the version that the origin has named last."""
        self._cache = cache
        self._plans = plans
        self._current = current
        self._clock = clock
        self._names: list[str] = []
        self._index: dict[str, int] = {}
        self._version = 0
        self._looked_at: float | None = None
        self._cut = False

    def __repr__(self) -> str:
        return f"<ShardMap {len(self._names)} shards, version {self._version}>"

    async def whole(self) -> dict[str, Any]:
        """``GET /v1/shards/map``: ``cells`` with the names, less the ``prefix`` that they share; ``cut``: there are more."""
        cells = await self.cells()
        prefix = _shared(self._names[0], self._names[-1]) if self._names else ""  # they are sorted
        return {**cells, "prefix": prefix, "names": [name[len(prefix) :] for name in self._names], "cut": self._cut}

    async def cells(self) -> dict[str, Any]:
        """``version`` of the names, a letter each in ``cells``, and ``readers``: cell, part of the shard that is behind it, waits, name."""
        await self._look_at_names()
        names, version, letters = self._names, self._version, list[str]()
        soon = {name for plan in self._plans.all() for name in plan.names[plan.position : plan.position + NEXT]}
        read = await self._read()
        for start in range(0, len(names), SLICE):
            now = self._clock()
            letters += [self._letter(name, name in soon, name in read, now) for name in names[start : start + SLICE]]
            await asyncio.sleep(0)
        return {"version": version, "cells": "".join(letters), "readers": list(islice(self._readers(), MOST_READERS))}

    def _letter(self, name: str, soon: bool, read: bool, now: float) -> str:
        entry = self._current.get(name)
        letter = "n" if soon and not read else "a"
        if entry is not None:
            if entry.in_use.leaving:
                letter = "l"
            elif entry.segments.complete:
                letter = "h"
            elif entry.in_use.fetching:
                letter = "c"
            elif entry.segments.stored_count:
                letter = "p"
            read = read or self._plans.epochs.unread_by(name, entry.group, now) == {}
        return letter.upper() if read else letter

    def _readers(self) -> Iterator[list[Any]]:
        for reading in self._cache.readers:
            index, length = self._index.get(reading.entry.name), reading.entry.version.length
            if index is not None:
                part = min(1.0, reading.position / length) if length else 0.0
                yield [index, round(part, 3), reading.wait is not None, str(reading.reader or "anonymous")]

    async def _read(self) -> set[str]:
        """Of the plans as they are: what their readers have passed."""
        read = set[str]()
        for plan in self._plans.all():
            read.update(plan.names[max(0, plan.position - MOST_CELLS) : plan.position])
            await asyncio.sleep(0)
        return read

    async def _look_at_names(self) -> None:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < NAMES_S and self._names:
            return
        self._looked_at = now
        found = dict.fromkeys(islice(self._current, MOST_CELLS))
        plans = self._plans.all()
        each = max(2, MOST_CELLS // max(1, len(plans)))
        for plan in plans:
            window = plan.names if len(plan) <= each else plan.names[max(0, plan.position - each // 2) : plan.position + each // 2]
            _fill(found, window)
            await asyncio.sleep(0)
        names = sorted(found)
        if names != self._names:
            self._names, self._index, self._version = names, {name: index for index, name in enumerate(names)}, self._version + 1
        self._cut = len(names) >= MOST_CELLS or any(len(plan) > each for plan in plans)


def _shared(first: str, last: str) -> str:
    """What both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return first[: sum(1 for _ in same)]


def _fill(found: dict[str, None], names: Iterable[str]) -> None:
    for name in names:
        if len(found) >= MOST_CELLS:
            return
        found[name] = None
