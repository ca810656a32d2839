"""``forebay::https://host/a.tar``: an fsspec file system that reads through the sidecar, for programs that open by fsspec.

Chained in front of any URL of https, http, s3, gs or hf, or by itself: ``forebay://https/host/a.tar``, the sidecar's own path, which is
also the name of a file here. Reading alone, in ranges, each of the version that was opened and no other (``If-Match``). What is read
from the start on comes as one stream, which the sidecar fetches ahead of. Listings come from the store itself, by the file system that
fsspec has for it. Where no sidecar is, or one stays away, the same file system reads instead, with a warning.
"""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Iterable, NoReturn, Optional, TypeVar, Union

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable, ShardReadError
from forebay_loader.base.notices import notice_once
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.files.target import PROTOCOL, Target, file_name
from forebay_loader.stream.range_reads import open_range, read_range, shard_version
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import find_endpoint, unnamed
from forebay_loader.transport.http import Reply
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ForebayFile", "ForebayFileSystem"]

try:
    from fsspec.implementations.chained import ChainedFileSystem
except ImportError:  # before 2025.9: its chaining hands in no path, and ``fo`` says what is meant
    ChainedFileSystem = AbstractFileSystem

BLOCK_BYTES = 8 << 20  # a segment: what the sidecar fetches for any byte of it
T = TypeVar("T")


class ForebayFileSystem(ChainedFileSystem):
    """Reads what ``target_protocol`` and ``target_options`` name, as fsspec's chaining hands them in, through the sidecar.

    ``target_options``: those of the file system behind, which is asked for listings, and for bytes where no sidecar is. Of them the sidecar
    heeds an http ``headers``, an hf ``token``, and for s3 ``endpoint_url``, ``anon`` and ``profile``; it has credentials of its own.
    """

    protocol = PROTOCOL
    cachable = False  # chaining makes one for each URL, and each would be kept for ever
    root_marker = ""

    def __init__(
        self,
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        fo: Optional[str] = None,
        limits: Limits = DEFAULT_LIMITS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.target_protocol = target_protocol
        self.target_options = dict(target_options or {})
        self._target = Target(target_protocol, self.target_options, fo or "")
        self._limits = limits

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return file_name(path)

    # What is there

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size, ETag and mtime, as the sidecar has them of the origin."""
        return self._asked(path, self._info, lambda fs, target: {**fs.info(target, **options), "name": self._target.source(path)[0]})

    def _info(self, name: str, source: Source) -> dict[str, Any]:
        version = shard_version(source, self._limits)
        found: dict[str, Any] = {"name": name, "size": version.length, "type": "file", "ETag": version.etag}
        if version.modified:
            found.update(LastModified=version.modified, mtime=parsedate_to_datetime(version.modified).timestamp())
        return found

    def modified(self, path: str) -> datetime:
        """The origin's Last-Modified. Raises ``NotImplementedError`` where it tells none."""
        mtime = self.info(path).get("mtime")
        if mtime is None:
            raise NotImplementedError(f"the origin of {path} tells no Last-Modified")
        return datetime.fromtimestamp(mtime, timezone.utc)

    def exists(self, path: str, **options: Any) -> bool:
        """Whether it can be read; other trouble than its absence is raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """As ``exists``: the sidecar knows no folders."""
        return self.exists(path)

    def isdir(self, path: str) -> bool:
        """Never: the sidecar knows no folders."""
        return False

    def glob(self, path: str, maxdepth: Optional[int] = None, **options: Any) -> Any:
        """Names that match ``path``, by the target's own listing; a path without ``*`` or ``[`` matches itself, if the file exists."""
        detail = options.pop("detail", False)
        if not any(mark in path for mark in "*["):
            names = [self._target.source(path)[0]] if self.exists(path) else []
        else:
            fs, target = self._target.store(path)
            names = [self._named(fs, each) for each in fs.glob(target, maxdepth=maxdepth, **options)]
        return {name: self.info(name) for name in names} if detail else names

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """As the target lists it."""
        fs, target = self._target.store(path)
        found = fs.ls(target, detail=True, **options)
        renamed = [{**each, "name": self._named(fs, each["name"])} for each in found]
        return renamed if detail else [each["name"] for each in renamed]

    # Bytes

    def _open(
        self, path: str, mode: str = "rb", block_size: Union[int, str, None] = None, autocommit: bool = True, cache_options: Any = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        if mode != "rb":
            raise NotImplementedError(f"Forebay only reads: mode {mode!r}")
        size = block_size if isinstance(block_size, int) and block_size > 0 else BLOCK_BYTES

        def through(name: str, source: Source) -> ForebayFile:
            return ForebayFile(self, name, source, self._limits, block_size=size, cache_options=cache_options, **options)

        return self._asked(path, through, lambda fs, target: fs.open(target, mode))

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **options: Any) -> bytes:
        """Bytes ``start`` to ``end`` (as in a slice) of one version."""

        def through(_: str, source: Source) -> bytes:
            version = shard_version(source, self._limits)
            begin, past, _step = slice(start, end).indices(version.length)
            pieces = range(begin, max(begin, past), BLOCK_BYTES)
            return b"".join(read_range(source, at, min(BLOCK_BYTES, past - at), version.etag, self._limits) for at in pieces)

        return self._asked(path, through, lambda fs, target: fs.cat_file(target, start, end, **options))

    def past(self, path: str, etag: str, first: int, size: int, length: int) -> bytes:
        """Bytes of the version ``etag`` from the store itself. Raises ``ProxyUnreachable`` where the store has another."""
        fs, target = self._target.store(path)
        there = fs.info(target)
        if there.get("ETag") != etag or there.get("size") != length:
            raise ProxyUnreachable("its store has another version by now, or does not say which")
        data = bytes(fs.cat_file(target, first, first + size))
        if len(data) != size:
            raise ShardReadError(f"{path}: {len(data)} of {size} bytes came from its store")
        return data

    def _asked(self, path: str, through: Callable[[str, Source], T], past: Callable[[Any, Any], T]) -> T:
        """Call ``through`` for the sidecar; where no sidecar runs or answers, call ``past`` for the target's own file system."""
        name, source = self._target.source(path)
        if find_endpoint() is None:
            say_past(unnamed())
        elif DEAD.known():
            say_past("the sidecar does not answer")
        else:
            try:
                return through(name, source)
            except ProxyUnreachable as error:
                say_past(error)
                DEAD.found()
            except ShardReadError as error:
                _raise_as_of_files(error)
        return past(*self._target.store(path))

    def _named(self, fs: Any, target: str) -> str:
        return str(file_name(fs.unstrip_protocol(target)))


class ForebayFile(AbstractBufferedFile):
    """One version of a shard, open for reading. Reads in order, from the start or from another place, share one stream."""

    def __init__(self, fs: ForebayFileSystem, name: str, source: Source, limits: Limits, **options: Any) -> None:
        self._source = source
        self._limits = limits
        self._etag, length, _ = shard_version(source, limits)
        self._stream: Optional[Reply] = None
        self._at = 0  # where the last piece ended
        super().__init__(fs, name, "rb", size=length, **options)
        self.details = {"name": name, "size": self.size, "type": "file", "ETag": self._etag}

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, exclusive. Raises ``OSError``."""
        end = min(end, self.size)
        if end <= start:
            return b""
        parts, at = [], start
        try:
            for piece in self._pieces(start, end):
                parts.append(piece)
                at += len(piece)
        except Unanswered:
            self._leave_stream()
        except BaseException:
            self._leave_stream()
            raise
        COUNTS.add("bytes_proxy", at - start)
        if at < end:  # in order no more, or broken off: what is missing, and a stream again from there on
            parts.append(self._read(at, end - at))
        self._at = end
        return b"".join(parts)

    def _pieces(self, start: int, end: int) -> Iterable[bytes]:
        if start != self._at:
            self._leave_stream()
            return
        if self._stream is None:
            self._stream = open_range(self._source, start, self.size - start, self._etag, self._limits)
        left = end - start
        while left and (data := self._stream.body.read(left)):
            left -= len(data)
            yield data
        if end == self.size:
            self._leave_stream()

    def _read(self, first: int, size: int) -> bytes:
        """One range by itself; past the sidecar where that is gone for good, if the store has the very same version."""
        try:
            return read_range(self._source, first, size, self._etag, self._limits)
        except ProxyUnreachable as error:
            say_past(error)
            DEAD.found()
            why = f"{error}; past the sidecar"
        try:
            return bytes(self.fs.past(self.path, self._etag, first, size, self.size))
        except Exception as error:  # whatever a store's library raises, or that there is none
            raise ProxyUnreachable(f"{why}: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Leave the shard."""
        if not self.closed:
            self._leave_stream()
        super().close()

    def _leave_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.body.close()


def say_past(why: object) -> None:
    """Say once that fsspec's own file system reads."""
    notice_once("fs-direct", f"fsspec reads past Forebay: {why}")


def _raise_as_of_files(error: ShardReadError) -> NoReturn:
    """Raises what a status means to who opens files."""
    if error.status in (404, 410):
        raise FileNotFoundError(str(error)) from error
    if error.status in (401, 403):
        raise PermissionError(str(error)) from error
    raise error
