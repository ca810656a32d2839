"""What all workers of a rank have skipped in an epoch: one row of numbers each, in memory that they share.

A worker writes its own row alone, in one ``pwrite``, so a reader has it whole; only to take a row, and to find out who ends last, is there
a lock.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from forebay_loader.base.shared_memory import SharedPart, lives, training_pid
from forebay_loader.meter.skips.counts import SkipCounts

__all__ = ["LoneRow", "SharedRow", "SkipSlots", "Standing"]

READING, ENDED, CUT = 1, 2, 3  # an iteration: under way; read to its end; left before
_ROW = struct.Struct("16q")  # owner, epoch, worker, workers, pid, state, the counts, and one to spare
_MOST = 4096  # rows: workers of four epochs, far beyond any machine
_AT_ONCE = 64  # rows read together: more than most jobs ever have


class _Row(NamedTuple):
    owner: int
    epoch: int
    worker: int
    workers: int
    pid: int
    state: int
    counts: SkipCounts

    @property
    def over(self) -> bool:
        return self.state != READING or not lives(self.pid)


class Standing(NamedTuple):
    """What the workers of one rank have said of one epoch. ``last``: all have ended, this process as the last; ``early``: not all of them
    at the end of what they read."""

    counts: SkipCounts
    last: bool = False
    early: bool = False


class LoneRow:
    """The same where nobody else counts."""

    def put(self, counts: SkipCounts) -> None:
        """Nobody asks."""

    def standing(self, counts: SkipCounts) -> SkipCounts:
        return counts

    def end(self, counts: SkipCounts, *, over: bool) -> Standing:
        return Standing(counts, last=True, early=not over)


class SkipSlots:
    """The rows of one data set."""

    def __init__(self) -> None:
        self.part = SharedPart(_MOST * _ROW.size)

    def take(self, epoch: int, worker: int, workers: int) -> SharedRow:
        """A row for an iteration that begins now."""
        owner = training_pid()
        with self.part.locked():
            rows = self._rows()
            free = (at for at, row in enumerate(rows) if _is_free(row, owner, epoch, worker))
            place = next(free, len(rows) if len(rows) < _MOST else epoch % _MOST)
            self.write(place, _Row(owner, epoch, worker, workers, os.getpid(), READING, SkipCounts()))
        return SharedRow(self, place, epoch)

    def standing(self, epoch: int) -> Standing:
        """What all have said so far."""
        return Standing(_sum(self.of(epoch)))

    def of(self, epoch: int) -> "list[_Row]":
        owner = training_pid()
        return [row for row in self._rows() if (row.owner, row.epoch) == (owner, epoch)]

    def _rows(self) -> "list[_Row]":
        """All that were ever taken: they follow one another."""
        found: "list[_Row]" = []
        while len(found) < _MOST:
            data = self.part.read(_AT_ONCE * _ROW.size, len(found) * _ROW.size)
            taken = [row for row in map(_row, _ROW.iter_unpack(data[: len(data) - len(data) % _ROW.size])) if row.owner]
            found += taken
            if len(taken) < _AT_ONCE:
                break
        return found

    def row(self, place: int) -> _Row:
        return _row(_ROW.unpack(self.part.read(_ROW.size, place * _ROW.size)))

    def write(self, place: int, row: _Row) -> None:
        *head, counts = row
        self.part.write(_ROW.pack(*head, *counts, 0), place * _ROW.size)


class SharedRow(NamedTuple):
    """The row of one iteration, among those of its rank."""

    slots: SkipSlots
    place: int
    epoch: int

    def put(self, counts: SkipCounts) -> None:
        """What this process has counted."""
        row = self.slots.row(self.place)
        if row.pid == os.getpid():
            self.slots.write(self.place, row._replace(counts=counts))

    def standing(self, counts: SkipCounts) -> SkipCounts:
        """What all have, this process ``counts``."""
        self.put(counts)
        return self.slots.standing(self.epoch).counts

    def end(self, counts: SkipCounts, *, over: bool) -> Standing:
        """This process's iteration has ended, ``over`` or left early."""
        with self.slots.part.locked():
            row = self.slots.row(self.place)._replace(counts=counts, state=ENDED if over else CUT)
            self.slots.write(self.place, row)
            rows = self.slots.of(row.epoch)
        # After a break a worker that has not begun never will: it is not waited for.
        complete = not over or len({each.worker for each in rows}) >= row.workers
        last = complete and all(each.over for each in rows)
        return Standing(_sum(rows), last, any(each.state != ENDED for each in rows))


def _row(numbers: "tuple[int, ...]") -> _Row:
    owner, epoch, worker, workers, pid, state, *counts = numbers
    return _Row(owner, epoch, worker, workers, pid, state, SkipCounts(*counts[:-1]))


def _is_free(row: _Row, owner: int, epoch: int, worker: int) -> bool:
    """Of this worker's epoch before the last, or of a training process that is gone. What is being read is nobody's to take."""
    if not row.over:
        return False
    if row.owner != owner:
        return not lives(row.owner)
    return abs(row.epoch - epoch) > 1 or (row.epoch, row.worker) == (epoch, worker)  # the latter: somebody set the epoch back


def _sum(rows: "list[_Row]") -> SkipCounts:
    total = SkipCounts()
    for row in rows:
        total = total.plus(row.counts)
    return total
