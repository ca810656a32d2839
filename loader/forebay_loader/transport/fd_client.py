"""Connections to the fd door: kept open, asked again and again, one question at a time on each.

Connecting costs more than all the rest of an opening, so a process keeps a connection for the next shard, and says with a line which lease
has ended. The end of a connection ends all of its leases: a process that is killed leaves none. A forked child closes inherited
connections without a word, since its parent goes on with them; so no thread forks while another receives a descriptor.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from array import array
from contextlib import suppress
from itertools import count
from typing import Any, Callable, ContextManager, Optional

from forebay_proxy.wire.protocol.fd import MAX_LINE_BYTES, FdAnswer, InvalidFdAnswer, decode_answer, encode_end

__all__ = ["CONNECTIONS", "Broken", "Connections", "FdClient", "unforked"]

# The door answers from memory; it waits only to compare a shard with its origin, once a job, and to verify what another boot stored. Longer
# than this, HTTP does both better: it says what it waits for, and gives the first segment before the last is verified.
ANSWER_S = 10.0
LOOK_S = 3.0  # no answer for so long: is the sidecar there at all?
_READ_BYTES = 4096  # an answer has a hundred
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)  # Python does not set it on what comes this way
_INT = array("i").itemsize
_ROOM = socket.CMSG_SPACE(_INT)
_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class Broken(OSError):
    """A connection that was kept has ended meanwhile (the sidecar was restarted): another one may do."""


class FdClient:
    """One connection. ``ask``, then ``take``, are one thread's at a time; ``end`` anybody's, at any moment."""

    def __init__(self, path: str, connected: socket.socket) -> None:
        self.path = path
        self._used = False  # it has answered before
        self._numbers = count()
        self._socket = connected
        _OPEN.add(self)

    def __repr__(self) -> str:
        return f"<FdClient {self.path}{'' if self.is_open else ', closed'}>"

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def number(self) -> int:
        """For the next lease."""
        return next(self._numbers)

    def ask(self, line: bytes, turns: Callable[[], bool] = lambda: False) -> None:
        """Say ``line``; return when there is something to ``take``. Beyond ``LOOK_S`` it is waited for only while the sidecar ``turns``.

        Raises ``OSError`` (``socket.timeout``: no answer in time; ``Broken``); nothing is left open then.
        """
        try:
            sent = self._socket.send(line, socket.MSG_NOSIGNAL)
            if sent < len(line):
                self._socket.sendall(line[sent:])
            self._wait(turns)
        except BaseException as error:
            raise self._given_up(error) from None

    def _wait(self, turns: Callable[[], bool]) -> None:
        """All the waiting: a descriptor that comes with the answer stays where it is."""
        for _ in range(max(1, int(ANSWER_S / LOOK_S))):
            try:
                self._socket.recv(1, socket.MSG_PEEK)
                return
            except BlockingIOError:
                if not turns():
                    break
        raise socket.timeout("the door does not answer")

    def receive(self) -> tuple[FdAnswer, Optional[int]]:
        """What the door said, and the descriptor that came with it; within ``unforked``. Raises as ``ask``, and ``InvalidFdAnswer``."""
        try:
            answered = self._answer()
        except BaseException as error:
            raise self._given_up(error) from None
        self._used = True
        return answered

    def _given_up(self, error: BaseException) -> BaseException:
        """Closed; what is to be raised."""
        self.close()
        if isinstance(error, BlockingIOError):
            return socket.timeout("the door does not answer")
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            return (Broken if self._used else OSError)(*error.args)
        return error

    def _answer(self) -> tuple[FdAnswer, Optional[int]]:
        line, descriptors = b"", array("i")
        try:
            while not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
                data, ancillary, flags, _ = self._socket.recvmsg(_READ_BYTES, _ROOM, _CLOEXEC)
                for level, kind, content in ancillary:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        descriptors.frombytes(content[: len(content) - len(content) % _INT])
                if not data and self._used and not line:
                    raise ConnectionResetError("the door has closed since it was last asked")
                if not data:
                    raise InvalidFdAnswer("the door closed without a word")
                if flags & socket.MSG_CTRUNC:
                    raise InvalidFdAnswer("this process has no descriptor left for the one that came")
                line += data
            answer = decode_answer(line)
            if (answer.status == 200) != (len(descriptors) == 1):
                raise InvalidFdAnswer(f"{len(descriptors)} descriptors came with status {answer.status}")
            return answer, descriptors.pop() if descriptors else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def end(self, number: int) -> None:
        """That lease has ended. Never waits: where the line finds no room, because nobody reads there, all of them end."""
        try:
            line = encode_end(number)
            if self._socket.send(line, _NOW) < len(line):
                self.close()
        except OSError:  # the sidecar has gone already
            self.close()

    def close(self, _both: int = socket.SHUT_RDWR) -> None:  # bound here: at the interpreter's end this module's names may be gone
        """End all leases. ``shutdown`` first: a child that was forked without Python knowing holds a copy, and they would last as long."""
        try:  # noqa: SIM105 - that may be gone when the last connection is closed, at the process's end
            self._socket.shutdown(_both)
        except OSError:
            pass
        self._socket.close()

    def __del__(self) -> None:
        if self.is_open:
            self.close()

    def forked(self) -> None:
        """In a child: the connection is the parent's, and a shutdown would end its leases there; only our copy goes."""
        self._socket.close()


class Connections:
    """Connections that wait for the next question. Any number of threads: each takes one out, or makes one."""

    def __init__(self) -> None:
        self._idle: list[FdClient] = []  # append and pop are one step each

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, path: str) -> FdClient:
        """One that leads to ``path``. Raises ``OSError``."""
        with suppress(IndexError):  # none is left
            while True:
                kept = self._idle.pop()  # one that leads elsewhere closes itself when its last lease has ended
                if kept.path == path and kept.is_open:
                    return kept
        return FdClient(path, _connected(path))

    def put(self, asking: FdClient) -> None:
        """For the next question."""
        self._idle.append(asking)

    def clear(self) -> None:
        self._idle = []


def _connected(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel keeps the time: a timeout of Python's asks it twice for everything.
        interval = struct.pack("@ll", int(LOOK_S), int(LOOK_S % 1 * 1e6))
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        found.connect(path)
    except BlockingIOError:
        found.close()
        raise socket.timeout("the door lets nobody in") from None
    except BaseException:
        found.close()
        raise
    return found


class _Arriving:
    """Held from before a descriptor is received until its map is registered to be closed in a forked child. A child that another thread
    forked in between would keep both, and with them the kernel's lease, for as long as it lives.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.lock: Any = threading.RLock()  # a signal's handler may fork within it

    def wait(self) -> None:
        self.lock.acquire()

    def over(self) -> None:
        self.lock.release()


_ARRIVING = _Arriving()
_OPEN: weakref.WeakSet[FdClient] = weakref.WeakSet()
CONNECTIONS = Connections()


def unforked() -> ContextManager[Any]:
    """For a ``with`` in which nothing waits: until its end no other thread of this process forks."""
    lock: ContextManager[Any] = _ARRIVING.lock
    return lock


def _let_go() -> None:
    for inherited in list(_OPEN):
        inherited.forked()
    _OPEN.clear()
    CONNECTIONS.clear()


os.register_at_fork(after_in_child=_let_go)
os.register_at_fork(before=_ARRIVING.wait, after_in_parent=_ARRIVING.over, after_in_child=_ARRIVING.renew)
