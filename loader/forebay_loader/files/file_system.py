"""``forebay::https://host/a.tar``: an fsspec file system that reads through the sidecar, for programs that open by fsspec.

Chained in front of any URL of https, http, s3, gs or hf, or by itself: ``forebay://https/host/a.tar``, the sidecar's own path, which is
also the name of a file here. Reading alone, in ranges, each of the version that was opened and no other (``If-Match``). What is read
from the start on comes as one stream, which the sidecar fetches ahead of; ``announce`` tells it what will be opened next. Listings come
from the store itself, by the file system that fsspec has for it.

Without a sidecar the same file system reads instead, with a warning; while one hangs too, which is waited for where that fails.
"""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Iterable, Optional, TypeVar, Union

from fsspec.spec import AbstractFileSystem

from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.files.announced_files import AnnouncedFiles
from forebay_loader.files.either_way import either, is_there, say_past
from forebay_loader.files.pinned_reads import PinnedReads
from forebay_loader.files.shard_file import ForebayFile
from forebay_loader.files.target import PROTOCOL, Target, file_name
from forebay_loader.identity.reader_name import CLAIMS
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ForebayFileSystem"]

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
        self._reads = PinnedReads(limits)
        self._plan: Optional[AnnouncedFiles] = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return file_name(path)

    # What is there

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size, ETag and mtime, as the sidecar has them of the origin."""
        return self._asked(path, self._info, lambda fs, target: {**fs.info(target, **options), "name": self._target.source(path)[0]})

    def _info(self, name: str, source: Source, alone: bool) -> dict[str, Any]:
        version = self._reads.version(source, alone)
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

        def through(name: str, source: Source, alone: bool) -> ForebayFile:
            return ForebayFile(
                self, self._reads, self._target, name, source, alone, block_size=size, cache_options=cache_options, **options
            )

        return self._asked(path, through, lambda fs, target: fs.open(target, mode))

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **options: Any) -> bytes:
        """Bytes ``start`` to ``end`` (as in a slice) of one version."""

        def through(_: str, source: Source, alone: bool) -> bytes:
            reader = CLAIMS.opening(source.text)
            version = self._reads.version(source, alone)
            begin, past, _step = slice(start, end).indices(version.length)
            pieces = range(begin, max(begin, past), BLOCK_BYTES)
            try:
                return b"".join(self._reads.range(source, version, reader, at, min(BLOCK_BYTES, past - at), alone) for at in pieces)
            finally:
                self.opened(source)

        return self._asked(path, through, lambda fs, target: fs.cat_file(target, start, end, **options))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        """As any file system's; of several files the sidecar hears before the first is read."""
        if isinstance(path, list):
            self.announce(path)
        return super().cat(path, recursive=recursive, on_error=on_error, **options)

    def announce(self, paths: Iterable[str]) -> None:
        """Tell the sidecar that these files will be opened, in this order: it fetches them ahead. It replaces what was told before."""
        sources = [self._target.source(path)[1] for path in paths]
        if self._plan is not None:
            self._plan.leave()
        self._plan = AnnouncedFiles(sources) if sources else None

    def opened(self, source: Source) -> None:
        """A file of it has been read: what was announced goes on behind it."""
        if self._plan is not None and self._plan.opened(source):
            self._plan = None

    def _asked(self, path: str, through: Callable[[str, Source, bool], T], past: Callable[[Any, Any], T]) -> T:
        """Call ``through`` for the sidecar; where no sidecar runs or answers, call ``past`` for the target's own file system."""
        name, source = self._target.source(path)
        if is_there():
            return either(lambda alone: through(name, source, alone), lambda _: past(*self._target.store(path)))
        say_past()
        return past(*self._target.store(path))

    def _named(self, fs: Any, target: str) -> str:
        return str(file_name(fs.unstrip_protocol(target)))
