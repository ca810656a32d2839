"""Open a shard: a file-like object that survives its sidecar.

A stream walks its ways in order: the sidecar, the http(s) origin, webdataset's own opener. What arrived is counted and summed
(``Progress``), and each way goes on exactly there or proves that it would deliver the same bytes; nothing is delivered twice, nothing is
left out, and two versions never meet. ``SourceTimeout`` decides how long a way may still be asked: its clock starts with the first trouble
and is forgotten as soon as a byte arrives.

A sidecar that hangs is left at once where there is another way, and waited for where there is none. So it is asked again when the others
fail: as soon as it answers, and before any failure of theirs is the end.
"""

from __future__ import annotations

import io
import os
import random
import time
from typing import Any, Callable, Optional

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.notices import warn_node
from forebay_loader.base.takeover_report import REPORT
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.stream.direct_origin import DirectSource
from forebay_loader.stream.shard_request import shown
from forebay_loader.stream.sources import (
    ByteSource,
    NotTaken,
    OpenerSource,
    OwnOpener,
    SidecarSource,
)
from forebay_loader.transport.body import READ_BYTES, Progress, Unanswered
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.hung_sidecar import HUNG, Bearing, hung, turns
from forebay_loader.transport.source_timeout import DEAD, SourceTimeout
from forebay_proxy.wire.commands.sources import Source

__all__ = ["ShardStream", "open_stream"]


def open_stream(
    source: Source,
    reader: str,
    *,
    own_open: Optional[OwnOpener] = None,
    limits: Limits = DEFAULT_LIMITS,
    refused: Optional[Callable[[str], None]] = None,
    progress: Optional[Progress] = None,
) -> ShardStream:
    """The shard's bytes from the start, as a file-like object; returns once the first answer is there.

    ``progress`` is what was read of it by descriptor: the rest of that very version is given.

    ``reader`` is ``job/rank/worker/opener``. ``own_open(text)`` opens the original text webdataset's own way, the last resort. ``refused``
    is told the scheme of a shard that the sidecar does not take although it is not wrong (a file below no configured root). Raises
    ``ShardReadError`` (absent, refused), ``ProxyUnreachable`` (no sidecar and no other way).
    """
    stream = ShardStream(source, reader, own_open=own_open, limits=limits, refused=refused, progress=progress)
    try:
        stream.connect()
    except BaseException:
        stream.close()
        raise
    return stream


class ShardStream(io.BufferedIOBase):
    """One shard's bytes in order. ``read(n)`` gives n bytes, fewer only at the end. Not for two threads at once."""

    def __init__(
        self,
        source: Source,
        reader: str,
        *,
        own_open: Optional[OwnOpener],
        limits: Limits,
        refused: Optional[Callable[[str], None]],
        progress: Optional[Progress] = None,
    ) -> None:
        self._body: Any = None
        self.name = shown(source)
        self._scheme = source.url.scheme
        self._progress = progress or Progress()
        self._source_timeout = SourceTimeout(limits)
        self._bearing = Bearing(self.name, self._source_timeout, alone=False)
        self._ways = _ways(source, reader, own_open, limits, self._bearing)
        self._bearing.alone = len(self._ways) == 1
        self._hung: Optional[ByteSource] = None  # the sidecar, left because it hung
        self._returned = False  # to it, since it answered
        self._other: Optional[LoaderError] = None  # what would have been the end without it
        self._limits = limits
        self._refused = refused
        self._chunk = b""
        self._placed = 0
        self._at = 0
        self._ended = False
        self._opened = progress is not None
        self._told = False  # that it waits
        self._left: list[str] = []  # the ways that were given up, and why
        self._why_past = "the sidecar did not answer"
        self._pid = os.getpid()

    def __repr__(self) -> str:
        length = "?" if self._progress.length is None else self._progress.length
        return f"<ShardStream {self.name} {self._progress.position}/{length} bytes, {self._ways[0].name}>"

    def readable(self) -> bool:
        return True

    @property
    def whole(self) -> bool:
        """Whether every byte of the announced length has arrived."""
        return self._progress.complete

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is not None and 0 <= size <= len(self._chunk) - self._at:  # the common case: tarfile asks for 10 KiB at a time
            start, self._at = self._at, self._at + size
            return self._chunk[start : self._at]
        return b"".join(self._gather(None if size is None or size < 0 else size))

    def read1(self, size: int = -1) -> bytes:
        """What is at hand, at most ``size`` bytes."""
        if self._at == len(self._chunk):
            self._fill()
        end = len(self._chunk) if size < 0 else min(self._at + size, len(self._chunk))
        start, self._at = self._at, end
        return self._chunk[start:end]

    def readinto1(self, room: Any) -> int:
        """What is at hand, straight into ``room``: no copy between. Says how many bytes; 0 at the end."""
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

    def connect(self) -> None:
        """Have an answer positioned at the next byte, by whichever way. Raises ``LoaderError`` when there is none left."""
        while self._body is None and not self._ended:
            try:
                self._body = self._ways[0].open(self._progress)
            except Unanswered as trouble:
                self._cope(trouble)
            except NotTaken as reason:
                self._tell_refused()
                self._take_next_way(str(reason), lost=False)
            except LoaderError as error:
                if self._waits_instead(error):
                    continue
                self._failed(error)
                raise
            else:
                self._count_opening()

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
        """Put the next bytes into ``room`` (``_placed`` says how many) or else into the chunk; neither is the end."""
        if self.closed:
            raise ValueError(f"read of a closed stream: {self.name}")
        self._chunk, self._at, self._placed = b"", 0, 0
        while not self._ended and not self._chunk and not self._placed:
            self._leave_parents_connection()
            self.connect()
            self._receive(room)

    def _receive(self, room: Optional[memoryview]) -> None:
        if self._body is None:
            return
        into = getattr(self._body, "readinto", None) if room else None
        try:
            if into is None:
                self._chunk = self._accept(self._body.read(READ_BYTES))
            else:
                self._placed = len(self._accept(room[: into(room[:READ_BYTES])]))  # type: ignore[index]  # there is room
        except Unanswered as trouble:
            self._drop_body()
            self._cope(trouble)
        except LoaderError as error:
            self._drop_body()
            if self._waits_instead(error):
                return
            self._failed(error)
            raise

    def _accept(self, data: Any) -> Any:
        """``data`` itself, counted, summed and held to the announced length."""
        progress = self._progress
        if data:
            self._source_timeout.arrived()
            progress.arrived(data)
            COUNTS.add("bytes_proxy" if isinstance(self._ways[0], SidecarSource) else "bytes_direct", len(data))
            if progress.length is not None and progress.position > progress.length:
                raise ShardChanged(f"shard {self.name}: is longer now than the {progress.length} bytes it had")
        if data and not (progress.complete and self._body.left == 0):
            return data
        if progress.length is not None and not progress.complete:
            raise Unanswered(f"ended after {progress.position} of {progress.length} bytes", reached=True)
        self._drop_body()
        self._ended = True
        return data

    def _cope(self, trouble: Unanswered) -> None:
        """Wait a little before the same way is asked again, or go over to the next."""
        way = self._ways[0]
        if trouble.silent and not trouble.hung and self._source_timeout.bears_silence():
            if way.turns():
                return
            trouble = hung() if isinstance(way, SidecarSource) else trouble
        if trouble.hung:
            HUNG.found()
            if not self._bearing():  # nobody knows when it goes on; its restart would be another matter
                self._hung = None if self._bearing.alone else way
                self._take_next_way(str(trouble))
                return
        elif self._is_back():
            return
        limit_s = self._limit_of(way, trouble)
        pause_s = self._source_timeout.pause(trouble, limit_s)
        if pause_s is None:
            self._take_next_way(str(trouble), reached=trouble.reached)
            return
        if self._source_timeout.troubled_s >= self._limits.tell_s and not self._told:
            self._told = True  # a person who has mistyped a host looks at a training that stands still
            warn_node(f"{self.name}: {trouble}; asking the {way.name} again, for up to {limit_s:g} s")
        time.sleep(pause_s)

    def _limit_of(self, way: ByteSource, trouble: Unanswered) -> float:
        """How long ``way`` may be asked in vain, in seconds."""
        if isinstance(way, OpenerSource):
            return 0.0
        if isinstance(way, SidecarSource) and self._bearing.began:
            return self._source_timeout.troubled_s + self._bearing.left_s
        if self._progress.position or trouble.reached or not isinstance(way, SidecarSource):
            return self._limits.resume_s
        if self._bearing.alone and (DEAD.lived or find_endpoint() is not None):
            return self._limits.resume_s  # each time: an error would end the training, or skip the shard, over a restart
        return 0.0 if DEAD.known() else self._limits.open_s

    def _take_next_way(self, cause: str, *, lost: bool = True, reached: bool = False) -> None:
        """Leave the present way for good; ``lost``: it died or stayed in trouble, rather than refused; ``reached``: it did answer."""
        left = self._ways.pop(0)
        if not self._ways:
            self._ways = [left]
            error = self._no_way(left, cause)
            if self._waits_instead(error):
                return
            error = self._other or error
            self._failed(error)
            raise error
        self._source_timeout.another()
        if reached or not isinstance(left, SidecarSource):
            self._left.append(f"the {left.name} said: {cause}")
        if not lost or not isinstance(left, SidecarSource):
            return
        DEAD.found()
        COUNTS.add("fallback_total")
        hint = "" if reached or HUNG.known() else " Is it running? `forebay status` tells."
        warn_node(f"{self.name}: {cause}; going on without the sidecar, by {self._ways[0].name}.{hint}")
        time.sleep(random.uniform(0.0, self._limits.jitter_s))  # noqa: S311  # spreads a herd, keeps no secret

    def _is_back(self) -> bool:
        """Whether a sidecar that hung answers again, while another way is in trouble; it is the first way then. Once a stream."""
        if self._hung is None or self._returned or HUNG.known() or not turns():
            return False
        self._ways.insert(0, self._hung)
        self._hung, self._returned = None, True
        self._source_timeout.another()
        return True

    def _waits_instead(self, error: LoaderError) -> bool:
        """Whether a sidecar that hung is waited for before ``error``, another way's, is the end."""
        way, self._hung, progress = self._hung, None, self._progress
        if way is None or (progress.length is not None and progress.position > progress.length):
            return False
        self._other = error.with_traceback(None)  # what it holds would hold this stream
        error.__cause__ = error.__context__ = None
        if _is_final(self._ways[0], error):
            self._bearing.at_most(self._limits.resume_s - HUNG.for_s)
        if not self._bearing.left_s:
            return False
        self._ways = [way]
        self._bearing.alone = self._bearing.began = True
        self._source_timeout.another()
        warn_node(f"{self.name}: {error}; waiting for the sidecar, which hung, for up to {self._bearing.left_s:.0f} s")
        return True

    def _tell_refused(self) -> None:
        if self._refused is not None and isinstance(self._ways[0], SidecarSource):
            self._refused(self._scheme)
            self._why_past = f"the sidecar does not serve {self._scheme} shards"

    def _no_way(self, left: ByteSource, cause: str) -> LoaderError:
        if isinstance(left, SidecarSource):
            cause = f"{cause}; waited {self._source_timeout.waited_s:.0f} s"
            if self._other is not None:
                self._left.append(cause)
            return ProxyUnreachable(f"shard {self.name}: {cause}; webdataset has no opener of its own for {self._scheme} URLs")
        return ShardReadError(f"shard {self.name}: {cause}; {left.name} was the last way to it")

    def _failed(self, error: LoaderError) -> None:
        error.follows(self._left)
        COUNTS.add("changed" if isinstance(error, ShardChanged) else "failed")

    def _count_opening(self) -> None:
        through = isinstance(self._ways[0], SidecarSource)
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
        """In a forked child: the inherited connection is the parent's, its bytes too."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            if not isinstance(self._ways[0], OpenerSource):
                self._drop_body()

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()


def _is_final(way: ByteSource, error: LoaderError) -> bool:
    """Whether the origin itself has refused or does not have it: a sidecar could know better only by a login of its own, or what it stores.

    Not where the shard was replaced: a sidecar may still hold the version that was begun.
    """
    return isinstance(way, DirectSource) and isinstance(error, ShardReadError) and not isinstance(error, ShardChanged) and error.status > 0


def _ways(source: Source, reader: str, own_open: Optional[OwnOpener], limits: Limits, bearing: Bearing) -> list[ByteSource]:
    ways: list[ByteSource] = [SidecarSource(source, reader, limits, bearing)]
    if source.url.scheme in ("http", "https"):
        ways.append(DirectSource(source, limits))
    if own_open is not None:
        ways.append(OpenerSource(source, own_open))
    return ways
