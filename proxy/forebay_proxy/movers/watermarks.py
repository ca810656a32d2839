"""How far each landing has come: a table in memory that a mover writes and the event loop reads, and the bell that says "look again".

No wake-up can be lost, by order alone: the mover stores the mark and *then* rings; the loop takes what has rung and *then* reads the
marks. Whatever was stored before the ring is seen; whatever is stored after the look rings again. The bell is an eventfd: a counter, so it
never refuses a ring for being full the way a socket does, and many rings between two looks are one look.

A table belongs to one mover: one that has gone mad writes over no one's marks but its own, and the loop believes a mark only within the
range it asked for.
"""

from __future__ import annotations

import mmap
import os

__all__ = ["SLOTS", "Watermarks"]

SLOTS = 4096  # landings in one mover at a time; the limiter allows 64 an origin
_MARK_BYTES = 8  # aligned: stored and loaded at once


class Watermarks:
    """Both ends: ``create`` in the loop, ``Watermarks(fd, bell)`` in the mover. Marks are bytes landed, counted from 0."""

    def __init__(self, table: int, bell: int) -> None:
        """``table`` is the descriptor of the memory, ``bell`` that of the eventfd; both belong to this object from now on."""
        self.table = table
        self.bell = bell
        self._memory = mmap.mmap(table, SLOTS * _MARK_BYTES)
        self._marks = memoryview(self._memory).cast("Q")

    @classmethod
    def create(cls) -> Watermarks:
        """A new table of zeros. Raises ``OSError``."""
        table = os.memfd_create("forebay-watermarks", os.MFD_CLOEXEC)
        os.ftruncate(table, SLOTS * _MARK_BYTES)
        return cls(table, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def __getitem__(self, slot: int) -> int:
        return self._marks[slot]

    def clear(self, slot: int) -> None:
        """Begin a landing: before the mover hears of it."""
        self._marks[slot] = 0

    def move(self, slot: int, mark: int) -> None:
        """``mark`` bytes are in the file: store it, then ring."""
        self._marks[slot] = mark
        os.eventfd_write(self.bell, 1)

    def heard(self) -> None:
        """Take what has rung; the marks are to be read after this."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the memory and both descriptors back."""
        self._marks.release()
        self._memory.close()
        os.close(self.table)
        os.close(self.bell)
