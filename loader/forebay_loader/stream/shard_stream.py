"""A shard as a file-like object that keeps working if the sidecar restarts or dies.

A stream tries its sources in order: the sidecar, the http(s) origin, webdataset's own opener. ``SourceOrder`` decides which one is asked,
and for how long. ``Progress`` counts and checksums the bytes that arrived. The next source continues at that byte, or starts at byte 0 and
must send the same bytes. So no byte is delivered twice, none is missing, and two versions of a shard are never mixed.
"""

from __future__ import annotations

import io
import os
from typing import Any, Callable, Optional

from forebay_loader.base.activity import PROXY, UNTOLD, here
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import LoaderError, ShardChanged, check_descriptors
from forebay_loader.base.takeover_report import REPORT
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.stream.range_reads import read_range
from forebay_loader.stream.source_order import SourceOrder
from forebay_loader.stream.sources import NotTaken, OwnOpener
from forebay_loader.transport.body import READ_BYTES, Progress, Unanswered
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ShardStream"]


class ShardStream(io.BufferedIOBase):
    """One shard's bytes in order, from the start. The constructor returns after the first answer. Not thread-safe.

    ``read(n)`` returns n bytes, and fewer only at the end. ``reader`` is ``job/rank/worker/opener``. ``own_open(text)`` opens the original
    text in webdataset's own way, as the last resort. ``refused`` is called with the scheme of a valid shard that the sidecar does not serve
    (a file below no configured root). ``progress`` says how much was already read by descriptor: only the rest of that version is
    delivered.

    Raises ``ShardReadError`` (absent, refused), ``ProxyUnreachable`` (no sidecar and no other source).
    """

    def __init__(
        self,
        source: Source,
        reader: str,
        *,
        own_open: Optional[OwnOpener] = None,
        limits: Limits = DEFAULT_LIMITS,
        refused: Optional[Callable[[str], None]] = None,
        progress: Optional[Progress] = None,
    ) -> None:
        self._body: Any = None
        self._progress = progress or Progress()
        self._source, self._limits = source, limits
        self._order = SourceOrder(source, reader, own_open, limits, self._progress)
        self.name = self._order.name
        self._refused = refused
        self._chunk = b""
        self._placed = 0
        self._at = 0
        self._ended = False
        self._opened = progress is not None
        self._why_past = "the sidecar did not answer"
        self._pid = os.getpid()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        length = "?" if self._progress.length is None else self._progress.length
        return f"<ShardStream {self.name} {self._progress.position}/{length} bytes, {self._order.present.name}>"

    def readable(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        """Whether every byte of the announced length has arrived."""
        return self._progress.complete

    @property
    def etag(self) -> str:
        """The ETag of the version that is read; "" if no source has said it."""
        return self._progress.etag

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is not None and 0 <= size <= len(self._chunk) - self._at:  # the common case: tarfile asks for 10 KiB at a time
            start, self._at = self._at, self._at + size
            return self._chunk[start : self._at]
        return b"".join(self._gather(None if size is None or size < 0 else size))

    def read1(self, size: int = -1) -> bytes:
        """Return the bytes that have arrived, at most ``size``."""
        if self._at == len(self._chunk):
            self._fill()
        end = len(self._chunk) if size < 0 else min(self._at + size, len(self._chunk))
        start, self._at = self._at, end
        return self._chunk[start:end]

    @property
    def again(self) -> Optional[Callable[[int, int], bytes]]:
        """A function that reads bytes of the same version at any offset, and raises ``LoaderError``; None if the sidecar cannot be asked
        for it.
        """
        if not self._order.through_sidecar or not self._progress.pinned:
            return None
        return lambda at, size: read_range(self._source, at, size, self.etag, self._limits)

    def readinto1(self, room: Any) -> int:
        """Read the bytes that have arrived directly into ``room``, without a copy. Returns how many; 0 at the end."""
        view = memoryview(room)
        if self._at == len(self._chunk):
            self._fill(view)
            if self._placed:
                return self._placed
        data = self.read1(len(view)) if self._chunk else b""
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._drop_body()
        super().close()

    def _connect(self) -> None:
        """Get an answer that starts at the next byte, from any source. Raises ``LoaderError`` if no source is left."""
        while self._body is None and not self._ended:
            try:
                self._body = self._answer()
            except Unanswered as trouble:
                check_descriptors(self.name, trouble)
                self._order.cope(trouble)
            except NotTaken as reason:
                if self._refused is not None and self._order.through_sidecar and reason.alike:
                    self._refused(self._order.scheme)
                    self._why_past = f"the sidecar does not serve {self._order.scheme} shards"
                self._order.take_next(str(reason), lost=False, reached=True)
            except LoaderError as error:
                check_descriptors(self.name, error)
                if self._order.waits_instead(error):
                    continue
                self._order.failed(error)
                raise
            else:
                self._count_opening()

    def _answer(self) -> Any:
        """The body from the present source."""
        way, activity = self._order.present, here()
        activity.wait(UNTOLD if self._order.through_sidecar else way.cause, self.name, self._progress.position)
        try:
            return way.open(self._progress)
        finally:
            activity.over()
            activity.tell(PROXY if way.cause == UNTOLD else way.cause)

    def _gather(self, size: Optional[int]) -> list[bytes]:
        parts: list[bytes] = []
        while size is None or size > 0:
            part = self.read1(-1 if size is None else size)
            if not part:
                break
            parts.append(part)
            size = None if size is None else size - len(part)
        return parts

    def _fill(self, room: Optional[memoryview] = None) -> None:
        """Read the next bytes into ``room`` (``_placed`` is how many), or else into the chunk. No bytes in either: the end."""
        if self.closed:
            raise ValueError(f"read of a closed stream: {self.name}")
        self._chunk, self._at, self._placed = b"", 0, 0
        while not self._ended and not self._chunk and not self._placed:
            self._leave_parents_connection()
            self._connect()
            self._receive(room)

    def _receive(self, room: Optional[memoryview]) -> None:
        if self._body is None:
            return
        into = getattr(self._body, "readinto", None) if room else None
        activity = here()
        activity.wait(self._order.present.cause, self.name, self._progress.position)
        try:
            if into is None:
                data = self._body.read(READ_BYTES)
                activity.over()
                self._chunk = self._accept(data)
            else:
                got = into(room[:READ_BYTES])  # type: ignore[index]  # into is None without room
                activity.over()
                self._placed = len(self._accept(room[:got]))  # type: ignore[index]
        except Unanswered as trouble:
            self._drop_body()
            self._order.cope(trouble)
        except LoaderError as error:
            self._drop_body()
            if self._order.waits_instead(error):
                return
            self._order.failed(error)
            raise
        finally:
            activity.over()

    def _accept(self, data: Any) -> Any:
        """Return ``data``, after counting it, adding it to the checksum, and checking it against the announced length."""
        progress = self._progress
        if data:
            self._order.arrived()
            progress.arrived(data)
            COUNTS.add("bytes_proxy" if self._order.through_sidecar else "bytes_direct", len(data))
            if progress.length is not None and progress.position > progress.length:
                raise ShardChanged(f"shard {self.name}: is longer now than the {progress.length} bytes it had")
        if data and not (progress.complete and self._body.left == 0):
            return data
        if progress.length is not None and not progress.complete:
            raise Unanswered(f"ended after {progress.position} of {progress.length} bytes", reached=True)
        self._drop_body()
        self._ended = True
        return data

    def _count_opening(self) -> None:
        through = self._order.through_sidecar
        if through:
            DEAD.answered()
        if not self._opened:
            COUNTS.add("opened" if through else "opened_direct")
            if not through:
                REPORT.lost(self._why_past)
        elif self._progress.position:
            COUNTS.add("resumed" if through else "resumed_direct")
        self._opened = True

    def _leave_parents_connection(self) -> None:
        """In a forked child, drop the inherited connection: the parent still reads from it."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            if not self._order.outlives_fork:
                self._drop_body()

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()
