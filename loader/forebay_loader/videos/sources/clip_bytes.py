"""The bytes of one clip, wherever they are: in memory, in a file, in a shard or object that comes through the sidecar."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Protocol, Sequence, Tuple

from forebay_loader.base.errors import ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import CLAIMS
from forebay_loader.samples.index_client import source_in
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.stream.range_reads import SPANS_AT_ONCE, ShardVersion, are_sparse, read_range, shard_version
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_request import shown

if TYPE_CHECKING:
    from forebay_loader.videos.decode.frames import Buffer  # PyAV, which who only lists clips needs not

__all__ = ["ClipBytes", "FileClip", "MemberClip", "MemoryClip", "ObjectClip"]

Spans = Sequence[Tuple[int, int]]  # (offset, end) each, ascending, apart from each other


class ClipBytes(Protocol):
    """``name`` and ``shard`` are what errors say; neither holds a token. It pickles closed."""

    name: str
    shard: str

    def open(self) -> int:
        """How many bytes the clip has."""
        ...

    def read(self, at: int, size: int) -> Buffer:
        """``size`` bytes from ``at``, fewer only at the end."""
        ...

    def expect(self, spans: Spans) -> int:
        """These are read next, and no others before it is told anew. How many of them to ask for at a time: 1 where they are here, else
        ``read`` may be called in that many threads."""
        ...

    def version(self) -> str:
        """What tells its bytes from others under its name, asked anew; "" where the bytes themselves are given."""
        ...

    def close(self) -> None: ...


class MemoryClip:
    """All of a clip in memory."""

    def __init__(self, data: Buffer, name: str = "", shard: str = "") -> None:
        self.name, self.shard = name, shard
        self._data = data

    @property
    def data(self) -> Buffer:
        return self._data

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_data": bytes(self._data)}  # a view of a map cannot travel

    def open(self) -> int:
        return len(self._data)

    def read(self, at: int, size: int) -> Buffer:
        return memoryview(self._data)[at : at + size]

    def expect(self, spans: Spans) -> int:
        """All of it is here."""
        return 1

    def version(self) -> str:
        return ""

    def close(self) -> None:
        """Nothing is open."""


class MemberClip:
    """A member of a sample that is read part by part: ``read(at, size)`` gives bytes of the member, which has ``size``."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        name: str = "",
        shard: str = "",
        expect: Optional[Callable[[Spans], int]] = None,
        known: Tuple[Any, ...] = ("", ""),
        here: bool = False,
    ) -> None:
        """``expect``: is told as this is. ``known``, ``here``: as those of ``ObjectClip``."""
        self.name, self.shard = name, shard
        self.known, self.here = known, here
        self._read, self._size = read, size
        self._expect = expect

    def open(self) -> int:
        return self._size

    def read(self, at: int, size: int) -> Buffer:
        size = min(size, self._size - at)
        return self._read(at, size) if size > 0 else b""

    def expect(self, spans: Spans) -> int:
        return 1 if self._expect is None else self._expect(spans)

    def version(self) -> str:
        return ""

    def close(self) -> None:
        """What reads it belongs to its shard."""


class FileClip:
    """A file of this machine: read with ``pread``, because a map of a file that shrinks, or that its disk cannot read, ends the process.

    ``open`` raises ``OSError`` with the path for what is no file: a directory, or a pipe, for whose writer nobody would wait.
    """

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self.name, self.shard = os.path.basename(self.path), ""
        self._file = -1

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_file": -1}

    def __del__(self) -> None:
        self.close()

    def open(self) -> int:
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(number, os.strerror(number), self.path)
        return found.st_size

    @property
    def opened(self) -> Tuple[int, int, int, int]:
        """The version of the open file: another one where it was written anew. Who writes may set back its time, but not that of its
        last change."""
        state = os.fstat(self._file)
        return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns

    def read(self, at: int, size: int) -> Buffer:
        data = os.pread(self._file, size, at)
        while len(data) < size and (more := os.pread(self._file, size - len(data), at + len(data))):  # 2 GiB at most come at once
            data += more
        return data

    def expect(self, spans: Spans) -> int:
        """All of it is here."""
        return 1

    def version(self) -> str:
        found = os.stat(self.path)
        return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class ObjectClip:
    """An object that the sidecar reads: from its file where all of it is here (a leased descriptor), else by ranges of one version.

    ``url`` as ``fb.WebDataset`` takes it, of one object. Whoever announced it (``fb.ahead``) has opened it then. Raises ``ShardReadError``
    where the sidecar does not read it.
    """

    def __init__(self, url: str, limits: Limits = DEFAULT_LIMITS) -> None:
        found = source_in(url)
        if found is None:
            raise ShardReadError("only what the sidecar reads can be read by ranges; this URL or command is left to webdataset")
        self.name, self.shard = shown(found), ""
        self.url = url  # it may hold a token
        self._source, self._limits = found, limits
        self._opened: Optional[Descriptor] = None
        self._version: Optional[ShardVersion] = None
        self._sparse: Optional[bool] = None  # of what was said to be read next; None: nothing was
        self._reader = ""

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_version": None, "_sparse": None, "_reader": ""}

    def open(self) -> int:
        if self._version is not None:
            return self._version.length
        if self._opened is None:
            self._reader = CLAIMS.opening(self._source.text)
            self._opened = open_descriptor(self._source, self._reader, parts=True)
        if self._opened is not None:
            return self._opened.size
        self._version = shard_version(self._source, self._limits)
        return self._version.length

    @property
    def etag(self) -> str:
        """Of the version that is open; "" while none is."""
        found = self._opened or self._version
        return "" if found is None else found.etag

    @property
    def known(self) -> Tuple[Any, ...]:
        """What tells the bytes that are open from all others, beside their number: the URL, with what may be a signature, the ETag, and of
        a part where it begins."""
        return self._source.url.text(), self.etag

    @property
    def here(self) -> bool:
        """Whether all of it is, as a file."""
        return self._opened is not None and not self._opened.closed

    def read(self, at: int, size: int) -> Buffer:
        opened = self._opened
        if opened is not None and not opened.closed:
            try:
                return opened.at(at, max(0, min(size, opened.size - at)))
            except OSError as error:
                opened.give_up(at, error)
        version = self._version
        if version is None:  # given up, or closed by a fork: the lease is the parent's. The same version goes on by ranges
            assert opened is not None
            version = self._version = ShardVersion(opened.etag, opened.size)
        size = max(0, min(size, version.length - at))
        sparse = are_sparse([(at, at + size)], version.length) if self._sparse is None else self._sparse
        return read_range(self._source, at, size, version.etag, self._limits, sparse=sparse, reader=self._reader)

    def expect(self, spans: Spans) -> int:
        self._sparse = are_sparse(spans, self.open())
        return SPANS_AT_ONCE if self._version is not None else 1

    def version(self) -> str:
        return shard_version(self._source, self._limits).etag

    def close(self) -> None:
        opened, self._opened, self._version, self._sparse = self._opened, None, None, None
        if opened is not None:
            opened.close()
