"""The bytes of one answer, with an end that was checked: a short body is never a clean end.

Every way to bytes (the sidecar, the origin, webdataset's own opener) ends in something that reads like ``ShardBody``; ``Progress`` is what
has arrived over all of them.
"""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, Callable, Optional

__all__ = ["READ_BYTES", "Crc32", "Progress", "ShardBody", "Unanswered", "new_sum"]

_MAKERS: list[Callable[[], Any]] = []


class Crc32:
    """``zlib.crc32`` behind the interface of ``xxhash``."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any) -> None:
        self._value = zlib.crc32(data, self._value)

    def intdigest(self) -> int:
        return self._value


def new_sum() -> Any:
    """An empty sum: ``update(data)``, ``intdigest()``. All of one process are of one kind."""
    if not _MAKERS:
        _MAKERS.append(_fastest())
    return _MAKERS[0]()


def _fastest() -> Callable[[], Any]:
    try:
        from xxhash import xxh3_64  # noqa: PLC0415  # a find, never a need: other training environments lack it
    except ImportError:
        return Crc32
    return xxh3_64


READ_BYTES = 256 * 1024  # one system call moves what a socket buffer holds; four times as much was no faster, a quarter slower
TAR_END_BYTES = 1024  # two zero blocks


class Unanswered(Exception):
    """No answer, or only a part of one: asking again may help.

    ``silent``: connected, but no byte for the whole time limit; ``hung``: and found not to turn. ``retry_after_s``: the answer's own wish.
    ``reached``: it did answer.
    """

    def __init__(
        self, cause: str, *, silent: bool = False, hung: bool = False, reached: bool = False, retry_after_s: Optional[float] = None
    ) -> None:
        super().__init__(cause)
        self.silent = silent
        self.hung = hung
        self.reached = reached
        self.retry_after_s = retry_after_s


@dataclass
class Progress:
    """What has arrived of one shard: ``position`` bytes, and their ``sum``. ``length`` is None and ``etag`` "" while unknown."""

    position: int = 0
    sum: Any = field(default_factory=new_sum)
    length: Optional[int] = None
    etag: str = ""

    def arrived(self, data: Any) -> None:
        self.sum.update(data)
        self.position += len(data)

    @property
    def pinned(self) -> bool:
        """Whether an answer from the middle can be held to the version that delivered its beginning: it has a strong ETag."""
        return self.etag.startswith('"')

    @property
    def complete(self) -> bool:
        return self.position == self.length


class ShardBody:
    """Reads an HTTP response's body; the response's own framing decides where it ends.

    ``ended`` is called once, with True when the connection can carry another request. ``tar`` asks a body without any framing (delimited
    by the connection's close) to end with a tar archive's two zero blocks, since nothing else tells its end from a cut.
    """

    def __init__(self, response: HTTPResponse, ended: Callable[[bool], None], *, tar: bool = False) -> None:
        self._response = response
        self._ended: Optional[Callable[[bool], None]] = ended
        self._framed_by_close = not response.chunked and response.length is None
        self.left = response.length  # bytes; None when chunked or delimited by close
        self._tail: Optional[bytes] = b"" if tar and self._framed_by_close else None

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes as they come; b"" only at a checked end. Raises ``Unanswered`` where the body is cut."""
        if self._ended is None or self.left == 0:
            self._finish(reusable=True)
            return b""
        try:
            data = self._response.read1(size if self.left is None else min(size, self.left))
        except socket.timeout as error:
            raise Unanswered("no byte within the time limit", silent=True, reached=True) from error
        except (OSError, HTTPException, ValueError) as error:  # ValueError: closed under us by another thread
            raise Unanswered(f"cut off ({type(error).__name__})", reached=True) from error
        return self._checked(data)

    def readinto(self, room: memoryview) -> int:
        """As ``read``, straight into ``room``: how many bytes, 0 only at a checked end."""
        if self._ended is None or not self.left or self._response.fp is None:  # ended, or framed in a way that http.client reads
            data = self.read(len(room))
            room[: len(data)] = data
            return len(data)
        try:
            got = int(self._response.fp.readinto1(room[: self.left]))
        except socket.timeout as error:
            raise Unanswered("no byte within the time limit", silent=True, reached=True) from error
        except (OSError, ValueError) as error:
            raise Unanswered(f"cut off ({type(error).__name__})", reached=True) from error
        if not got:
            raise Unanswered(f"cut off {self.left} bytes before its end", reached=True)
        self.left -= got
        self._response.length = self.left
        return got

    def close(self) -> None:
        """Give the connection back if everything was read, else close it."""
        self._finish(reusable=self.left == 0)

    def _checked(self, data: bytes) -> bytes:
        if data:
            if self.left is not None:
                self.left -= len(data)
            if self._tail is not None:
                self._tail = (self._tail + data)[-TAR_END_BYTES:]
            return data
        if self.left:
            raise Unanswered(f"cut off {self.left} bytes before its end", reached=True)
        if self._tail is not None and self._tail != bytes(TAR_END_BYTES):
            raise Unanswered("cut off before the tar archive's end", reached=True)
        self._finish(reusable=True)
        return b""

    def _finish(self, *, reusable: bool) -> None:
        ended, self._ended = self._ended, None
        if ended is None:
            return
        reusable = reusable and not self._response.will_close
        self._response.close()
        ended(reusable)
