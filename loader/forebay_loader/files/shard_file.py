"""A shard opened as a file: in order it is one stream, which the sidecar fetches ahead of; elsewhere a range for each read."""

from __future__ import annotations

from typing import Any, Iterable, Optional

from fsspec.spec import AbstractBufferedFile

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable, ShardReadError
from forebay_loader.files.either_way import either
from forebay_loader.files.pinned_reads import PinnedReads
from forebay_loader.files.target import Target
from forebay_loader.identity.reader_name import CLAIMS
from forebay_loader.stream.shard_request import shown
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.http import Reply
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ForebayFile"]


class ForebayFile(AbstractBufferedFile):
    """One version of a shard, open for reading. Reads in order, from the start or from another place, share one stream."""

    def __init__(self, fs: Any, reads: PinnedReads, target: Target, name: str, source: Source, alone: bool, **options: Any) -> None:
        self._reads = reads
        self._target = target
        self._source = source
        self._reader = CLAIMS.opening(source.text)
        self._version = reads.version(source, alone)
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
            self._stream = self._reads.stream(self._source, self._version, self._reader, start, self.size - 1)
        left = end - start
        while left and (data := self._stream.body.read(left)):
            left -= len(data)
            yield data
        if end == self.size:
            self._leave_stream()

    def _read(self, first: int, size: int) -> bytes:
        """One range by itself; past the sidecar where that is gone for good, if the store has the very same version."""

        def through(alone: bool) -> bytes:
            return bytes(self._reads.range(self._source, self._version, self._reader, first, size, alone))

        def past(why: ProxyUnreachable) -> bytes:
            fs, target = self._target.store(self.path)
            there = fs.info(target)
            if there.get("ETag") != self._version.etag or there.get("size") != self.size:
                raise ProxyUnreachable(f"{why}; its store has another version by now, or does not say which")
            data = bytes(fs.cat_file(target, first, first + size))
            if len(data) != size:
                raise ShardReadError(f"shard {shown(self._source)}: {len(data)} of {size} bytes came from its store")
            return data

        return either(through, past)

    def close(self) -> None:
        """Leave the shard."""
        if not self.closed:
            self._leave_stream()
            self.fs.opened(self._source)
        super().close()

    def _leave_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.body.close()
