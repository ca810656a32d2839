"""What one process says of itself in memory that others may map: a file of 16 KiB, a *page* of the meter.

One thread of its process writes it (``PageWriter``), any number of processes read it. Its numbers are whole 64-bit words, each stored in
one step, and a sequence number is odd while several of them change. So a reader has them of one moment, or tries again; where the writer
died in the middle, it gets what is there: each number by itself is right. Times are of ``CLOCK_MONOTONIC``, in nanoseconds: one
clock for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Dict, List, Tuple

from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES

__all__ = ["BookedSpan", "MeterPage", "PageView", "WrongPage"]

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
