"""A queue that is bounded by bytes: who may not wait drops, who may waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Deque, List, Optional, Tuple

__all__ = ["ByteQueue"]

Item = Tuple[bytes, bytes]  # kind, payload


class ByteQueue:
    """At most ``most_bytes`` of payloads."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._items: Deque[Item] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False

    def has_room(self, size: int) -> bool:
        """Whether an item of that size would be taken now."""
        return self._bytes + size <= self.most_bytes and not self._ended

    def offer(self, item: Item) -> bool:
        """Whether it was taken; never waits."""
        with self._changed:
            if not self.has_room(len(item[1])):
                return False
            self._add(item)
            return True

    def put(self, item: Item) -> bool:
        """Waits for room; False where there is none for that size, or the queue has ended."""
        with self._changed:
            if len(item[1]) > self.most_bytes:
                return False
            self._changed.wait_for(lambda: self._ended or self.has_room(len(item[1])))
            if self._ended:
                return False
            self._add(item)
            return True

    def _add(self, item: Item) -> None:
        self._items.append(item)
        self._bytes += len(item[1])
        self._changed.notify_all()

    def peek(self, most_bytes: int, timeout_s: Optional[float]) -> List[Item]:
        """The next items, of together not much more than ``most_bytes``; they count until ``done``. None of them after ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._ended, timeout_s)
            found: List[Item] = []
            size = 0
            for item in self._items:
                if found and size + len(item[1]) > most_bytes:
                    break
                found.append(item)
                size += len(item[1])
            return found

    def done(self, count: int) -> None:
        """The first items are dealt with."""
        with self._changed:
            for _ in range(count):
                self._bytes -= len(self._items.popleft()[1])
            self._changed.notify_all()

    def drained(self, timeout_s: float) -> bool:
        """Whether all were dealt with within that time."""
        until = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(lambda: not self._items or self._ended, until - time.monotonic())

    def end(self) -> None:
        """Nobody waits any longer, and nothing is taken."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        return self._ended
