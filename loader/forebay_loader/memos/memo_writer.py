"""The thread that brings a process's entries into a store, behind a queue that is bounded by bytes. No batch waits for it.

Processes that share a store write one after the other: LMDB has a lock for that, files are whole or not there. A result that finds no
room in the queue is not kept this time, and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Deque, List, Optional, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.memos.entry import MemoStore, key_in
from forebay_loader.memos.errors import StoreFull

__all__ = ["MemoWriter"]

_QUEUE_BYTES = 64 << 20  # of one process: some fifty clips of eight frames
_COMMIT_BYTES = 16 << 20

Item = Tuple[bool, bytes]  # an entry to keep; or False and the key of a damaged one, which leaves


class MemoWriter:
    """Of one store in one process; of None, which could not be opened, it takes nothing. At most ``queue_bytes`` wait to be written."""

    def __init__(self, folder: str, store: Optional[MemoStore], queue_bytes: int = _QUEUE_BYTES) -> None:
        self._folder = folder
        self._store = store
        self._most_bytes = queue_bytes
        self._items: Deque[Item] = deque()  # until they are written
        self._bytes = 0
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self.ended = store is None

    def __repr__(self) -> str:
        return f"<MemoWriter {self._folder}>"

    def has_room(self, size: int) -> bool:
        """Whether an entry of that size would be taken now."""
        return not self.ended and self._bytes + size <= self._most_bytes

    def keep(self, entry: bytes) -> bool:
        """Whether it was taken. Never waits."""
        return self._offer((True, entry))

    def forget(self, key: bytes) -> None:
        """A damaged entry."""
        self._offer((False, key))

    def drained(self, timeout_s: float) -> bool:
        """Whether all was written within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._items or self.ended, timeout_s)

    def end(self, patience_s: float) -> None:
        """Let what waits be written, for so long; then be over."""
        if self._thread is not None:
            self.drained(patience_s)
            self._over()
            self._thread.join(1.0)

    def _offer(self, item: Item) -> bool:
        with self._changed:
            if not self.has_room(len(item[1])):
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="forebay-memo", daemon=True)
                self._thread.start()
            self._items.append(item)
            self._bytes += len(item[1])
            self._changed.notify_all()
            return True

    def _run(self) -> None:
        while items := self._next():
            try:
                self._write(items)
            except StoreFull as error:
                self._give_up(f"is full ({error}): what is in it is used, and nothing is added")
            except OSError as error:
                self._give_up(f"cannot be written ({error}): nothing is added to it")
            else:
                with self._changed:
                    self._bytes -= sum(len(self._items.popleft()[1]) for _ in items)
                    self._changed.notify_all()

    def _next(self) -> List[Item]:
        """Wait for items: the first, of together not much more than a commit; none once it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.ended)
            found: List[Item] = []
            size = 0
            for item in () if self.ended else self._items:
                size += len(item[1])
                if found and size > _COMMIT_BYTES:
                    break
                found.append(item)
            return found

    def _write(self, items: List[Item]) -> None:
        assert self._store is not None
        put = {key_in(payload): payload for is_entry, payload in items if is_entry}
        damaged = [payload for is_entry, payload in items if not is_entry]
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
        self._over()

    def _over(self) -> None:
        """Nobody waits any longer, and nothing is taken."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
