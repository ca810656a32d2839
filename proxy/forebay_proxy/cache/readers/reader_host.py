"""What the parts of a reader need of the cache; what the reader itself needs besides stands with it."""

from __future__ import annotations

from typing import Protocol

from forebay_proxy.cache.fill.segment_flights import SegmentFlights
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import SegmentLeases
from forebay_proxy.transfer.buffer_budget import BufferBudget

__all__ = ["ReaderHost"]


class ReaderHost(Protocol):
    """The cache, as a reader's lease and its chunks see it."""

    buffers: BufferBudget
    segment_reader: SegmentReader
    segment_flights: SegmentFlights
    leases: SegmentLeases
