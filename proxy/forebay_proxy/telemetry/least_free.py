"""The least room that was free at any moment from some moment until now. Pure.

Moments are numbered 0, 1, 2, …; each has so much room. Only suffixes are asked for and only suffixes are taken from, because whoever asks
does it now, so what counts of the past is one non-decreasing staircase: ``since(m)``. It is kept as its steps (a *gap* at a moment is how
much the staircase rises there) in a Fenwick tree over a ring of moments. Taking room from a suffix lowers the stairs behind it no further
than they had to come down anyway: it eats gaps, the nearest first. Each moment makes at most one gap, so all is O(log n) in the mean.
"""

from __future__ import annotations

from array import array

__all__ = ["LeastFree"]

_FIRST_SIZE = 1 << 10


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
