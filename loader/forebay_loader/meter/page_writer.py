"""The writing side of a page: one thread's alone."""

from __future__ import annotations

from array import array
from typing import Sequence

from forebay_loader.meter.page import AT, MAGIC, SHARD_AT, SHARD_BYTES, SPANS, SPANS_AT, STACK_AT, STACK_BYTES, WAITED_AT, MeterPage

__all__ = ["PageWriter"]

_SEQUENCE, _SPANS, _SETTLED = AT["sequence"], AT["spans"], AT["settled_ns"]
_CAUSE, _SINCE, _HEARTBEAT = AT["cause"], AT["since_ns"], AT["heartbeat_ns"]


class PageWriter:
    """Writes ``page``, which is as new: all zero. Not for two threads."""

    def __init__(self, page: MeterPage, *, pid: int, start_time: int, worker: int, now_ns: int) -> None:
        self._page = page
        self._words = page.words
        self._last_cause = -1
        self._shard = self._stack = ""
        self._put(pid=pid, start_time=start_time, worker=worker, cause=-1)
        self._put(since_ns=now_ns, heartbeat_ns=now_ns, begun_ns=now_ns, settled_ns=now_ns)
        self._words[AT["magic"]] = MAGIC  # last: before that it is no page

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self._page.close()

    def book(self, spans: "Sequence[tuple[int, int]]", heartbeat_ns: int, cause: int, since_ns: int) -> None:
        """``spans``: pairs (end, cause's place), adjoining to what was booked before. ``cause`` and ``since_ns``: what it does now."""
        words = self._words
        words[_SEQUENCE] += 1
        for end_ns, spent_on in spans:
            self._span(end_ns, spent_on)
        words[_CAUSE], words[_SINCE], words[_HEARTBEAT] = cause, since_ns, heartbeat_ns
        words[_SEQUENCE] += 1

    def sums(self, waited_ns: Sequence[int], **numbers: int) -> None:
        """``waited_ns``: reader wait so far, a number for each cause; ``numbers``: words of the head."""
        self._words[_SEQUENCE] += 1
        self._words[WAITED_AT : WAITED_AT + len(waited_ns)] = array("q", waited_ns)
        self._put(**numbers)
        self._words[_SEQUENCE] += 1

    def tell(self, shard: str, stack: str) -> None:
        """The texts, cut to their room."""
        if shard != self._shard:
            self._shard = shard
            self._text(SHARD_AT, SHARD_BYTES, shard)
        if stack != self._stack:
            self._stack = stack
            self._text(STACK_AT, STACK_BYTES, stack)

    def _put(self, **numbers: int) -> None:
        for name, number in numbers.items():
            self._words[AT[name]] = number

    def _span(self, end_ns: int, cause: int) -> None:
        words = self._words
        if end_ns <= words[_SETTLED]:
            return
        number = words[_SPANS]
        if cause != self._last_cause or not number:
            number += 1
            self._last_cause = cause
        at = SPANS_AT + 2 * ((number - 1) % SPANS)
        words[at + 1] = cause
        words[at] = end_ns
        words[_SPANS] = number
        words[_SETTLED] = end_ns

    def _text(self, at: int, room: int, text: str) -> None:
        data = text.encode("utf-8", "replace")[: room - 8]
        padded = data + bytes(-len(data) % 8)
        words = self._words
        words[_SEQUENCE] += 1
        words[at // 8] = 0
        words[at // 8 + 1 : at // 8 + 1 + len(padded) // 8] = array("q", padded)
        words[at // 8] = len(data)
        words[_SEQUENCE] += 1
