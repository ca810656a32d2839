"""A complete shard from the sidecar as a descriptor: its bytes are read from the page cache, with no stream and no sidecar between.

They are read with ``pread`` into memory of ours, not through a map. A page that its disk cannot read, or that lies behind the end of a file
that shrank, is an ``OSError`` there; in a map it is SIGBUS, the end of the training process, and no check before helps: the kernel may drop
a page that was just read, and read it anew. It costs nothing: values are copied anyway, and a buffer that is used again stays in the
processor's cache, where a map's pages must each be entered into the page table (a walk over a tar is as fast or a fifth faster). Where
reading fails, the shard goes on over HTTP at that byte: the sidecar finds the damage there and mends it.

The sidecar's books have a lease until we end it, or our connection does; the kernel's lease (flock) goes with the descriptor and lasts
until the last copy of it is gone, in whatever process. So what is held stays right though the sidecar dies, restarts or wants the
room. Both end here with ``close()``, and a forked child lets go of what it inherited at once: its parent's would otherwise last as long as
a worker.
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
    """Raises ``OSError``: the file of a shard of ``size`` bytes ends at byte ``at``."""
    raise OSError(errno.EIO, f"the file ends at byte {at} of {size}")


GoOn = Callable[[Progress], Any]  # gives a stream of the rest of what was begun


class Descriptor(io.BufferedIOBase):
    """A whole shard in an open file, and the lease on it. Reads like a stream, and from any place.

    Close it when the shard is done; what was read stays. Not for two threads at once. In a forked child it is closed; reading it there
    raises ``ValueError``.
    """

    def __init__(
        self, asking: Optional[FdClient], number: int, file: int, answer: FdAnswer, name: str, go_on: Optional[GoOn] = None
    ) -> None:
        self.name = name
        self.in_parts = False  # what is read counts, else all of it was counted when it came
        self.etag = answer.etag
        self.size = answer.size
        self._asking = asking
        self._number = number
        self._file = file
        self._at = 0
        self._go_on = go_on
        self._rest: Any = None  # the stream that has taken over
        _HELD.add(self)

    def __repr__(self) -> str:
        how = ", closed" if self.closed else "" if self._rest is None else ", going on over HTTP"
        return f"<Descriptor {self.name} {self._at}/{self.size} bytes{how}>"

    def readable(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        """Whether an end that was met is certainly the shard's."""
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
        """The next bytes, into ``room``; 0 at the end."""
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
        """Go on at byte ``to`` if that can be had without reading; says where it goes on."""
        if self._rest is None:
            self._at = min(to, self.size)
        return self._at

    def into(self, room: Any, at: int) -> int:
        """Bytes from ``at``, into ``room``: how many, 0 at the end. Raises ``OSError`` where they cannot be read."""
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
        """``size`` bytes from ``at``, all of which the shard has. Raises ``OSError`` where they cannot be read."""
        return self.parts([(at, size)])[0]

    def parts(self, spans: Sequence[Tuple[int, int]]) -> List[bytes]:
        """The bytes of each of ``spans``, (where, how many); a sample's files. Raises ``OSError``. One wait for all: they lie together."""
        self._check_open()
        activity, file, found = here(), self._file, []
        activity.wait(DISK, self.name, spans[0][0] if spans else 0)
        try:
            for at, size in spans:
                data = os.pread(file, size, at)
                while len(data) < size:  # the kernel gives 2 GiB at most
                    data += os.pread(file, size - len(data), at + len(data)) or file_ends(at + len(data), self.size)
                found.append(data)
            if self.in_parts:
                COUNTS.add("bytes_proxy", sum(size for _, size in spans))
            return found
        finally:
            activity.over()

    def again(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at``, which lie before the present place: it stays. Raises as reading does."""
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
        """``size`` bytes from ``at``; None where reading on in order tells more: it is closed, or cannot be read."""
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
        """Go on over HTTP at byte ``at``, because of ``error``; raises that where nobody said how."""
        if self._go_on is None:
            self.give_up(at, error)
            raise error
        _tell(self.name, at, error)
        progress = Progress(at, _sum_before(self.into, at), self.size, self.etag)
        self._end()  # first: what is leased is not mended
        self._at = at
        self._rest = self._go_on(progress)

    def give_up(self, at: int, error: OSError) -> None:
        """Say that it cannot be read at byte ``at``, and close it."""
        _tell(self.name, at, error)
        self.close()

    def close(self) -> None:
        """End the lease, and let go of the file."""
        if not self.closed:
            self._end()
            if self._rest is not None:
                self._rest.close()
        super().close()

    def forked(self) -> None:
        """In a child: the lease is the parent's; only our copies go. A stream that has taken over is used on."""
        if self._file >= 0:
            self._asking = None
            self._drop()
            super().close()

    def _end(self) -> None:
        with unforked():  # a child that another thread forked while the file goes would keep it
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
    """The sum of what lies before ``at``, by which an origin that cannot go on there is held to this version."""
    found, start, room = new_sum(), 0, memoryview(bytearray(READ_BYTES))
    try:
        while start < at:
            got = into(room[: at - start], start)
            found.update(room[:got])
            start += got
    except OSError:  # gone as well: nothing can be compared with it
        return _NoSum()
    return found


class _NoSum:
    """Stands for a sum that is not known: equal to none."""

    def update(self, data: Any) -> None:
        pass

    def intdigest(self) -> int:
        return -1


# By identity: a file's hash is that already. Weak: one that is simply dropped closes itself.
_HELD: weakref.WeakSet[Descriptor] = weakref.WeakSet()


def _let_go() -> None:
    for held in list(_HELD):
        held.forked()
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)
