"""``forebay::https://host/a.tar``: an fsspec file system that reads through the sidecar, for programs that open by fsspec.

Chained in front of any URL of https, http, s3, gs or hf, or by itself: ``forebay://https/host/a.tar``, the sidecar's own path, which is
also the name of a file here. Reading alone, in ranges, each of the version that was opened and no other (``If-Match``). What is read
from the start on comes as one stream, which the sidecar fetches ahead of; ``announce`` tells it what will be opened next. Listings come
from the store itself, by the file system that fsspec has for it.

Without a sidecar the same file system reads instead, with a warning; while one hangs too, which is waited for where that fails.
"""

from __future__ import annotations

import weakref
from collections import deque
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Iterable, NamedTuple, NoReturn, Optional, TypeVar, Union
from urllib.parse import quote

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.notices import notice_once
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import CLAIMS, next_opener, reader_name
from forebay_loader.plan.plan_client import Coming, PlanClient
from forebay_loader.stream.range_reads import is_span, patiently
from forebay_loader.stream.shard_request import ask_shard, refusal, shown
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import find_endpoint, unnamed
from forebay_loader.transport.http import Reply
from forebay_loader.transport.hung_sidecar import Bearing
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import ShardUrl, parse_origin_url, parse_proxy_target

__all__ = ["ForebayFile", "ForebayFileSystem"]

try:
    from fsspec.implementations.chained import ChainedFileSystem
except ImportError:  # before 2025.9: its chaining hands in no path, and ``fo`` says what is meant
    ChainedFileSystem = AbstractFileSystem

PROTOCOL = "forebay"
SERVED = ("https", "http", "s3", "gs", "hf")
BLOCK_BYTES = 8 << 20  # a segment: what the sidecar fetches for any byte of it
T = TypeVar("T")


class _Version(NamedTuple):
    """A shard as the sidecar knows it now. ``length`` in bytes; ``modified`` as HTTP has it, "" where the origin told none."""

    etag: str
    length: int
    modified: str


class _Hanging(ProxyUnreachable):
    """The sidecar is there and does not turn: it may be worth waiting for."""


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
        self._fo = fo or ""
        self._limits = limits
        self._plan: Optional[_Plan] = None

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """The file's name here, whichever way it is written; of a chain's target without a scheme the path alone."""
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(stringify_path(path))
        for prefix in (f"{PROTOCOL}::", f"{PROTOCOL}://"):
            text = text[len(prefix) :] if text.startswith(prefix) else text
        scheme, separator, _ = text.partition("://")
        if separator and scheme.lower() in SERVED:
            return _name(_url(text))
        head, slash, _ = text.partition("/")
        return f"{PROTOCOL}://{text}" if slash and head in SERVED else text

    # What is there

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Name, size, ETag and mtime, as the sidecar has them of the origin."""
        return self._asked(path, self._info, lambda fs, target: {**fs.info(target, **options), "name": self._source(path)[0]})

    def _info(self, name: str, source: Source, alone: bool) -> dict[str, Any]:
        version = self._version(source, alone)
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
        """Names that match ``path``, by the target's own listing; one without ``*`` or ``[`` is itself, if it is there."""
        detail = options.pop("detail", False)
        if not any(mark in path for mark in "*["):
            names = [self._source(path)[0]] if self.exists(path) else []
        else:
            fs, target = self._behind(path)
            names = [self._named(fs, each) for each in fs.glob(target, maxdepth=maxdepth, **options)]
        return {name: self.info(name) for name in names} if detail else names

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """As the target lists it."""
        fs, target = self._behind(path)
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
            return ForebayFile(self, name, source, alone, block_size=size, cache_options=cache_options, **options)

        return self._asked(path, through, lambda fs, target: fs.open(target, mode))

    def cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **options: Any) -> bytes:
        """Bytes ``start`` to ``end`` (as in a slice) of one version."""

        def through(_: str, source: Source, alone: bool) -> bytes:
            reader = CLAIMS.opening(source.text)
            version = self._version(source, alone)
            begin, past, _step = slice(start, end).indices(version.length)
            pieces = range(begin, max(begin, past), BLOCK_BYTES)
            try:
                return b"".join(self._range(source, version, reader, at, min(BLOCK_BYTES, past - at), alone) for at in pieces)
            finally:
                self._opened(source)

        return self._asked(path, through, lambda fs, target: fs.cat_file(target, start, end, **options))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        """As any file system's; of several files the sidecar hears before the first is read."""
        if isinstance(path, list):
            self.announce(path)
        return super().cat(path, recursive=recursive, on_error=on_error, **options)

    def announce(self, paths: Iterable[str]) -> None:
        """Tell the sidecar that these files will be opened, in this order: it fetches them ahead. It replaces what was told before."""
        sources = [self._source(path)[1] for path in paths]
        if self._plan is not None:
            self._plan.leave()
        self._plan = _Plan(sources) if sources else None

    def _opened(self, source: Source) -> None:
        if self._plan is not None and self._plan.opened(source):
            self._plan = None

    # Asking

    def _asked(self, path: str, through: Callable[[str, Source, bool], T], past: Callable[[Any, Any], T]) -> T:
        """``through`` the sidecar; ``past`` it, by the target's own file system, where there is none, or one that does not answer."""
        name, source = self._source(path)
        if find_endpoint() is not None and not DEAD.known():
            return self._either(lambda alone: through(name, source, alone), lambda _: past(*self._behind(path)))
        why = unnamed() if find_endpoint() is None else "the sidecar does not answer"
        notice_once("fs-direct", f"fsspec reads past Forebay: {why}")
        return past(*self._behind(path))

    def _either(self, through: Callable[[bool], T], past: Callable[[ProxyUnreachable], T]) -> T:
        """``through`` the sidecar, else ``past`` it; where that fails, and the sidecar only hangs, ``through`` it with all patience."""
        try:
            return through(False)
        except ProxyUnreachable as error:
            why = error.with_traceback(None)
        if not isinstance(why, _Hanging):
            DEAD.found()
        notice_once("fs-direct", f"fsspec reads past Forebay: {why}")
        try:
            return past(why)
        except Exception as error:  # whatever a store's library raises, or that there is none
            if not isinstance(why, _Hanging):
                raise
            other = f"{type(error).__name__}: {error}"
        try:
            return through(True)
        except ProxyUnreachable as error:
            raise ProxyUnreachable(f"{error}; past the sidecar: {other}") from None

    def _source(self, path: str) -> tuple[str, Source]:
        """The name of ``path`` here, and what it is of. Raises ``ValueError`` for what no shard can be named by."""
        name = self._strip_protocol(path) or self._strip_protocol(self._fo)
        if not name.startswith(f"{PROTOCOL}://"):
            name = self._strip_protocol(f"{self.target_protocol}://{name.lstrip('/')}")
        if not name.startswith(f"{PROTOCOL}://"):
            raise ValueError(f"{path}: Forebay reads {', '.join(SERVED)}; write forebay::https://host/a.tar")
        try:
            url = parse_proxy_target(name[len(PROTOCOL) + 2 :])
            return name, Source(self._with_options(url), self._headers(url.scheme), name)
        except InvalidShardUrl as error:
            raise ValueError(f"{path}: {error}") from error

    def _headers(self, scheme: str) -> tuple[tuple[str, str], ...]:
        """The credential among the target's options; it goes to its host by way of the sidecar."""
        options = self.target_options
        if scheme in ("http", "https"):
            given = {**(options.get("headers") or {}), **((options.get("client_kwargs") or {}).get("headers") or {})}
            return tuple((str(name), str(value)) for name, value in given.items())
        token = options.get("token")
        return (("Authorization", f"Bearer {token}"),) if scheme == "hf" and isinstance(token, str) else ()

    def _with_options(self, url: ShardUrl) -> ShardUrl:
        if url.scheme != "s3" or url.query:
            return url
        given = self.target_options
        endpoint = given.get("endpoint_url") or (given.get("client_kwargs") or {}).get("endpoint_url")
        said = {"endpoint": endpoint, "unsigned": "1" if given.get("anon") else None, "profile": given.get("profile")}
        query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in said.items() if value)
        if any(given.get(name) for name in ("key", "secret", "token")):
            notice_once("fs-keys", "keys in s3 options are not used: the sidecar signs with its own, as AWS_PROFILE and the like name them")
        return parse_proxy_target(f"{url.proxy_path()}?{query}") if query else url

    def _behind(self, path: str) -> tuple[Any, str]:
        """The file system that fsspec has for the store, and the path in it."""
        url = parse_proxy_target(self._source(path)[0][len(PROTOCOL) + 2 :])
        options = self.target_options if self.target_protocol in (url.scheme, None) else {}
        fs = fsspec.filesystem(url.scheme, **options)
        return fs, fs._strip_protocol(url.text())

    def _named(self, fs: Any, target: str) -> str:
        return str(self._strip_protocol(fs.unstrip_protocol(target)))

    def _version(self, source: Source, alone: bool) -> _Version:
        def asked(bearing: Bearing) -> _Version:
            reply = ask_shard(
                source, reader_name(), [], self._limits, method="HEAD", bearing=bearing
            )  # a look: whoever announced it opens it once, by its bytes
            reply.body.close()
            if reply.status != 200:
                _refused(source, reply)
            length = reply.header("Content-Length")
            if not length.isdigit():
                raise ShardReadError(f"shard {shown(source)}: its origin tells no length, without which fsspec cannot seek in it")
            return _Version(reply.header("ETag"), int(length), reply.header("Last-Modified"))

        return self._patiently(source, self._limits.open_s, asked, alone)

    def _range(self, source: Source, version: _Version, reader: str, first: int, size: int, alone: bool) -> bytes:
        def asked(bearing: Bearing) -> bytes:
            reply = self._begun(source, version, reader, first, first + size - 1, bearing)
            return reply.content(size)

        return self._patiently(source, self._limits.resume_s, asked, alone) if size else b""

    def _begun(self, source: Source, version: _Version, reader: str, first: int, last: int, bearing: Optional[Bearing] = None) -> Reply:
        """The answer that brings bytes ``first`` to ``last`` of that very version."""
        reply = ask_shard(source, reader, [("Range", f"bytes={first}-{last}"), ("If-Match", version.etag)], self._limits, bearing=bearing)
        if reply.status != 206:
            _refused(source, reply)
        if not is_span(reply, first, last) or reply.header("ETag") != version.etag:
            reply.body.close()
            answered = reply.header("Content-Range") or "others"
            raise ShardChanged(f"shard {shown(source)}: asked for bytes {first}-{last}, answered {answered}")
        return reply

    def _patiently(self, source: Source, within_s: float, asked: Callable[[Bearing], T], alone: bool) -> T:
        """``asked``, again until ``within_s`` have passed since the first trouble. Raises ``ProxyUnreachable`` then."""
        try:
            return patiently(shown(source), self._limits, within_s, asked, alone=alone)
        except Unanswered as trouble:
            COUNTS.add("failed")
            # Its origin's trouble would be everybody's.
            kind = _Hanging if trouble.hung else ShardReadError if trouble.reached else ProxyUnreachable
            raise kind(f"shard {shown(source)}: {trouble}") from None


class ForebayFile(AbstractBufferedFile):
    """One version of a shard, open for reading. From its start, and from wherever it goes on in order, it is read as one stream."""

    def __init__(self, fs: ForebayFileSystem, name: str, source: Source, alone: bool, **options: Any) -> None:
        self._source = source
        self._reader = CLAIMS.opening(source.text)
        self._version = fs._version(source, alone)
        self._stream: Optional[Reply] = None
        self._at = 0  # where the last piece ended
        super().__init__(fs, name, "rb", size=self._version.length, **options)
        self.details = {"name": name, "size": self.size, "type": "file", "ETag": self._version.etag}

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
        if at < end:  # in order no more, or broken off: what is missing, and a stream again from there on
            parts.append(self._read(at, end - at))
        self._at = end
        COUNTS.add("bytes_proxy", end - start)
        return b"".join(parts)

    def _pieces(self, start: int, end: int) -> Iterable[bytes]:
        if start != self._at:
            self._leave_stream()
            return
        if self._stream is None:
            self._stream = self.fs._begun(self._source, self._version, self._reader, start, self.size - 1)
        left = end - start
        while left and (data := self._stream.body.read(left)):
            left -= len(data)
            yield data
        if end == self.size:
            self._leave_stream()

    def _read(self, first: int, size: int) -> bytes:
        """One range by itself; past the sidecar where that is gone for good, if the store has the very same version."""

        def through(alone: bool) -> bytes:
            return bytes(self.fs._range(self._source, self._version, self._reader, first, size, alone))

        def past(why: ProxyUnreachable) -> bytes:
            fs, target = self.fs._behind(self.path)
            there = fs.info(target)
            if there.get("ETag") != self._version.etag or there.get("size") != self.size:
                raise ProxyUnreachable(f"{why}; its store has another version by now, or does not say which")
            data = bytes(fs.cat_file(target, first, first + size))
            if len(data) != size:
                raise ShardReadError(f"shard {shown(self._source)}: {len(data)} of {size} bytes came from its store")
            return data

        return self.fs._either(through, past)

    def close(self) -> None:
        """Leave the shard."""
        if not self.closed:
            self._leave_stream()
            self.fs._opened(self._source)
        super().close()

    def _leave_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.body.close()


class _Plan:
    """What was announced, until the last of it has been read."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._name = reader_name(next_opener())
        self._waiting = waiting = deque(sources)
        self._count = count = len(waiting)
        for source in waiting:
            CLAIMS.announce(source.text, self._name)
        announcer = self._announcer = PlanClient(self._name, lambda: Coming(count - len(waiting), list(waiting)))
        self._end = weakref.finalize(self, announcer.withdraw)
        announcer.announce(Coming(0, list(waiting)))

    def opened(self, source: Source) -> bool:
        """``source`` has been read; whether that was the last."""
        if source in self._waiting:
            self._waiting.remove(source)
        if not self._waiting:
            self.leave()
        return not self._waiting

    def leave(self) -> None:
        """Withdraw what is unread."""
        for source in self._waiting:
            CLAIMS.forget(source.text, self._name)
        self._end()


def _url(text: str) -> ShardUrl:
    try:
        return parse_origin_url(text)
    except InvalidShardUrl as error:
        raise ValueError(str(error)) from error


def _name(url: ShardUrl) -> str:
    return f"{PROTOCOL}:/{url.proxy_path()}"


def _refused(source: Source, reply: Reply) -> NoReturn:
    """Raises what a status means to who opens files."""
    text = f"shard {shown(source)}: {refusal(reply)}"
    if reply.status in (404, 410):
        raise FileNotFoundError(text)
    if reply.status in (401, 403):
        raise PermissionError(text)
    if reply.status in (412, 416):
        raise ShardChanged(text, reply.status)
    raise ShardReadError(text, reply.status)
