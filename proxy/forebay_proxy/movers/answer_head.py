"""Where an answer's head ends, and whether the body behind it may be held for a landing. Pure.

The event loop's HTTP client reads the head, judges it and decides; a mover only has to find its end, and must not find another one than the
client does. So a body is held only behind a head that leaves no room for opinions: lines that end in CR LF and nothing else, one length, no
transfer coding. Everything else is relayed as it comes, and the client makes of it what it always does.
"""

from __future__ import annotations

import re

from forebay_proxy.movers.frames import LEAST_BYTES

__all__ = ["MOST_HEAD_BYTES", "AnswerHead", "end_of_head", "is_interim", "may_hold"]

MOST_HEAD_BYTES = 256 * 1024  # the client gives up far below it

_END = re.compile(rb"\n\r?\n")
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_NAMES = re.compile(rb"\r\n(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE)


def end_of_head(received: bytes | bytearray) -> int:
    """The offset behind the first empty line; 0 where there is none yet."""
    found = _END.search(received)
    return 0 if found is None else found.end()


def is_interim(head: bytes) -> bool:
    """Whether another head follows: 100 Continue, 103 Early Hints. Not 101, which ends HTTP."""
    status = _STATUS.match(head)
    return status is not None and status[1][:1] == b"1" and status[1] != b"101"


def may_hold(head: bytes) -> bool:
    """Whether the body behind ``head`` is one that could be landed: long enough, and its place beyond doubt."""
    status = _STATUS.match(head)
    if status is None or status[1] not in (b"200", b"206") or _BARE.search(head):
        return False
    lengths = _LENGTH.findall(head)
    return len(_NAMES.findall(head)) == len(lengths) == 1 and int(lengths[0]) >= LEAST_BYTES


class AnswerHead:
    """Gathers what comes until the head is whole; interim ones are passed on.

    ``over``: it is, or there is none to be found. ``may_hold``: so may the body behind it, of which ``rest`` has the first bytes.
    """

    def __init__(self) -> None:
        self.over = self.may_hold = False
        self._gathered = bytearray()

    def __repr__(self) -> str:
        return f"<AnswerHead {len(self._gathered)} bytes{', over' if self.over else ''}>"

    def add(self, data: bytes | memoryview) -> bytes:
        """What is for the client now."""
        self._gathered += data
        passed = b""
        while not self.over and (end := end_of_head(self._gathered)):
            head = bytes(self._gathered[:end])
            del self._gathered[:end]
            passed += head
            self.over = not is_interim(head)
            self.may_hold = self.over and may_hold(head)
        if self.may_hold:
            return passed
        if self.over or len(self._gathered) > MOST_HEAD_BYTES:
            self.over = True
            return passed + self.rest()
        return passed

    def rest(self) -> bytes:
        """What was gathered, once."""
        gathered, self._gathered = bytes(self._gathered), bytearray()
        return gathered
