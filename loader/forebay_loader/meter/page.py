"""What one process says of itself in memory that others may map: a file of 16 KiB, a *page* of the meter.

One thread of its process writes it (``PageWriter``), any number of processes read it. Its numbers are whole 64-bit words, each stored in
one step, and a sequence number is odd while several of them change. So a reader has them of one moment, or tries again; where the writer
died in the middle, it gets what is there: each number by itself is right. Times are of ``CLOCK_MONOTONIC``, in nanoseconds: one
clock for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
from array import array
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES

__all__ = ["BookedSpan", "MeterPage", "PageView", "PageWriter", "WrongPage"]

PAGE_BYTES = 16 * 1024
MAGIC = int.from_bytes(b"fbmeter2", "little")
# Words at the page's beginning, by their place.
WORDS = (
    "magic", "sequence", "pid", "start_time", "worker", "cause", "since_ns", "heartbeat_ns", "begun_ns", "settled_ns", "bytes", "position",
    "skipped", "spans",
)  # fmt: skip
AT = {name: place for place, name in enumerate(WORDS)}
WAITED_AT = 24  # a word a cause, and room for more causes
SPANS_AT, SPANS = 64, 512  # a ring of pairs (end, cause): what the process did until when
SHARD_AT = 8 * (SPANS_AT + 2 * SPANS)  # from here on texts: a word of length, then UTF-8
SHARD_BYTES = 1024
STACK_AT = SHARD_AT + SHARD_BYTES
STACK_BYTES = PAGE_BYTES - STACK_AT
_OVERTAKEN = 8  # of the ring's oldest: they may be written anew while they are read
_TRIES = 64  # a writer is done within microseconds, unless it is not running now
MAIN = -1  # the worker's number of a process that is none

BookedSpan = Tuple[int, int, str]  # from, until (ns), cause


class WrongPage(ValueError):
    """The file is no page of this version's."""


@dataclass(frozen=True)
class PageView:
    """What a page says at one moment. ``worker`` is -1 for a process that is no worker.

    ``cause``: what the process does now ("transfer": it waits to be asked for a batch; "": nobody looked yet), and ``since_ns``.
    ``heartbeat_ns``: when its observer looked last, ``begun_ns``: first, ``settled_ns``: until when its time is booked. ``waited_ns``:
    reader wait by cause. ``bytes``: read so far; ``skipped``: shards, files and samples that handlers passed over.
    ``shard``: what it reads, without what proves who asks, and ``position``, the byte it stands at; ``stack``: of Python, where nothing
    has moved for long.
    """

    pid: int
    start_time: int
    worker: int
    cause: str
    since_ns: int
    heartbeat_ns: int
    begun_ns: int
    settled_ns: int
    bytes: int
    skipped: int
    position: int
    waited_ns: Dict[str, int]
    shard: str
    stack: str


class MeterPage:
    """One page, mapped. ``file`` may be closed then. Raises ``WrongPage``, ``OSError``."""

    def __init__(self, file: int, *, writable: bool = False) -> None:
        if os.fstat(file).st_size < PAGE_BYTES:
            raise WrongPage("too short for a page of the meter")
        self._map = mmap.mmap(file, PAGE_BYTES, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self.words = memoryview(self._map).cast("q")
        if not writable and self.words[AT["magic"]] != MAGIC:
            self.close()
            raise WrongPage("not a page of this version of the meter")

    def close(self) -> None:
        self.words.release()
        self._map.close()

    def view(self) -> PageView:
        """All of it, but for the rings."""
        head, shard, stack = self._steady()
        word = {name: head[at] for name, at in AT.items()}
        cause = word["cause"]
        return PageView(
            **{name: word[name] for name in _SAME},
            cause=CAUSES[cause] if 0 <= cause < len(CAUSES) else "",
            waited_ns={name: head[WAITED_AT + at] for name, at in CAUSE_INDEX.items()},
            shard=shard,
            stack=stack,
        )

    def word(self, name: str) -> int:
        """One number of its head, by its name in ``PageView``."""
        return self.words[AT[name]]

    @property
    def shard(self) -> str:
        return self._text(SHARD_AT, SHARD_BYTES)

    def spans(self, start_ns: int, end_ns: int) -> List[BookedSpan]:
        """What is booked of the time between: adjoining, in order; from the ring's oldest on."""
        found: List[BookedSpan] = []
        words = self.words
        head, until = words[AT["spans"]], end_ns
        for number in range(head - 1, max(head - SPANS + _OVERTAKEN, 0) - 1, -1):
            at, before = SPANS_AT + 2 * (number % SPANS), SPANS_AT + 2 * ((number - 1) % SPANS)
            begins, ends, cause = words[before] if number else words[AT["begun_ns"]], min(words[at], until), words[at + 1]
            begins = max(begins, start_ns)
            if ends > begins and 0 <= cause < len(CAUSES):
                found.append((begins, ends, CAUSES[cause]))
                until = begins
            if begins == start_ns:
                break
        found.reverse()
        return found

    def _steady(self) -> Tuple[List[int], str, str]:
        found = self._once()
        for _ in range(_TRIES):
            before = self.words[AT["sequence"]]
            found = self._once()
            if before % 2 == 0 and self.words[AT["sequence"]] == before:
                break
        return found

    def _once(self) -> Tuple[List[int], str, str]:
        return self.words[:SPANS_AT].tolist(), self._text(SHARD_AT, SHARD_BYTES), self._text(STACK_AT, STACK_BYTES)

    def _text(self, at: int, room: int) -> str:
        length = self.words[at // 8]
        if not 0 < length <= room - 8:
            return ""
        return self._map[at + 8 : at + 8 + length].decode("utf-8", "replace")


_SAME = tuple(name for name in WORDS if name not in ("magic", "sequence", "cause", "spans"))  # words that are fields of a view


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
