"""Shared memory in which one process reports to the meter: 16 KiB for each process, called a *page*.

One thread of the process writes it (``PageWriter``); others read it. Its numbers are 64-bit words, each stored at once. So each number is
valid at any time, even if the writer died in between. Times are ``CLOCK_MONOTONIC`` in nanoseconds, one clock for all processes of a
machine. The trainer creates the pages of a loader's workers (``SharedPages``) in memory without a name, which is freed with the last
process that maps it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from array import array
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, Dict, List, Sequence, Tuple, Union

from forebay_loader.base.shared_memory import nameless_file
from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES

__all__ = ["BookedSpan", "MeterPage", "PageView", "PageWriter", "SharedPages"]

PAGE_BYTES = 16 * 1024
# The first words of the page, in order.
WORDS = (
    "pid", "start_time", "worker", "cause", "since_ns", "heartbeat_ns", "begun_ns", "settled_ns", "bytes", "position", "skipped", "spans",
)  # fmt: skip
AT = {name: place for place, name in enumerate(WORDS)}
WAITED_AT = 24  # one word for each cause, with space for more causes
SPANS_AT, SPANS = 64, 512  # a ring of pairs (end, cause)
SHARD_AT = 8 * (SPANS_AT + 2 * SPANS)  # from here on texts: a word with the length, then UTF-8
SHARD_BYTES = 1024
FUNCTION_AT = SHARD_AT + SHARD_BYTES
FUNCTION_BYTES = 256
STACK_AT = FUNCTION_AT + FUNCTION_BYTES
STACK_BYTES = PAGE_BYTES - STACK_AT
_OVERTAKEN = 8  # oldest entries of the ring to leave out: they may be overwritten while they are read
MAIN = -1  # the worker number of a process that is no worker

BookedSpan = Tuple[int, int, str]  # from, until (ns), cause


@dataclass(frozen=True)
class PageView:
    """The content of a page at one moment. ``worker`` is -1 for a process that is no worker.

    - ``cause``: what the process does now, since ``since_ns``. "transfer": it waits for a request. "": it was not sampled yet.
    - ``begun_ns``, ``heartbeat_ns``: when its observer took the first and the last sample. ``settled_ns``: until when its time is booked.
    - ``waited_ns``: reader wait by cause.
    - ``bytes``: read so far. ``skipped``: shards, files and samples that handlers skipped.
    - ``shard``: what it reads, without credentials. ``position``: the byte it has reached.
    - ``function``: a cause, a tab, and the function that this stage called most in the last samples.
    - ``stack``: the Python stack, if nothing has happened for long.
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
    function: str
    stack: str


class MeterPage:
    """One page in ``memory`` of ``PAGE_BYTES``, all zero until a ``PageWriter`` starts it."""

    def __init__(self, memory: Union[bytearray, memoryview]) -> None:
        self._bytes = memoryview(memory)
        self.words = self._bytes.cast("q")

    def view(self) -> PageView:
        """Everything except the ring of spans."""
        head = self.words[:SPANS_AT].tolist()
        cause = head[AT["cause"]]
        return PageView(
            **{name: head[at] for name, at in AT.items() if name not in ("cause", "spans")},
            cause=CAUSES[cause] if 0 <= cause < len(CAUSES) else "",
            waited_ns={name: head[WAITED_AT + at] for name, at in CAUSE_INDEX.items()},
            shard=self.shard,
            function=self.function,
            stack=self._text(STACK_AT, STACK_BYTES),
        )

    def word(self, name: str) -> int:
        """One number, by its name in ``PageView``."""
        return self.words[AT[name]]

    @property
    def shard(self) -> str:
        return self._text(SHARD_AT, SHARD_BYTES)

    @property
    def function(self) -> str:
        return self._text(FUNCTION_AT, FUNCTION_BYTES)

    def spans(self, start_ns: int, end_ns: int) -> List[BookedSpan]:
        """The booked spans between the two times, in order and without gaps. The ring holds only the latest ones."""
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

    def _text(self, at: int, room: int) -> str:
        length = self.words[at // 8]
        if not 0 < length <= room - 8:
            return ""
        return bytes(self._bytes[at + 8 : at + 8 + length]).decode("utf-8", "replace")


_SPANS, _SETTLED = AT["spans"], AT["settled_ns"]
_CAUSE, _SINCE, _HEARTBEAT = AT["cause"], AT["since_ns"], AT["heartbeat_ns"]


class PageWriter:
    """Writes ``page``, which must be all zero. Not thread-safe."""

    def __init__(self, page: MeterPage, *, pid: int, start_time: int, worker: int, now_ns: int) -> None:
        self._words = page.words
        self._last_cause = -1
        self._shard = self._stack = self._function = ""
        self._put(pid=pid, start_time=start_time, worker=worker, cause=-1)
        self._put(since_ns=now_ns, heartbeat_ns=now_ns, settled_ns=now_ns)
        self._put(begun_ns=now_ns)  # last: it marks the page as started

    def book(self, spans: "Sequence[tuple[int, int]]", heartbeat_ns: int, cause: int, since_ns: int) -> None:
        """Add ``spans``: pairs (end, index of the cause), each from the end of the previous one. ``cause`` and ``since_ns``: the present
        activity.
        """
        for end_ns, spent_on in spans:
            self._span(end_ns, spent_on)
        words = self._words
        words[_CAUSE], words[_SINCE], words[_HEARTBEAT] = cause, since_ns, heartbeat_ns

    def sums(self, waited_ns: Sequence[int], **numbers: int) -> None:
        """Write ``waited_ns``, the reader wait so far for each cause, and other ``numbers`` by name."""
        self._words[WAITED_AT : WAITED_AT + len(waited_ns)] = array("q", waited_ns)
        self._put(**numbers)

    def tell(self, shard: str, stack: str, function: str = "") -> None:
        """Write the texts, cut to their maximum length."""
        if shard != self._shard:
            self._shard = shard
            self._text(SHARD_AT, SHARD_BYTES, shard)
        if function != self._function:
            self._function = function
            self._text(FUNCTION_AT, FUNCTION_BYTES, function)
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
        words[at // 8] = 0
        words[at // 8 + 1 : at // 8 + 1 + len(padded) // 8] = array("q", padded)
        words[at // 8] = len(data)


class SharedPages:
    """The pages of one iterator's workers. A forked worker inherits them; a spawned one gets their file.

    The memory is written at once, so that it is allocated: a store into memory that cannot be allocated later would end the process
    (SIGBUS).
    """

    def __init__(self, workers: int) -> None:
        self.trainer = os.getpid()
        self._size = workers * PAGE_BYTES
        self._file = nameless_file("forebay-meter")
        weakref.finalize(self, os.close, self._file)
        os.write(self._file, bytes(self._size))
        self._memory = memoryview(mmap.mmap(self._file, self._size))

    def page(self, worker: int) -> MeterPage:
        return MeterPage(self._memory[worker * PAGE_BYTES : (worker + 1) * PAGE_BYTES])

    def __getstate__(self) -> Dict[str, Any]:
        return {"trainer": self.trainer, "size": self._size, "file": reduction.DupFd(self._file)}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.trainer, self._size, self._file = state["trainer"], state["size"], state["file"].detach()
        weakref.finalize(self, os.close, self._file)
        self._memory = memoryview(mmap.mmap(self._file, self._size))
