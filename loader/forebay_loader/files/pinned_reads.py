"""Bytes of one version of a shard through the sidecar, and no other's: ranges, or a stream from a place on."""

from __future__ import annotations

from typing import Callable, NamedTuple, NoReturn, Optional, TypeVar

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.timeouts import Limits
from forebay_loader.files.either_way import SidecarHangs
from forebay_loader.identity.reader_name import reader_name
from forebay_loader.stream.range_reads import is_span, patiently
from forebay_loader.stream.shard_request import ask_shard, refusal, shown
from forebay_loader.stream.sparse_reads import sparse_header
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.http import Reply
from forebay_loader.transport.hung_sidecar import Bearing
from forebay_proxy.wire.commands.sources import Source

__all__ = ["PinnedReads", "PinnedVersion"]

T = TypeVar("T")


class PinnedVersion(NamedTuple):
    """A shard as the sidecar knows it now. ``length`` in bytes; ``modified`` as HTTP has it, "" where the origin told none."""

    etag: str
    length: int
    modified: str


class PinnedReads:
    """Reads within ``limits``. ``alone``: no other way leads to the bytes, so a sidecar that does not turn is waited for."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def version(self, source: Source, alone: bool) -> PinnedVersion:
        """Which one the sidecar has of it now. Raises as ``range``, and ``ShardReadError`` where the origin tells no length."""

        def asked(bearing: Bearing) -> PinnedVersion:
            # A look, by a reader that announced nothing: who announced the shard opens it once, by its bytes.
            reply = ask_shard(source, reader_name(), [], self._limits, method="HEAD", bearing=bearing)
            reply.body.close()
            if reply.status != 200:
                _refused(source, reply)
            length = reply.header("Content-Length")
            if not length.isdigit():
                raise ShardReadError(f"shard {shown(source)}: its origin tells no length, without which fsspec cannot seek in it")
            return PinnedVersion(reply.header("ETag"), int(length), reply.header("Last-Modified"))

        return self._patiently(source, self._limits.open_s, asked, alone)

    def range(self, source: Source, version: PinnedVersion, reader: str, first: int, size: int, alone: bool, sparse: bool = False) -> bytes:
        """``size`` bytes from ``first``, asked for again for ``limits.resume_s``. ``sparse``: little is wanted of what lies around them.

        Raises ``FileNotFoundError``, ``PermissionError``, ``ShardChanged``, ``ShardReadError``; ``ProxyUnreachable`` where no sidecar
        answers, ``SidecarHangs`` where one does not turn.
        """

        def asked(bearing: Bearing) -> bytes:
            reply = self.stream(source, version, reader, first, first + size - 1, bearing, sparse)
            return reply.content(size)

        return self._patiently(source, self._limits.resume_s, asked, alone) if size else b""

    def stream(
        self,
        source: Source,
        version: PinnedVersion,
        reader: str,
        first: int,
        last: int,
        bearing: Optional[Bearing] = None,
        sparse: bool = False,
    ) -> Reply:
        """The answer that brings bytes ``first`` to ``last`` of that version, asked for once. Raises ``Unanswered``, else as ``range``."""
        headers = [("Range", f"bytes={first}-{last}"), ("If-Match", version.etag), *sparse_header(sparse)]
        reply = ask_shard(source, reader, headers, self._limits, bearing=bearing)
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
            kind = SidecarHangs if trouble.hung else ShardReadError if trouble.reached else ProxyUnreachable
            raise kind(f"shard {shown(source)}: {trouble}") from None


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
