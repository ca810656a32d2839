"""What readers need of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay_proxy.cache.fill.segment_flights import SegmentFlights
from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.segment_leases import SegmentLeases
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.transfer.buffer_budget import BufferBudget

if TYPE_CHECKING:
    from forebay_proxy.cache.readers.active_readers import ActiveReaders
    from forebay_proxy.cache.readers.reader import ShardReader

__all__ = ["ReaderHost"]


class ReaderHost(Protocol):
    """The cache, as a reading and what it holds see it."""

    buffers: BufferBudget
    segment_reader: SegmentReader
    gate: DigestGate
    readers: ActiveReaders
    segment_flights: SegmentFlights
    leases: SegmentLeases

    def breadth(self, entry: Entry, bypassing: bool) -> int: ...

    async def move(self, reading: ShardReader) -> None:
        """Put a reader that was given nothing yet into the shard as it is fetched once more."""
        ...

    def read_segment(self, entry: Entry, index: int) -> None:
        """A reader has begun a stored segment."""
        ...
