"""The thread that brings a process's entries into a store, behind a queue that is bounded by bytes. No batch waits for it.

Processes that share a store write one after the other: LMDB has a lock for that, files are whole or not there. A result that finds no
room in the queue is not kept this time, and counted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.memos.entry import MemoStore, key_in
from forebay_loader.memos.errors import StoreFull

__all__ = ["ByteQueue", "MemoWriter"]

_QUEUE_BYTES = 64 << 20  # of one process: some fifty clips of eight frames
_COMMIT_BYTES = 16 << 20

Item = Tuple[bool, bytes]  # an entry to keep; or False and the key of a damaged one, which leaves


class ByteQueue:
    """At most ``most_bytes`` of payloads; what does not fit is refused at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._items: Deque[Item] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self.ended = False

    def has_room(self, size: int) -> bool:
        """Whether an item of that size would be taken now."""
        return self._bytes + size <= self._most_bytes and not self.ended

    def offer(self, item: Item) -> bool:
        """Whether it was taken; never waits."""
        with self._changed:
            if not self.has_room(len(item[1])):
                return False
            self._items.append(item)
            self._bytes += len(item[1])
            self._changed.notify_all()
            return True

    def peek(self, most_bytes: int) -> List[Item]:
        """Wait for items: the next, of together not much more than ``most_bytes``; they count until ``done``. None once it has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.ended)
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
            return self._changed.wait_for(lambda: not self._items or self.ended, until - time.monotonic())

    def end(self) -> None:
        """Nobody waits any longer, and nothing is taken."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()


class MemoWriter:
    """Of one store in one process; of None, which could not be opened, it takes nothing."""

    def __init__(self, folder: str, store: Optional[MemoStore], queue_bytes: int = _QUEUE_BYTES) -> None:
        self._folder = folder
        self._store = store
        self.queue = ByteQueue(queue_bytes)
        self._thread: Optional[threading.Thread] = None
        if store is None:
            self.queue.end()

    def __repr__(self) -> str:
        return f"<MemoWriter {self._folder}>"

    def keep(self, entry: bytes) -> bool:
        """Whether it was taken. Never waits."""
        return self._offer((True, entry))

    def forget(self, key: bytes) -> None:
        """A damaged entry."""
        self._offer((False, key))

    def end(self, patience_s: float) -> None:
        """Let what waits be written, for so long; then be over."""
        if self._thread is not None:
            self.queue.drained(patience_s)
            self.queue.end()
            self._thread.join(1.0)

    def _offer(self, item: Item) -> bool:
        if self._thread is None and not self.queue.ended:
            self._thread = threading.Thread(target=self._run, name="forebay-memo", daemon=True)
            self._thread.start()
        return self.queue.offer(item)

    def _run(self) -> None:
        while not self.queue.ended:
            items = self.queue.peek(_COMMIT_BYTES)
            try:
                self._write(items)
            except StoreFull as error:
                self._give_up(f"is full ({error}): what is in it is used, and nothing is added")
            except OSError as error:
                self._give_up(f"cannot be written ({error}): nothing is added to it")
            else:
                self.queue.done(len(items))

    def _write(self, items: List[Item]) -> None:
        assert self._store is not None
        put: Dict[bytes, bytes] = {}
        damaged = []
        for is_entry, payload in items:
            if is_entry:
                put[key_in(payload)] = payload
            else:
                damaged.append(payload)
        if damaged:
            self._store.drop(damaged)
        if put:
            self._store.put(list(put.values()))
            COUNTS.add("memo_kept", len(put))

    def _give_up(self, why: str) -> None:
        COUNTS.add("memo_off")
        warn_node(
            f"forebay: the memo in {self._folder} {why} by this process any more. Training goes on. Entries of code that was changed since "
            "stay until then: give it more room (size=), or remove the folder, and start again"
        )
        self.queue.end()
