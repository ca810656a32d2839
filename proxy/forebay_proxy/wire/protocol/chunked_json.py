"""Large bodies as pieces, each parsed in a millisecond: a thread that parses lets other threads run in between. Pure.

``json.loads`` of one large text holds the interpreter's lock from its beginning to its end, 0.1 s for a million numbers, and every other
thread waits for it, the event loop among them. So lines are parsed some hundred at a time, and a long list of numbers is taken out of the
object it is in and parsed in parts.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterator, NamedTuple, Optional

__all__ = ["PIECE_BYTES", "Cut", "cut_list", "lines", "numbers"]

PIECE_BYTES = 1 << 16  # 650 URLs of 100 bytes, or 10,000 numbers: half a millisecond of json, and 1 ms of looking at them


class Cut(NamedTuple):
    """A JSON text less the list that one of its fields is, and where that list's entries were."""

    rest: bytes  # with [null] in its place
    begin: int
    end: int


def lines(body: bytes) -> Iterator[list[bytes]]:
    """The lines of ``body`` that are not blank, some hundred at a time."""
    start = 0
    while start < len(body):
        end = body.rfind(b"\n", start, start + PIECE_BYTES)
        if end < 0:
            end = body.find(b"\n", start)
        stop = len(body) if end < 0 else end + 1
        found = [line for line in body[start:stop].split(b"\n") if line.strip()]
        if found:
            yield found
        start = stop


def cut_list(body: bytes, field: str) -> Optional[Cut]:
    """``body`` without the list that ``field`` is; None where that cannot be told without parsing it all.

    Where the field's name stands but once, with its quotes, before a colon, it is a key and no part of a string: there its second quote
    would have a backslash. A list of anything but numbers ends elsewhere than it seems; then its parts are no JSON.
    """
    name = json.dumps(field).encode()
    if body.count(name) != 1:
        return None
    head = re.compile(re.escape(name) + rb"\s*:\s*\[").search(body)
    end = body.find(b"]", head.end()) if head else -1
    if head is None or end < 0:
        return None
    return Cut(body[: head.end()] + b"null" + body[end:], head.end(), end)


def numbers(body: bytes, begin: int, end: int) -> Iterator[list[Any]]:
    """The values of a list's entries, which stand from ``begin`` to ``end``, some thousand at a time. Raises ``ValueError``."""
    while begin < end:
        cut = body.rfind(b",", begin, begin + PIECE_BYTES) if end - begin > PIECE_BYTES else end
        if cut < 0:
            raise ValueError("an entry is longer than any number")
        values = json.loads(b"[" + body[begin:cut] + b"]")
        if not values:  # nothing before a comma
            raise ValueError("an entry is missing")
        yield values
        begin = cut + 1
