"""The writing side of a page: one thread's alone."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from typing import Iterator, Sequence

from forebay_loader.meter.page import (
    AT,
    MAGIC,
    SHARD_AT,
    SHARD_BYTES,
    SPANS,
    SPANS_AT,
    SPENT_AT,
    STACK_AT,
    STACK_BYTES,
    WAITED_AT,
    MeterPage,
)

__all__ = ["PageWriter"]


_CAUSE, _SINCE, _HEARTBEAT = AT["cause"], AT["since_ns"], AT["heartbeat_ns"]


class PageWriter:
    """Writes ``page``, which is as new: all zero. Not for two threads."""

    def __init__(self, page: MeterPage, *, pid: int, start_time: int, worker: int, rank: int, now_ns: int) -> None:
        self._page = page
        self._words = page.words
        self._last_cause = -1
        self._shard = self._stack = ""
        with self._writing():
            self.put(pid=pid, start_time=start_time, worker=worker, rank=rank, epoch=-1, cause=-1)
            self.put(since_ns=now_ns, heartbeat_ns=now_ns, begun_ns=now_ns, settled_ns=now_ns)
        self._words[AT["magic"]] = MAGIC  # last: before that it is no page

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self._page.close()

    def put(self, **numbers: int) -> None:
        """Words of the head."""
        for name, number in numbers.items():
            self._words[AT[name]] = number

    def book(self, spans: "Sequence[tuple[int, int]]", heartbeat_ns: int, cause: int, since_ns: int) -> None:
        """``spans``: pairs (end, cause's place), adjoining to what was booked before. ``cause`` and ``since_ns``: what it does now."""
        words = self._words
        with self._writing():
            for end_ns, spent_on in spans:
                self._span(end_ns, spent_on)
            words[_CAUSE], words[_SINCE], words[_HEARTBEAT] = cause, since_ns, heartbeat_ns

    def sums(self, waited_ns: Sequence[int], **numbers: int) -> None:
        """``waited_ns``: reader wait so far, a number for each cause; ``numbers``: words of the head."""
        with self._writing():
            self._words[WAITED_AT : WAITED_AT + len(waited_ns)] = array("q", waited_ns)
            self.put(**numbers)

    def tell(self, shard: str, stack: str) -> None:
        """The texts, cut to their room."""
        if shard != self._shard:
            self._shard = shard
            self._text(SHARD_AT, SHARD_BYTES, shard)
        if stack != self._stack:
            self._stack = stack
            self._text(STACK_AT, STACK_BYTES, stack)

    def _span(self, end_ns: int, cause: int) -> None:
        words = self._words
        spent = end_ns - words[AT["settled_ns"]]
        if spent <= 0:
            return
        number = words[AT["spans"]]
        if cause != self._last_cause or not number:
            number += 1
            self._last_cause = cause
        at = SPANS_AT + 2 * ((number - 1) % SPANS)
        words[at + 1] = cause
        words[at] = end_ns
        words[AT["spans"]] = number
        words[AT["settled_ns"]] = end_ns
        words[SPENT_AT + cause] += spent

    def _text(self, at: int, room: int, text: str) -> None:
        data = text.encode("utf-8", "replace")[: room - 8]
        padded = data + bytes(-len(data) % 8)
        with self._writing():
            self._words[at // 8] = 0
            self._words[at // 8 + 1 : at // 8 + 1 + len(padded) // 8] = array("q", padded)
            self._words[at // 8] = len(data)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._words[AT["sequence"]] += 1
        try:
            yield
        finally:
            self._words[AT["sequence"]] += 1
