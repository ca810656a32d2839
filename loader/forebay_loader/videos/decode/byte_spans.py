"""The bytes of wanted packets, fetched span by span: one request for what lies together, and never more of it in memory than a few MiB.

Where spans come over a network, those behind the one that is read are asked for meanwhile, a few at a time: they then cost one round trip
together, and no wait while what came is decoded.
"""

from __future__ import annotations

import bisect
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Dict, Optional, Sequence, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode.frames import Buffer, ReadPart

__all__ = ["SpanReader"]

MOST_BYTES = 4 << 20  # of a span at a time: what a request brings


class SpanReader:
    """A ``ReadPart`` over another one, of which it asks for ``spans`` alone: (offset, end), ascending, apart from each other.

    Parts may be asked for in any order; forwards is what it is made for. ``at_once``: how many spans are asked for at a time; where that is
    more than one, ``read`` is called in threads. Use ``with``: it ends when what is on its way has come.
    """

    def __init__(self, read: ReadPart, spans: Sequence[Tuple[int, int]], at_once: int = 1, most_bytes: int = MOST_BYTES) -> None:
        self._read = read
        self._spans = spans
        self._begins = [begin for begin, _ in spans]
        self._at_once = at_once
        self._most_bytes = most_bytes
        self._begin = self._end = 0
        self._held = memoryview(b"")
        self._pool: Optional[ThreadPoolExecutor] = None
        self._coming: Dict[int, Future[Buffer]] = {}  # the begin of a span, by its place among them
        self._asked = 0  # spans before this one are asked for no more

    def __enter__(self) -> SpanReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, offset: int, size: int) -> Buffer:
        if not (self._begin <= offset and offset + size <= self._end):
            self._fetch(offset, size)
        return self._held[offset - self._begin : offset - self._begin + size]

    def _fetch(self, offset: int, size: int) -> None:
        place = bisect.bisect_right(self._begins, offset) - 1
        end = max(self._spans[place][1] if place >= 0 else 0, offset + size)
        end = min(end, offset + max(size, self._most_bytes))
        self._held = memoryview(self._taken(place, offset, end))
        self._begin, self._end = offset, end
        COUNTS.add("video_bytes", len(self._held))

    def _taken(self, place: int, offset: int, end: int) -> Buffer:
        """The bytes from ``offset``: of the span at ``place``, where they are its begin, while those behind it are on their way."""
        if self._at_once > 1 and len(self._spans) > 1:
            self._ask_ahead(place)
        coming = self._coming.pop(place, None)
        if coming is None or (offset, end) != self._first_part(place):
            return self._read(offset, end - offset)
        return coming.result()

    def _ask_ahead(self, place: int) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._at_once, "span")
        for passed in [one for one in self._coming if one < place]:
            self._coming.pop(passed).cancel()
        for coming in range(max(self._asked, place, 0), min(place + self._at_once, len(self._spans))):
            begin, end = self._first_part(coming)
            self._coming[coming] = self._pool.submit(self._read, begin, end - begin)
            self._asked = coming + 1

    def _first_part(self, place: int) -> Tuple[int, int]:
        begin, end = self._spans[place]
        return begin, min(end, begin + self._most_bytes)
