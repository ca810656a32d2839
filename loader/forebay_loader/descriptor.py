"""A complete shard from the sidecar as a descriptor, mapped: its bytes are the page cache's own, no copy and no stream between.

The sidecar's books have a lease until we end it, or our connection does; the kernel's lease (flock) goes with the descriptor and lasts
until the last map of it is gone, in whatever process. So a map stays right though the sidecar dies, restarts or wants the room. Both end
here with ``close()``, and a forked child lets go of what it inherited at once: its parent's would otherwise last as long as a worker.

Whatever goes wrong on the way (no door, another mount or pid namespace, an old sidecar, no descriptors left), the shard comes over HTTP.
"""

from __future__ import annotations

import io
import mmap
import os
import socket
import weakref
from typing import Optional

from forebay_loader.asking import CONNECTIONS, Asking, Broken, unforked
from forebay_loader.counts import COUNTS
from forebay_loader.doors import DOORS
from forebay_loader.instances import INSTANCES
from forebay_loader.ways import safe_headers, shown
from forebay_proxy.wire.door import Answer, InvalidAnswer, InvalidRequest, encode_request
from forebay_proxy.wire.urls import Source

__all__ = ["Mapped", "open_descriptor"]


def open_descriptor(source: Source, reader: str) -> Optional[Mapped]:
    """The shard, mapped, if the sidecar has all of it here; None: over HTTP. ``reader`` is ``job/rank/worker/opener``."""
    path = DOORS.path()
    if path is None:
        return None
    try:
        return _opened(path, source, reader)
    except InvalidRequest:
        return None  # a header that HTTP may be able to say
    except (OSError, InvalidAnswer, ValueError) as error:
        COUNTS.add("door_failed")
        DOORS.failed(path, timed_out=isinstance(error, socket.timeout))
        return None


def _opened(path: str, source: Source, reader: str) -> Optional[Mapped]:
    text, headers = source.url.text(), safe_headers(source)
    while True:
        asking = CONNECTIONS.take(path)
        number = asking.number()
        line = encode_request(text, reader, headers, number)
        try:
            asking.ask(line)
            with unforked():
                answer, descriptor = asking.take()
                opened = _held(asking, number, answer, descriptor, shown(source, text)) if descriptor is not None else None
            break
        except Broken:
            continue  # until one is made anew
    CONNECTIONS.put(asking)
    INSTANCES.heard(reader, answer.instance)
    if opened is not None:
        COUNTS.mapped(answer.size)
    return opened


def _held(asking: Asking, number: int, answer: Answer, descriptor: int, name: str) -> Mapped:
    """What came, mapped. ``descriptor`` is closed; where it cannot be mapped the lease is ended."""
    try:
        return Mapped(asking, number, _mapped(descriptor, answer.size), answer, name)
    except BaseException:
        asking.end(number)
        raise
    finally:
        os.close(descriptor)  # the map has its own


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    """Raises ``InvalidAnswer`` where the file is not as long as was said: reading a map beyond its file's end kills the process."""
    found = os.lseek(descriptor, 0, os.SEEK_END)  # as fstat, without an object of twenty fields
    if found != size:
        raise InvalidAnswer(f"a descriptor of {found} bytes came for a shard of {size}")
    return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)


class Mapped(io.BufferedIOBase):
    """A whole shard in memory, and the lease on it. ``view`` is all of its bytes, read-only; ``read`` gives copies, in order.

    Close it when the shard is done: what was copied out of it stays, slices of ``view`` keep the map alive as long as they live. Not for
    two threads at once. In a forked child it is closed; reading it there raises ``ValueError``.
    """

    def __init__(self, asking: Asking, number: int, held: mmap.mmap, answer: Answer, name: str) -> None:
        self.name = name
        self.etag = answer.etag
        self.size = answer.size
        self.view = memoryview(held)
        self._asking: Optional[Asking] = asking
        self._number = number
        self._at = 0
        _HELD.add(self)

    def __repr__(self) -> str:
        return f"<Mapped {self.name} {self._at}/{self.size} bytes{', closed' if self.closed else ''}>"

    def readable(self) -> bool:
        return True

    def read(self, size: Optional[int] = -1) -> bytes:
        start = self._at
        end = self.size if size is None or size < 0 else min(start + size, self.size)
        data = bytes(self.view[start:end])
        self._at = end
        return data

    def read1(self, size: int = -1) -> bytes:
        return self.read(size)

    def close(self) -> None:
        """End the lease and drop the map."""
        with unforked():  # a child that another thread forked while the map goes would keep it
            asking, self._asking = self._asking, None
            if asking is not None:
                _HELD.discard(self)
                self._drop()
        if asking is not None:
            asking.end(self._number)
        super().close()

    def forked(self) -> None:
        """In a child: the lease is the parent's; only our copy of the map goes."""
        if self._asking is not None:
            self._asking = None
            self._drop()
        super().close()

    def _drop(self) -> None:
        """The map itself goes with the last view of it: a decoder may still hold a slice."""
        try:
            self.view.release()
        except BufferError:  # somebody reads from it right now
            self.view = memoryview(b"")


# By identity: a file's hash is that already. Weak: one that is simply dropped closes itself.
_HELD: weakref.WeakSet[Mapped] = weakref.WeakSet()


def _let_go() -> None:
    for held in list(_HELD):
        held.forked()
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)
