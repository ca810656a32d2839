"""The segments of a shard: which are stored, which are leased, which are missing. Pure.

A segment is a fixed slice of a shard: the unit of fetch, checksum, reservation and eviction. A stored segment is known by its checksum (a
sum that is 0 is written as 1, so 0 always means "not here"). Leases are counted per segment: a reader takes one when it asks for a segment
and gives it back once it has read past it; a reader with a descriptor leases the whole shard. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forebay_proxy.core.checksums import Checksums

__all__ = [
    "BLOCK_BYTES",
    "DEFAULT_LAYOUT",
    "FIRST_BREADTH",
    "MOST_BYTES",
    "SEGMENT_BYTES",
    "SegmentLayout",
    "Segments",
    "allocated",
    "read_ahead_breadth",
]

# 8 MiB: one S3 part of the AWS CRT, 0.1 s at 80 MB/s a connection, 640 rows for a 5 GB shard. Smaller costs requests, larger costs
# the reader of a cold tail its parallelism.
SEGMENT_BYTES = 8 * 2**20
MOST_BYTES = 2**45  # 35 TB, the longest shard: far beyond any, and its row, if all of it were here, is one that a start still reads
# A whole-shard reader may be a format sniffer that leaves after a few kB, and how fast a connection is shows only while few share the
# origin: until it has read one segment a reader gets two.
FIRST_BREADTH = 2
BLOCK_BYTES = 4096  # allocation unit of ext4, xfs and tmpfs; a larger one only makes the ledger's figure corrected at landing


def allocated(size: int) -> int:
    """Bytes a disk allocates for ``size`` bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """How shards are cut: into segments of ``segment_bytes``, the last of which is shorter.

    A cache directory has one, its store's, and everything about it asks that one: rows and sums written under another mean other bytes.
    """

    segment_bytes: int

    def index_of(self, offset: int) -> int:
        """The segment that holds byte ``offset``."""
        return offset // self.segment_bytes

    def count(self, length: int) -> int:
        """How many segments a shard of ``length`` bytes has; 0 for an empty one."""
        return -(-length // self.segment_bytes)

    def span(self, index: int, length: int | None) -> tuple[int, int]:
        """(first byte, size in bytes) of a segment; of full size while the shard's length is unknown."""
        size = self.segment_bytes
        first = index * size
        if length is None:
            return first, size
        return first, min(size, length - first)

    def stored_bytes(self, sums: Checksums, length: int | None) -> int:
        """Bytes a disk allocates for the segments that are here; in no time for thousands of them (a start asks for each shard)."""
        if not sums:
            return 0
        return (len(sums) - 1) * self.segment_bytes + allocated(self.span(sums.last, length)[1])


DEFAULT_LAYOUT = SegmentLayout(SEGMENT_BYTES)  # of every cache but those of tests; a simulation has no other


class Segments:
    """The segments of one shard version: checksums of those here, leases, and which are leaving."""

    def __init__(self, layout: SegmentLayout, length: int | None, sums: Checksums | None = None) -> None:
        self.layout = layout
        self.length = length
        self.sums = sums if sums is not None else Checksums()
        self.count = self.sums.last + 1  # how many segments the shard has, as far as its length is known
        if length is not None:
            self.set_length(length)
        self.leases: dict[int, int] = {}
        self.whole_leases = 0  # readers that were passed a descriptor of all of it
        self.unverified: set[int] = set()  # stored under another boot: their checksum decides before first use
        self.unread: set[int] = set()  # landed, and no reader has used them yet
        self.departures = 0  # how often a leased segment had to leave all the same: who was reading it must look again

    def __repr__(self) -> str:
        return f"<Segments {self.stored_count}/{self.count} stored, {len(self.leases)} leased>"

    def set_length(self, length: int) -> None:
        """The length became known."""
        self.length = length
        self.count = self.layout.count(length)
        self.sums.cut(self.count)

    def has(self, index: int) -> bool:
        """Whether segment ``index`` is stored."""
        return index in self.sums

    @property
    def stored_count(self) -> int:
        """How many segments are stored."""
        return len(self.sums)

    @property
    def complete(self) -> bool:
        """Whether all segments are stored."""
        return self.length is not None and len(self.sums) == self.count

    def land(self, index: int, value: int) -> None:
        """A segment is here, with checksum ``value``."""
        self.count = max(self.count, index + 1)
        self.sums[index] = value or 1
        self.unread.add(index)

    def leave(self, index: int) -> None:
        """A segment is here no longer."""
        if self.has(index):
            self.sums[index] = 0
            self.departures += self.is_leased(index)
        self.unverified.discard(index)
        self.unread.discard(index)

    def lease(self, index: int) -> None:
        """One reader more holds segment ``index``: it may not leave."""
        self.leases[index] = self.leases.get(index, 0) + 1

    def release(self, index: int) -> None:
        """Give back one lease of segment ``index``."""
        left = self.leases[index] - 1
        if left:
            self.leases[index] = left
        else:
            del self.leases[index]

    def is_leased(self, index: int) -> bool:
        return self.whole_leases > 0 or index in self.leases

    @property
    def is_held(self) -> bool:
        """Whether any segment is leased."""
        return self.whole_leases > 0 or bool(self.leases)

    def stored(self) -> Iterator[int]:
        """The indices of the stored segments, in order."""
        return iter(self.sums)

    def may_leave(self) -> Iterator[int]:
        """Stored and unleased, tails before heads: a partly evicted shard still answers its first byte at once."""
        if self.whole_leases:
            return iter(())
        return (index for index in self.sums.below(self.count) if index not in self.leases)

    @property
    def first_leased(self) -> int:
        """The lowest leased segment, where the last of the readers inside is; 0 while none is leased."""
        return 0 if self.whole_leases else min(self.leases, default=0)

    @property
    def has_passed(self) -> bool:
        """Whether anything is stored that all readers inside have behind them."""
        return 0 <= self.sums.first < self.first_leased

    @property
    def tail(self) -> float:
        """Where the segment lies that leaves first: 0 is the shard's head, towards 1 its end.

        While readers are inside the shard, it is the last stored segment behind all of them; else the last stored segment.
        """
        last = next(self.passed(), -1) if self.leases else self.sums.last
        return max(0, last) / max(1, self.count)

    def passed(self) -> Iterator[int]:
        """What is stored and behind all readers inside, tails before heads."""
        return self.sums.below(self.first_leased)

    def before_readers(self) -> Iterator[int]:
        """The rest of what is stored and unleased: some reader inside may come to it. Tails before heads."""
        first = self.first_leased
        return (index for index in self.may_leave() if index > first)

    def span(self, index: int) -> tuple[int, int]:
        """(first byte, size in bytes) of this segment; of full size while the shard's length is unknown."""
        return self.layout.span(index, self.length)

    def bytes_of(self, index: int) -> int:
        """Bytes the disk allocates for this segment."""
        return allocated(self.layout.span(index, self.length)[1])


def read_ahead_breadth(segments: Segments, segments_read: int, most: Callable[[], int]) -> int:
    """How many segments a reader of this shard leases, the one it is in included; ``segments_read`` of it already.

    ``most`` is how many it may have in the air, 1 or more, asked only where something has to be fetched or verified: of a shard that is all
    here a reader leases the segment it is in and the next one.
    """
    if not segments.unverified and segments.complete:
        return FIRST_BREADTH
    return most() if segments_read else min(most(), FIRST_BREADTH)
