"""The least origin bytes that any schedule could have fetched for the readings that really happened. Pure.

The competitive ratio is the bytes that origins really sent over these.

A reading of a shard needs some of its segments. Either a segment was kept since its last reading, by whomever, or it is fetched: so the
least that can be fetched is everything less the *reuse intervals* (last reading of a segment -> this one) that fit into the capacity side
by side. Taken in the order of their ends, each with as much of its bytes as is free over all of it, they save the most: that is Belady's
rule with bypass, without a future (OPTgen; Jain and Lin, "Back to the Future: Leveraging Belady's Algorithm for Improved Cache
Replacement", ISCA 2016; the proof needs equal weights, and bytes are). Prefetch cannot do with fewer bytes, nor can whole-shard caching.

What the number says, and what it does not:

- A reading counts at its end, as if it had all been read in that moment, and with the segments it entered: a reader that leaves a shard
  after a kilobyte did not need all of it. A segment in the air, or prefetched and not read yet, is therefore only in the real
  bytes; the two are comparable once readers have caught up.
- Bytes, not whole segments: an interval may keep a part of one. That errs by less than a segment an interval at a full cache, downwards.
- Readings of one shard that overlap share what is fetched, and need no room for that.
- What an earlier process stored was fetched before this one began to count: it costs room, and nothing else.
- The capacity may change; a moment has the capacity of its end.
- At most ``WINDOW`` readings are looked back. A shard not read for so long counts as new, and so does one of which more than
  ``MOST_RUNS`` pieces were read at different times: the older pieces are forgotten. Both err upwards.

How much is free over all of an interval is the least room of any moment from its begin until now (``LeastFree``). Only suffixes of time are
asked for and only suffixes are taken from, because whoever asks does it now, so what counts of the past is one non-decreasing staircase:
``since(m)``. It is kept as its steps (a *gap* at a moment is how much the staircase rises there) in a Fenwick tree over a ring of moments.
Taking room from a suffix lowers the stairs behind it no further than they had to come down anyway: it eats gaps, the nearest first. Each
moment makes at most one gap, so all is O(log n) in the mean.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

__all__ = ["MOST_RUNS", "WINDOW", "LeastFree", "OptimumMeter"]

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
_FIRST_SIZE = 1 << 10  # moments that a staircase begins with


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


class LeastFree:
    """Room over time for the last ``window`` moments (a power of two); 8 bytes a moment, grown as they come. Not thread-safe."""

    def __init__(self, window: int) -> None:
        if window < 1 or window & (window - 1):
            raise ValueError(f"a window of {window} moments, and only powers of two make a ring that grows in place")
        self._window = window
        self._size = min(window, _FIRST_SIZE)
        self._tree = array("q", [0]) * (self._size + 1)  # 1-based, as Fenwick trees are
        self._total = 0  # of all gaps
        self._top = 0  # room of the newest moment
        self._count = 0

    def __repr__(self) -> str:
        return f"<LeastFree {self._count} moments, {self._top} now>"

    def __len__(self) -> int:
        """How many moments there have been."""
        return self._count

    @property
    def oldest(self) -> int:
        """The first moment that may still be asked for."""
        return max(0, self._count - self._size)

    def append(self, room: int) -> None:
        """A moment begins, with ``room`` free in it."""
        if self._count == self._size < self._window:
            self._grow()
        slot = self._count % self._size
        if self._count >= self._size:
            self._add(slot, -self._gap(slot))  # of the moment that leaves the ring: nobody asks for what was before it
        self._count += 1
        before, self._top = self._top, room
        if room > before and self._count > 1:
            self._add(slot, room - before)
        elif room < before:
            self._eat(slot, before - room)

    def since(self, moment: int) -> int:
        """The least room of ``moment`` and all later ones; ``moment`` is at least ``oldest`` and has begun."""
        return self._top - self._newer(moment % self._size)

    def take(self, moment: int, room: int) -> None:
        """Take ``room``, at most ``since(moment)``, from ``moment`` and all later ones."""
        self._top -= room
        self._eat(moment % self._size, room)

    def _newer(self, slot: int) -> int:
        """The gaps of moments after the one in ``slot``."""
        if self._count <= self._size:  # nothing lies behind the newest
            return self._total - self._sum(slot)
        now = (self._count - 1) % self._size
        return self._sum(now) - self._sum(slot) + (self._total if slot > now else 0)

    def _eat(self, slot: int, room: int) -> None:
        """Remove ``room`` of gaps at the moment in ``slot`` and before, the nearest first, as far as there are any."""
        now = (self._count - 1) % self._size
        floor = self._sum(now) if slot > now else 0  # below it lie newer moments, which came round
        while room > 0:
            reached = self._sum(slot)
            if reached <= floor:
                if slot > now or self._count <= self._size:
                    return
                slot, floor = self._size - 1, self._sum(now)  # round the ring, into older ones
                if slot == now:
                    return
                continue
            at, before = self._find(reached)
            eaten = min(room, reached - before)
            self._add(at, -eaten)
            room -= eaten

    def _grow(self) -> None:
        self._tree.extend([0] * self._size)
        self._size *= 2
        self._tree[self._size] = self._total

    # The Fenwick tree

    def _add(self, slot: int, change: int) -> None:
        self._total += change
        tree, size, at = self._tree, self._size, slot + 1
        while at <= size:
            tree[at] += change
            at += at & -at

    def _sum(self, slot: int) -> int:
        """The gaps in slots 0 to ``slot``."""
        tree, at, total = self._tree, slot + 1, 0
        while at:
            total += tree[at]
            at &= at - 1
        return total

    def _gap(self, slot: int) -> int:
        tree, at = self._tree, slot + 1
        value, end = tree[at], at & (at - 1)
        at -= 1
        while at > end:
            value -= tree[at]
            at &= at - 1
        return value

    def _find(self, total: int) -> tuple[int, int]:
        """The first slot up to which the gaps add up to ``total`` (at least 1), and what they add up to before it."""
        tree, size, at, before, step = self._tree, self._size, 0, 0, self._size
        while step:
            if at + step <= size and before + tree[at + step] < total:
                at += step
                before += tree[at]
            step >>= 1
        return at, before
