"""The least origin bytes that any schedule could have fetched for the readings that really happened. Pure.

The competitive ratio is the bytes that origins really sent over these.

A reading of a shard needs some of its segments. Either a segment was kept since its last reading, by whomever, or it is fetched: so the
least that can be fetched is everything less the *reuse intervals* (last reading of a segment -> this one) that fit into the capacity side
by side. Taken in the order of their ends, each with as much of its bytes as is free over all of it, they save the most: that is Belady's
rule with bypass, without a future (OPTgen; Jain and Lin, "Back to the Future: Leveraging Belady's Algorithm for Improved Cache
Replacement", ISCA 2016; the proof needs equal weights, and bytes are). Prefetch cannot do with fewer bytes, nor can whole-shard caching.

What is said with it, and what is not:

- A reading counts at its end, as if it had all been read in that moment, and with the segments it entered: a reader that leaves a shard
  after a kilobyte did not need all of it. What is in the air, and what was prefetched and is not read yet, is therefore only in the real
  bytes; the two are comparable once readers have caught up.
- Bytes, not whole segments: an interval may keep a part of one. That errs by less than a segment an interval at a full cache, downwards.
- Readings of one shard that overlap share what is fetched, and need no room for that.
- What an earlier process stored was fetched before this one began to count: it costs room, and nothing else.
- The capacity may change; each moment has the one it had when it ended.
- At most ``WINDOW`` readings are looked back. A shard not read for so long counts as new, and so does one of which more than
  ``MOST_RUNS`` pieces were read at different times: the older pieces are forgotten. Both err upwards.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from forebay_proxy.telemetry.least_free import LeastFree

__all__ = ["MOST_RUNS", "WINDOW", "OptimumMeter"]

# Readings looked back: nearly two passes of the largest public set (585,270 shards) on a single node. 16 MiB when all are used, and about
# 160 bytes for each shard read meanwhile; a node that reads ten shards a second looks back 29 hours.
WINDOW = 1 << 20
PARTS = 256  # dictionaries: one that holds a million entries takes 40 ms to grow, a part of it nothing to speak of
FORGOTTEN = 4  # moments looked at after each reading, for who may be forgotten: one comes, so this catches up
MOST_RUNS = 64  # pieces of one shard, read last at different times: a whole reading makes one of them again

# A run is a piece of a shard whose segments were last read together, in one number because there may be a million of them:
# the moment of that reading, the first segment, the last segment. Sorted, they are in the order of their readings.
Run = int
_BITS = 24  # 16 million segments of 8 MiB are a shard of 128 TiB
_MASK = (1 << _BITS) - 1


class OptimumMeter:
    """Counts while readings end; about 20 us each. Not thread-safe: the event loop's only."""

    def __init__(self, capacity: Callable[[], int], segment_bytes: int, *, window: int = WINDOW) -> None:
        """``capacity()`` is the room in bytes for everything that is kept, asked for at each reading."""
        self.bytes = 0  # the least that could have been fetched so far
        self._capacity = capacity
        self._segment_bytes = segment_bytes
        self._free = LeastFree(window)
        self._ring = window + 2  # those the window still holds, the newest, and one that is about to be forgotten
        self._parts: list[dict[int, Run | tuple[Run, ...]]] = [{} for _ in range(PARTS)]  # by hash of the version's key
        self._names = array("q", [0])  # whose reading ended in which moment, in a ring of the window's size
        self._found: list[int] = []  # who was here at the start
        self._tail = 1  # who was last read before this moment is forgotten

    def __repr__(self) -> str:
        return f"<OptimumMeter {self.bytes} bytes, {len(self)} shards known, {len(self._free)} readings>"

    def __len__(self) -> int:
        """Shards that are remembered."""
        return sum(map(len, self._parts))

    @property
    def moment(self) -> int:
        """The moment now: a reading remembers the one it began in."""
        return len(self._free)

    def found(self, key: str, indices: Iterable[int]) -> None:
        """At the start, before any reading: these segments of a version are here, in ascending order."""
        pieces: list[list[int]] = []
        for index in indices:
            if pieces and pieces[-1][1] == index - 1:
                pieces[-1][1] = index
            else:
                pieces.append([index, index])
        if pieces:
            name = hash(key)
            self._found.append(name)
            self._parts[name % PARTS][name] = tuple(_run(0, first, last) for first, last in pieces[:MOST_RUNS])

    def read(self, key: str, first: int, last: int, length: int | None, began: int) -> int:
        """A reading that began in moment ``began`` ends, of segments ``first`` to ``last``; returns the bytes it cost at least."""
        name = hash(key)
        runs = self._parts[name % PARTS]
        self._free.append(self._capacity())
        self._note(name)
        missing = self._size(first, last, length)
        kept = [_run(self.moment, first, last)]
        for run in _known(runs.get(name, ())):
            since, start, end = run >> 2 * _BITS, run >> _BITS & _MASK, run & _MASK
            if start > last or end < first:
                kept.append(run)
                continue
            size = self._size(max(first, start), min(last, end), length)
            missing -= size if since > began else self._keep(since, size)
            if start < first:
                kept.append(_run(since, start, first - 1))
            if end > last:
                kept.append(_run(since, last + 1, end))
        runs[name] = kept[0] if len(kept) == 1 else tuple(sorted(kept)[-MOST_RUNS:])
        self._forget()
        self.bytes += missing
        return missing

    def _size(self, first: int, last: int, length: int | None) -> int:
        """Bytes of the segments ``first`` to ``last`` of a shard; whole ones while its length is unknown."""
        end = (last + 1) * self._segment_bytes
        return (end if length is None else min(end, length)) - first * self._segment_bytes

    def _keep(self, since: int, size: int) -> int:
        """How much of ``size`` bytes could be kept from ``since`` until now; the room for it is taken."""
        if since < self._free.oldest:
            return 0
        kept = min(size, self._free.since(since))
        if kept:
            self._free.take(since, kept)
        return kept

    def _note(self, name: int) -> None:
        if self.moment < self._ring:
            self._names.append(name)
        else:
            self._names[self.moment % self._ring] = name

    def _forget(self) -> None:
        """Drop who was last read before a moment in which nothing more can be kept: it counts as new from then on in any case."""
        for _ in range(FORGOTTEN):
            if self._found and self._gone(0):
                self._drop(self._found.pop(), 0)
            if not self._gone(self._tail):
                return
            self._drop(self._names[self._tail % self._ring], self._tail)
            self._tail += 1

    def _gone(self, moment: int) -> bool:
        return moment < self._free.oldest or (moment < self.moment and not self._free.since(moment))

    def _drop(self, name: int, moment: int) -> None:
        runs = self._parts[name % PARTS]
        known = runs.get(name)
        if known is not None and _known(known)[-1] >> 2 * _BITS == moment:
            del runs[name]


def _known(runs: Run | tuple[Run, ...]) -> tuple[Run, ...]:
    return (runs,) if isinstance(runs, int) else runs


def _run(moment: int, first: int, last: int) -> Run:
    return (moment << _BITS | first) << _BITS | last
