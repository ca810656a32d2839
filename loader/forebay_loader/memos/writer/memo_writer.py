"""The thread that brings a process's entries into a store: it writes them if it has the lock, else it hands them to the process that has.

Who has the lock listens on a socket beside the store. A writer that dies leaves the lock, and the next that has something to write takes
it. The queue in front is bounded: a sample whose result does not fit is not kept this time, and counted. Nothing here is waited for by
a batch.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional, Set, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import warn_node
from forebay_loader.memos.entry import KEY_BYTES, key_in
from forebay_loader.memos.stores.memo_store import MemoStore, StoreFull
from forebay_loader.memos.writer.byte_queue import ByteQueue
from forebay_loader.memos.writer.memo_room import MemoRoom

__all__ = ["ENTRY", "GONE", "USED", "MemoWriter"]

ENTRY, USED, GONE = b"E", b"U", b"G"  # an entry to keep; keys that readers were given; keys of damaged entries
_QUEUE_BYTES = 64 << 20  # of one process: some fifty clips of eight frames
_COMMIT_BYTES = 16 << 20
_PAUSE_S = 0.1  # between two tries to reach the writer, which may only be starting
_HEAD = 9
_PAGE = 4096
_OF_SIZE = 0.9  # of the size that was asked for: pages between entries, and what a file system or a B-tree needs for itself


class MemoWriter:
    """Of one store in one process; of None, which could not be opened, it takes nothing."""

    def __init__(self, folder: str, store: Optional[MemoStore], size_bytes: int, queue_bytes: int = _QUEUE_BYTES) -> None:
        self._folder = folder
        self._store = store
        self._bound = int(size_bytes * _OF_SIZE)
        self.queue = ByteQueue(queue_bytes)
        self._room: Optional[MemoRoom] = None  # where this process writes
        self._lock = -1
        self._listener: Optional[socket.socket] = None
        self._line: Optional[socket.socket] = None  # to the process that writes
        self._thread: Optional[threading.Thread] = None
        if store is None:
            self.queue.end()

    def __repr__(self) -> str:
        return f"<MemoWriter {self._folder}, {self._room or 'hands over'}>"

    def offer(self, kind: bytes, payload: bytes) -> bool:
        """Whether it was taken. Never waits."""
        if self._thread is None and not self.queue.ended:
            self._thread = threading.Thread(target=self._run, name="forebay-memo", daemon=True)
            self._thread.start()
        return self.queue.offer((kind, payload))

    def end(self, patience_s: float) -> None:
        """Let what waits be written, for so long; then be over."""
        if self._thread is not None:
            self.queue.drained(patience_s)
            self.queue.end()
            self._thread.join(1.0)

    def forked(self) -> None:
        """In a child: what is open is the parent's, and its lock is free only when no child has it open."""
        if self._lock >= 0:
            os.close(self._lock)
        for one in (self._listener, self._line):
            if one is not None:
                one.close()
        self.queue.end()

    def _run(self) -> None:
        try:
            while not self.queue.ended:
                items = self.queue.peek(_COMMIT_BYTES, None)
                if items and self._dealt_with(items):
                    self.queue.done(len(items))
        finally:
            for one in (self._line, self._listener):
                if one is not None:
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)  # who waits in accept is told
                    one.close()
            if self._lock >= 0:
                os.close(self._lock)

    def _dealt_with(self, items: List[Tuple[bytes, bytes]]) -> bool:
        """Written, or handed over; else tried again."""
        try:
            if self._room is None and self._line is None and not self._takes_lock():
                self._line = self._dialled()
            if self._room is not None:
                self._write(items)
                return True
            if self._line is not None:
                for kind, payload in items:
                    self._line.sendall(kind + len(payload).to_bytes(8, "little"))
                    self._line.sendall(payload)
                return True
            time.sleep(_PAUSE_S)
        except StoreFull as error:
            self._give_up(f"is full ({error}); what is in it is used, and nothing is added")
        except ConnectionError:
            self._hang_up()  # the writer is gone: this process may be the next
        except OSError as error:
            self._give_up(f"cannot be written ({error}); nothing is added to it")
        return False

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _give_up(self, why: str) -> None:
        COUNTS.add("memo_off")
        warn_node(f"forebay: the memo in {self._folder} {why} by this process any more. Training goes on; free some room and start again")
        self.queue.end()

    def _takes_lock(self) -> bool:
        lock = os.open(os.path.join(self._folder, "writer.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        assert self._store is not None
        clear = getattr(self._store, "clear_rests", None)
        if clear is not None:
            clear()
        self._room = MemoRoom(self._bound, self._store.entries())
        self._store.drop(self._room.excess())
        self._listen()
        return True

    def _listen(self) -> None:
        path = os.path.join(self._folder, "writer.sock")
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _Near(self._folder) as near:
            self._listener.bind(f"{near}/writer.sock")
        self._listener.listen(64)
        threading.Thread(target=_answer, args=(self._listener, self.queue), name="forebay-memo-door", daemon=True).start()

    def _dialled(self) -> Optional[socket.socket]:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _Near(self._folder) as near:
                line.connect(f"{near}/writer.sock")
        except (FileNotFoundError, ConnectionError):
            line.close()
            return None
        return line

    def _write(self, items: List[Tuple[bytes, bytes]]) -> None:
        assert self._room is not None
        assert self._store is not None
        put: Dict[bytes, bytes] = {}
        leaving: Set[bytes] = set()
        evicted = 0
        for kind, payload in items:
            if kind == ENTRY:
                key = key_in(payload)
                out = self._room.admit(key, -(-len(payload) // _PAGE) * _PAGE)
                if out is None:
                    COUNTS.add("memo_no_room")
                    continue
                put[key] = payload
                leaving = (leaving | set(out)) - {key}
                evicted += len(out)
                continue
            for at in range(0, len(payload) - KEY_BYTES + 1, KEY_BYTES):
                key = payload[at : at + KEY_BYTES]
                if kind == USED:
                    self._room.used(key)
                else:
                    self._room.forget(key)
                    leaving.add(key)
        if leaving:
            self._store.drop(sorted(leaving))
        found = [entry for key, entry in put.items() if key not in leaving]
        if found:
            self._store.put(found)
        COUNTS.add("memo_evicted", evicted)
        COUNTS.add("memo_kept", len(found))


class _Near:
    """A short name of a folder, while it is open: a socket's path has 107 bytes at most."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._open = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._open}"

    def __exit__(self, *raised: Any) -> None:
        os.close(self._open)


def _answer(listener: socket.socket, queue: ByteQueue) -> None:
    """A thread a process that hands over: it reads no faster than the queue empties, so that their queues fill and drop."""
    with suppress(OSError):
        while True:
            line, _ = listener.accept()
            threading.Thread(target=_receive, args=(line, queue), name="forebay-memo-line", daemon=True).start()


def _receive(line: socket.socket, queue: ByteQueue) -> None:
    with suppress(OSError), line, line.makefile("rb") as file:
        while True:
            head = file.read(_HEAD)
            size = int.from_bytes(head[1:], "little")
            if len(head) < _HEAD or size > queue.most_bytes:
                return
            payload = file.read(size)
            if len(payload) < size or not queue.put((head[:1], payload)):
                return
