"""The three sources of a shard's bytes, in the order they are tried: the sidecar, the origin itself, webdataset's own opener.

``open(progress)`` returns a body that continues exactly where ``progress`` stands. It sets length and ETag if they were unknown. It raises
``Unanswered`` if asking again may help, ``NotTaken`` if only another source can help, and else ``ShardReadError``.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Protocol

from forebay_loader.base.activity import ORIGIN, UNTOLD
from forebay_loader.base.errors import ShardChanged, ShardReadError
from forebay_loader.base.timeouts import Limits
from forebay_loader.stream.restarted_body import Foreign, Skipping, foreign_failure
from forebay_loader.stream.shard_request import ask_shard, is_retryable, refusal, shown, waited_for
from forebay_loader.stream.wait_notices import say_wait
from forebay_loader.transport.body import Progress, ShardBody, Unanswered
from forebay_loader.transport.endpoint import INSTANCES
from forebay_loader.transport.http import Reply
from forebay_loader.transport.hung_sidecar import Bearing, turns
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ByteSource", "NotTaken", "OpenerSource", "SidecarSource", "place", "resume_headers"]

OwnOpener = Callable[[str], Any]
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)
_UNSATISFIED = re.compile(r"bytes \*/(\d+)", re.ASCII)


class NotTaken(Exception):
    """This source will never serve this shard, but the next one may. ``alike``: other shards of its scheme would fail in the same way."""

    def __init__(self, reason: str, *, alike: bool = False) -> None:
        super().__init__(reason)
        self.alike = alike


class ByteSource(Protocol):
    """One source of a shard's bytes.

    ``cause`` says what a wait for its bytes is a wait for. It is ``UNTOLD`` until the first answer.
    """

    name: str
    cause: int

    def open(self, progress: Progress) -> Any: ...

    def turns(self) -> bool:
        """Whether the other side is alive although it sends nothing."""
        ...


class SidecarSource:
    """The sidecar. Its address is looked up at each try: a restarted sidecar may have another one."""

    name = "sidecar"

    def __init__(self, source: Source, reader: str, limits: Limits, bearing: Bearing) -> None:
        self._source = source
        self._reader = reader
        self._shown = shown(source)
        self._limits = limits
        self._bearing = bearing
        self.cause = UNTOLD
        self._told = False  # the wait has been logged

    def open(self, progress: Progress) -> Any:
        self.cause = UNTOLD
        tell = None if self._told else self._tell
        try:
            reply = ask_shard(self._source, self._reader, resume_headers(progress), self._limits, tell=tell, bearing=self._bearing)
        except ValueError as error:
            raise ShardReadError(f"shard {self._shown}: a header of its command cannot be sent: {type(error).__name__}") from error
        except Unanswered as trouble:
            if trouble.reached:
                self.cause = ORIGIN  # the sidecar answered, and has waited for its origin
            raise
        INSTANCES.heard(self._reader, reply.header("Forebay-Instance"))
        self.cause = waited_for(reply)
        if reply.status in (200, 206):
            return place(reply.body, reply.status, reply.header, progress, self._shown)
        return self._refused(reply, progress)

    def turns(self) -> bool:
        return turns()

    def _tell(self, seconds: float, over: Callable[[], bool]) -> None:
        self._told = True
        say_wait(self._shown, self._reader, seconds, over)

    def _refused(self, reply: Reply, progress: Progress) -> Any:
        if reply.status == 416 and progress.position and _is_end(reply.header, progress):
            reply.explanation()
            progress.length = progress.position
            return reply.body  # at the end: no more bytes come
        text, scheme = refusal(reply), self._source.url.scheme
        if reply.status == 412 and progress.pinned:
            progress.etag = ""  # the bytes may be the same under another ETag: start at byte 0 and compare
            return self.open(progress)
        if reply.status in (412, 416) and progress.position:
            raise ShardChanged(f"shard {self._shown}: {text}", reply.status)
        if scheme == "file":  # the sidecar serves files only below a configured root; `cat` reads the others
            raise NotTaken(text, alike=reply.status != 404)  # other files may exist
        if scheme == "gs" and reply.status in (401, 403):  # gsutil may be logged in although Google's libraries are not
            raise NotTaken(text, alike=True)
        if is_retryable(reply.status):  # retryable by status, but the sidecar says retrying is useless: another source may help
            raise NotTaken(text)
        raise ShardReadError(f"shard {self._shown}: {text}", reply.status)


class OpenerSource:
    """webdataset's own opener. It always starts at byte 0."""

    name = "webdataset's own opener"
    cause = ORIGIN

    def __init__(self, source: Source, own_open: OwnOpener) -> None:
        self._text = source.text
        self._shown = shown(source)
        self._own_open = own_open

    def open(self, progress: Progress) -> Any:
        try:
            body = Foreign(self._own_open(self._text), self._shown)
        except Exception as error:  # a user's opener may raise anything
            raise foreign_failure(error, self._shown) from None
        return Skipping(body, progress, self._shown) if progress.position else body

    def turns(self) -> bool:
        return True


def resume_headers(progress: Progress) -> list[tuple[str, str]]:
    """Headers that ask for the rest of the version that delivered the beginning; empty if reading must start again at byte 0."""
    if progress.position and progress.pinned:
        return [("Range", f"bytes={progress.position}-"), ("If-Match", progress.etag)]
    return []


def place(body: ShardBody, status: int, header: Callable[[str], str], progress: Progress, name: str) -> Any:
    """Return ``body`` positioned where ``progress`` stands. It is checked against ``progress``, or starts at byte 0 and is compared with
    it.
    """
    try:
        return _placed(body, status, header, progress, name)
    except BaseException:
        body.close()
        raise


def _placed(body: ShardBody, status: int, header: Callable[[str], str], progress: Progress, name: str) -> Any:
    etag = header("ETag")
    if status == 206:
        _check_continues(etag, header("Content-Range"), progress, name)
        return body
    if not progress.position:
        progress.length, progress.etag = body.left, etag
        return body
    if progress.length is not None and body.left not in (None, progress.length):
        raise ShardChanged(f"shard {name}: is {body.left} bytes long now, was {progress.length}")
    return Skipping(body, progress, name, etag)


def _check_continues(etag: str, content_range: str, progress: Progress, name: str) -> None:
    found = _CONTENT_RANGE.fullmatch(content_range)
    if found is None or int(found[1]) != progress.position:
        raise ShardReadError(f"shard {name}: asked for bytes from {progress.position}, answered {content_range or 'without saying which'}")
    if etag != progress.etag:
        raise ShardChanged(f"shard {name}: was replaced while it was read ({progress.etag} became {etag or 'none'})")
    if found[3] == "*":
        return
    if progress.length not in (None, int(found[3])):
        raise ShardChanged(f"shard {name}: is {found[3]} bytes long now, was {progress.length}")
    progress.length = int(found[3])


def _is_end(header: Callable[[str], str], progress: Progress) -> bool:
    """Whether nothing is missing: the shard's length was unknown, and the connection broke after its last byte."""
    found = _UNSATISFIED.fullmatch(header("Content-Range"))
    return found is not None and int(found[1]) == progress.position and progress.length is None
