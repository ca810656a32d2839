"""What readers need of the cache."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from forebay_proxy.cache.resident.digest_gate import DigestGate
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.segment_leases import SegmentLeases
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.core.shard import Shard
from forebay_proxy.transfer.buffer_budget import BufferBudget
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.wire.protocol.plan import ReaderName

if TYPE_CHECKING:
    from forebay_proxy.cache.reader import ShardReader

__all__ = ["ReaderHost"]


class ReaderHost(Protocol):
    """The cache, as a reading and what it holds see it."""

    buffers: BufferBudget
    segment_reader: SegmentReader
    gate: DigestGate
    leases: SegmentLeases

    def launch(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> Flight:
        """A flight for a missing segment; bypasses when no room can be granted."""
        ...

    def launch_ahead(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> bool:
        """The same for a segment beyond the position; False where that would need a bypass."""
        ...

    def flight_of(self, entry: Entry, index: int) -> Flight | None: ...

    def private_flight(self, entry: Entry, position: int, shard: Shard) -> Flight: ...

    def breadth(self, entry: Entry, bypassing: bool) -> int: ...

    async def move(self, reading: ShardReader) -> None:
        """Put a reader that was given nothing yet into the shard as it is fetched once more."""
        ...

    def read_segment(self, entry: Entry, index: int) -> None:
        """A reader has begun a stored segment."""
        ...

    def hurry(self, entry: Entry, flight: Flight, need: float) -> None:
        """A flight is needed as soon as ``need`` says."""
        ...

    def boarded(self) -> None:
        """A reader follows a flight that others asked for."""
        ...

    def waiting(self, reading: ShardReader) -> AbstractContextManager[None]:
        """``reading`` waits for bytes, for the length of the ``with``."""
        ...
