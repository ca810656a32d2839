"""What one reader holds of a shard version (the segments it leases, the fetch it follows), where it is, and what is told of it.

Not thread-safe: the event loop's only."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SegmentLeases
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import Shard
from forebay_proxy.telemetry.waits import Wait
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import Limiters
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ReaderLease", "ReaderParts", "ReaderPlace", "ReaderTally", "SegmentSource"]


@dataclass(frozen=True, slots=True)
class ReaderParts:
    """What every reader works with: where bytes are read, the fetches that bring those that are missing, and what it holds meanwhile."""

    segment_reader: SegmentReader
    segment_fetches: SegmentFetches
    gate: DigestCheck
    leases: SegmentLeases
    buffers: BufferBudget
    limiters: Limiters


class SegmentSource(Enum):
    """Where the bytes of one segment come from, for one reader."""

    STORE = "store"  # the file
    FETCH = "fetch"  # what a fetch has brought of it, in the file or in memory
    ALONE = "alone"  # a body of its own, passed through


@dataclass(slots=True)
class ReaderTally:
    """What is told of one reading: to the client, the log and the status page."""

    outcome: RequestOutcome = RequestOutcome.HIT
    hit_bytes: int = 0
    waited_s: float = 0.0  # over all waits that have ended, its opening's among them
    wait: Wait | None = None  # for bytes, right now
    epoch: int | None = None  # of its reader's plan, when it opened


@dataclass(slots=True)
class ReaderPlace:
    """Where a reader is in its shard, and how it got there."""

    segment: int = -1  # -1: it has yet to look where the bytes are
    source: SegmentSource = SegmentSource.FETCH
    segments_read: int = 0
    began_at: int | None = None  # the first segment it entered
    attempts_alone: int = 0
    handed_at: float | None = None  # since when the client has been busy with the last chunk

    def arrive(self, segment: int) -> None:
        """The reader is in ``segment`` now."""
        if self.began_at is None:
            self.began_at = segment
        if self.segment != -1:
            self.segments_read += 1
        self.segment = segment


class ReaderLease:
    """A reader's lease: its position, and the window before it."""

    def __init__(self, parts: ReaderParts, entry: Entry, shard: Shard, reader: ReaderName | None, *, sparse: bool = False) -> None:
        """``sparse``: of segments that are not here no more is wanted than is read."""
        self.sparse = sparse
        self.fetch: Fetch | None = None
        self.asked_to = -1  # the highest segment asked for
        self._parts = parts
        self._entry = entry
        self._shard = shard
        self._reader = reader
        self._leased: set[int] = set()
        self._subscribed = ExitStack()

    def __repr__(self) -> str:
        return f"<ReaderLease of {self._entry.name}: segments {sorted(self._leased)}, follows {self.fetch!r}>"

    def lease(self, index: int) -> None:
        if index not in self._leased:
            self._leased.add(index)
            self._parts.leases.lease(self._entry, index)

    def arrive(self, index: int) -> None:
        """The reader is in segment ``index`` now: those before it go back."""
        self.lease(index)
        for passed in [held for held in self._leased if held < index]:
            self._release(passed)

    def _release(self, index: int) -> None:
        self._leased.discard(index)
        self._parts.leases.release(self._entry, index)

    def follow(self, fetch: Fetch) -> None:
        """Read what ``fetch`` brings, which is needed now."""
        self._parts.segment_fetches.hurry(self._entry, fetch, 0.0)
        self.fetch = fetch
        self._subscribed.enter_context(fetch.subscribed())

    def leave_fetch(self) -> None:
        self.fetch = None
        self._subscribed.close()

    def running(self, index: int, *, opened_here: bool) -> Fetch | None:
        """The fetch that brings segment ``index`` already; counted where another reader asked for it. ``opened_here``: nobody else did."""
        fetch = self._parts.segment_fetches.find(self._entry, index)
        if fetch is not None and not opened_here and index > self.asked_to:
            self._parts.segment_fetches.joined()
        return fetch

    def ask_ahead(self, index: int, last: int) -> None:
        """Have the segments behind ``index`` come, up to ``last`` or to where there is no room for them."""
        if self.sparse:
            return
        fetches = self._parts.segment_fetches
        for ahead in range(index + 1, last + 1):
            if self._entry.segments.has(ahead):
                self._parts.segment_reader.foresee(self._entry, ahead)
            elif (fetch := fetches.find(self._entry, ahead)) is not None:
                fetches.hurry(self._entry, fetch, float(ahead - index))
            elif not fetches.launch_ahead(self._entry, ahead, self._shard, float(ahead - index), self._reader):
                return
            self.lease(ahead)
            self.asked_to = ahead

    def give_up(self) -> None:
        """Everything goes back, the fetches go on; nothing is asked for any more."""
        self.leave_fetch()
        self.asked_to = -1
        for index in list(self._leased):
            self._release(index)
