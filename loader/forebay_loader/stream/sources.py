"""The three ways to a shard's bytes, in the order they are tried: the sidecar, the origin itself, webdataset's own opener.

``way.open(progress)`` gives a body that goes on exactly where ``progress`` stands, and fills in length and ETag when they are still
unknown. It raises ``Unanswered`` where asking again may help, ``NotTaken`` where only another way can, ``ShardReadError`` otherwise.
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
    """This way leads nowhere for this shard, whatever the time; the next one may. ``alike``: so it would be for others of its scheme."""

    def __init__(self, reason: str, *, alike: bool = False) -> None:
        super().__init__(reason)
        self.alike = alike


class ByteSource(Protocol):
    """One way to a shard's bytes. ``cause``: what a wait for its bytes is a wait for; ``UNTOLD`` before its first answer tells."""

    name: str
    cause: int

    def open(self, progress: Progress) -> Any: ...

    def turns(self) -> bool:
        """Whether the other side is alive although it sends nothing."""
        ...


class SidecarSource:
    """Through the sidecar, looked up afresh at each try: a restarted one may have moved."""

    name = "sidecar"

    def __init__(self, source: Source, reader: str, limits: Limits, bearing: Bearing) -> None:
        self._source = source
        self._reader = reader
        self._shown = shown(source)
        self._limits = limits
        self._bearing = bearing
        self.cause = UNTOLD
        self._told = False  # that it waits

    def open(self, progress: Progress) -> Any:
        self.cause = UNTOLD
        tell = None if self._told else self._tell
        try:
            reply = ask_shard(self._source, self._reader, resume_headers(progress), self._limits, tell=tell, bearing=self._bearing)
        except ValueError as error:
            raise ShardReadError(f"shard {self._shown}: a header of its command cannot be sent: {type(error).__name__}") from error
        except Unanswered as trouble:
            if trouble.reached:
                self.cause = ORIGIN  # the sidecar turns, and waited for its origin
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
            return reply.body  # read to its end: nothing more comes
        text, scheme = refusal(reply), self._source.url.scheme
        if reply.status == 412 and progress.pinned:
            progress.etag = ""  # the bytes may still be the same, where one that rotted on the disk got another name: compared, from byte 0
            return self.open(progress)
        if reply.status in (412, 416) and progress.position:
            raise ShardChanged(f"shard {self._shown}: {text}", reply.status)
        if scheme == "file":  # only below a configured root; `cat` reads the others as before
            raise NotTaken(text, alike=reply.status != 404)  # one file that is absent says nothing of the others
        if scheme == "gs" and reply.status in (401, 403):  # gsutil may be logged in where Google's libraries are not
            raise NotTaken(text, alike=True)
        if is_retryable(reply.status):  # and final all the same: another way finds that out at once, or knows better
            raise NotTaken(text)
        raise ShardReadError(f"shard {self._shown}: {text}", reply.status)


class OpenerSource:
    """What webdataset would have done without us, from byte 0 on."""

    name = "webdataset's own opener"
    cause = ORIGIN

    def __init__(self, source: Source, own_open: OwnOpener) -> None:
        self._text = source.text
        self._shown = shown(source)
        self._own_open = own_open

    def open(self, progress: Progress) -> Any:
        try:
            body = Foreign(self._own_open(self._text), self._shown)
        except Exception as error:  # any handler a user registered may be behind it
            raise foreign_failure(error, self._shown) from None
        return Skipping(body, progress, self._shown) if progress.position else body

    def turns(self) -> bool:
        return True


def resume_headers(progress: Progress) -> list[tuple[str, str]]:
    """What asks for the rest of the very version that delivered the beginning; nothing when it must start again at 0."""
    if progress.position and progress.pinned:
        return [("Range", f"bytes={progress.position}-"), ("If-Match", progress.etag)]
    return []


def place(body: ShardBody, status: int, header: Callable[[str], str], progress: Progress, name: str) -> Any:
    """``body`` made to go on where ``progress`` stands: checked against it, or started again at 0 and compared."""
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
    """A shard of unknown length, cut between its last byte and its last chunk: nothing is missing."""
    found = _UNSATISFIED.fullmatch(header("Content-Range"))
    return found is not None and int(found[1]) == progress.position and progress.length is None
