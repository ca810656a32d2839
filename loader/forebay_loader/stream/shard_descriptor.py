"""A whole shard of the cache as an open file: the worker reads it from the page cache, without asking the sidecar for each read.

The sidecar sends the file descriptor and grants a lease: the shard is not evicted meanwhile. The sidecar's lease lasts until the worker
ends it or its connection closes. The kernel's lease (flock) lasts until the last copy of the descriptor is closed, in any process. So the
bytes stay valid even if the sidecar dies, restarts or needs the space. ``close()`` ends both leases. A forked child closes its copy at
once. Otherwise the parent's lease would last as long as the child.

The file is read by ``pread`` into our own memory. ``mmap`` was rejected. If the disk cannot read a page, or the file has shrunk, ``pread``
raises ``OSError``, but a map raises SIGBUS and kills the training. ``pread`` is not slower: the values are copied anyway. If reading fails,
the rest of the shard comes over HTTP from that byte on. The sidecar then finds the damage and repairs it.
"""

from __future__ import annotations

import errno
import io
import os
import weakref
from typing import Any, Callable, List, NoReturn, Optional, Sequence, Tuple

from forebay_loader.base.activity import DISK, here
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.base.notices import warn_node
from forebay_loader.transport.body import READ_BYTES, Progress, new_sum
from forebay_loader.transport.fd_client import FdClient, unforked
from forebay_proxy.wire.protocol.fd import FdAnswer

__all__ = ["Descriptor", "GoOn"]


def file_ends(at: int, size: int) -> NoReturn:
    """Raise ``OSError``: the file of a shard of ``size`` bytes ends at byte ``at``."""
    raise OSError(errno.EIO, f"the file ends at byte {at} of {size}")


GoOn = Callable[[Progress], Any]  # returns a stream of the bytes after a Progress


class Descriptor(io.BufferedIOBase):
    """A whole shard as an open file, with its lease. Reads like a stream, or at any position.

    Close it when the shard is done. Bytes that were read stay valid. Not thread-safe. In a forked child it is closed, and reading raises
    ``ValueError``. If the file becomes unreadable, ``go_on`` returns a stream of the rest over HTTP.
    """

    def __init__(
        self, asking: Optional[FdClient], number: int, file: int, answer: FdAnswer, name: str, go_on: Optional[GoOn] = None
    ) -> None:
        self.name = name
        self.in_parts = False  # True: count the bytes that are read. False: all bytes were counted when it was opened
        self.etag = answer.etag
        self.size = answer.size
        self._asking = asking
        self._number = number
        self._file = file
        self._at = 0
        self._go_on = go_on
        self._rest: Any = None  # the HTTP stream that replaces the file
        _HELD.add(self)

    def __repr__(self) -> str:
        how = ", closed" if self.closed else "" if self._rest is None else ", going on over HTTP"
        return f"<Descriptor {self.name} {self._at}/{self.size} bytes{how}>"

    def readable(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        """Whether an end of file is certainly the end of the shard."""
        return self._rest is None or bool(self._rest.whole)

    def read(self, size: Optional[int] = -1) -> bytes:
        left = self.size if size is None or size < 0 else size
        if self._rest is None:
            start, wanted = self._at, min(left, self.size - self._at)
            try:
                data = self.at(start, wanted)
            except OSError as error:
                self.leave(start, error)
            else:
                self._at += wanted
                return data
        data = bytes(self._rest.read(left))
        self._at += len(data)
        return data

    def read1(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        return self.read(READ_BYTES if size < 0 else size)

    def readinto1(self, room: Any) -> int:
        """Read the next bytes into ``room``. Returns how many; 0 at the end."""
        if self._rest is None:
            try:
                got = self.into(room, self._at)
            except OSError as error:
                self.leave(self._at, error)
            else:
                self._at += got
                return got
        got = int(self._rest.readinto1(room))
        self._at += got
        return got

    def skip(self, to: int) -> int:
        """Move forward to byte ``to``, if that needs no reading. Returns the new position."""
        if self._rest is None:
            self._at = min(to, self.size)
        return self._at

    def into(self, room: Any, at: int) -> int:
        """Read bytes from ``at`` into ``room``. Returns how many; 0 at the end. Raises ``OSError`` if they cannot be read."""
        wanted = min(len(room), READ_BYTES, self.size - at)
        if wanted <= 0:
            return 0
        self._check_open()
        activity = here()
        activity.wait(DISK, self.name, at)
        try:
            got = os.preadv(self._file, [room[:wanted]], at) or file_ends(at, self.size)
            if self.in_parts:
                COUNTS.add("bytes_proxy", got)
            return got
        finally:
            activity.over()

    def at(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at``. The shard must have all of them. Raises ``OSError`` if they cannot be read."""
        return self.parts([(at, size)])[0]

    def parts(self, spans: Sequence[Tuple[int, int]]) -> List[bytes]:
        """Return the bytes of each of ``spans``, (offset, size), such as a sample's files. Raises ``OSError``.

        The meter counts one wait for all: they are close to each other.
        """
        self._check_open()
        activity, file, found = here(), self._file, []
        activity.wait(DISK, self.name, spans[0][0] if spans else 0)
        try:
            for at, size in spans:
                data = os.pread(file, size, at)
                while len(data) < size:  # the kernel returns at most 2 GiB
                    data += os.pread(file, size - len(data), at + len(data)) or file_ends(at + len(data), self.size)
                found.append(data)
            if self.in_parts:
                COUNTS.add("bytes_proxy", sum(size for _, size in spans))
            return found
        finally:
            activity.over()

    def again(self, at: int, size: int) -> bytes:
        """Return ``size`` bytes from ``at``, before the present position, which does not change. Raises the errors of reading."""
        if self._rest is None:
            try:
                return self.at(at, size)
            except OSError as error:
                self.leave(self._at, error)
        again = self._rest.again
        if again is None:
            raise ProxyUnreachable(f"shard {self.name}: bytes {at} to {at + size} cannot be read again past the sidecar")
        return bytes(again(at, size))

    def lone(self, at: int, size: int) -> Optional[bytes]:
        """Return ``size`` bytes from ``at``; None if the file is closed or unreadable. The caller then reads on in order, which reports the
        error.
        """
        try:
            data = os.pread(self._file, size, at)
            if len(data) < size:
                return self.at(at, size)
            if self.in_parts:
                COUNTS.add("bytes_proxy", size)
            return data
        except OSError:
            return None

    def leave(self, at: int, error: OSError) -> None:
        """Continue over HTTP at byte ``at``, because of ``error``. Raises ``error`` if there is no ``go_on``."""
        if self._go_on is None:
            self.give_up(at, error)
            raise error
        _tell(self.name, at, error)
        progress = Progress(at, _sum_before(self.into, at), self.size, self.etag)
        self._end()  # first: the sidecar does not repair a leased shard
        self._at = at
        self._rest = self._go_on(progress)

    def give_up(self, at: int, error: OSError) -> None:
        """Log that it cannot be read at byte ``at``, and close it."""
        _tell(self.name, at, error)
        self.close()

    def close(self) -> None:
        """End the lease, and close the file."""
        if not self.closed:
            self._end()
            if self._rest is not None:
                self._rest.close()
        super().close()

    def forked(self) -> None:
        """In a forked child: close our copy of the file, but leave the parent's lease. A stream over HTTP stays in use."""
        if self._file >= 0:
            self._asking = None
            self._drop()
            super().close()

    def _end(self) -> None:
        with unforked():  # a child forked by another thread during this would keep the file
            asking, self._asking = self._asking, None
            if self._file >= 0:
                _HELD.discard(self)
                self._drop()
        if asking is not None:
            asking.end(self._number)

    def _drop(self) -> None:
        file, self._file = self._file, -1
        os.close(file)

    def _check_open(self) -> None:
        if self._file < 0:
            raise ValueError(f"read of a closed shard: {self.name}")


def _tell(name: str, at: int, error: OSError) -> None:
    COUNTS.add("descriptor_failed")
    warn_node(
        f"{name}: byte {at} and what follows cannot be read from the cache's disk ({error.strerror or error}); from there it "
        "comes over HTTP. `forebay verify` finds what else is damaged"
    )


def _sum_before(into: Callable[[Any, int], int], at: int) -> Any:
    """The checksum of the bytes before ``at``. An origin that cannot continue at ``at`` must send the same bytes again."""
    found, start, room = new_sum(), 0, memoryview(bytearray(READ_BYTES))
    try:
        while start < at:
            got = into(room[: at - start], start)
            found.update(room[:got])
            start += got
    except OSError:  # these bytes are unreadable too: nothing to compare
        return _NoSum()
    return found


class _NoSum:
    """Stands in for an unknown checksum: it equals none."""

    def update(self, data: Any) -> None:
        pass

    def intdigest(self) -> int:
        return -1


# A set by identity, as files hash. Weak: an object that is garbage-collected closes itself.
_HELD: weakref.WeakSet[Descriptor] = weakref.WeakSet()


def _let_go() -> None:
    for held in list(_HELD):
        held.forked()
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)
