"""What every reader works with."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.cache.fill.segment_flights import SegmentFlights
from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import SegmentLeases
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.limiter import Limiters

__all__ = ["ReaderParts"]


@dataclass(frozen=True, slots=True)
class ReaderParts:
    """Where bytes are read, the flights that bring those that are missing, and what a reader holds meanwhile."""

    segment_reader: SegmentReader
    segment_flights: SegmentFlights
    gate: DigestGate
    leases: SegmentLeases
    buffers: BufferBudget
    limiters: Limiters
