"""The bytes of wanted packets, fetched span by span: one request for what lies together, and never more of it in memory than a few MiB."""

from __future__ import annotations

import bisect
from typing import Sequence, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode.frames import Buffer, ReadPart

__all__ = ["SpanReader"]

MOST_BYTES = 4 << 20  # of a span at a time: what a request brings


class SpanReader:
    """A ``ReadPart`` over another one, of which it asks for ``spans`` alone: (offset, end), ascending, apart from each other.

    Parts may be asked for in any order; forwards is what it is made for.
    """

    def __init__(self, read: ReadPart, spans: Sequence[Tuple[int, int]], most_bytes: int = MOST_BYTES) -> None:
        self._read = read
        self._spans = spans
        self._begins = [begin for begin, _ in spans]
        self._most_bytes = most_bytes
        self._begin = self._end = 0
        self._held = memoryview(b"")

    def __call__(self, offset: int, size: int) -> Buffer:
        if not (self._begin <= offset and offset + size <= self._end):
            self._fetch(offset, size)
        return self._held[offset - self._begin : offset - self._begin + size]

    def _fetch(self, offset: int, size: int) -> None:
        place = bisect.bisect_right(self._begins, offset) - 1
        end = max(self._spans[place][1] if place >= 0 else 0, offset + size)
        end = min(end, offset + max(size, self._most_bytes))
        self._held = memoryview(self._read(offset, end - offset))
        self._begin, self._end = offset, end
        COUNTS.add("video_bytes", len(self._held))
