"""What an origin under test answers, decided before a byte of it is sent: pure values, and scripts of what goes wrong.

A ``Reply`` is how a shard is answered: its bytes and validators, what its server honours, how slowly an answer goes out and where it ends.
``Call.honest`` decides the ``Answer`` to one request from it as a good server would; a ``Fault`` decides another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

__all__ = ["Answer", "Body", "Call", "Change", "Fault", "Reply", "Seen", "Served", "ramp"]


Body = bytes | Callable[[int, int], bytes]  # or slices on demand: (first, end) -> bytes, with `size`


@dataclass(frozen=True)
class Reply:
    """How one path answers. Everything has a quiet default."""

    body: Body = field(default=b"", repr=False)
    size: int | None = None
    etag: str | None = '"v1"'
    last_modified: str | None = None
    encoding: str = ""
    status: int | None = None  # None: 200 or 206 as it follows
    head_status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ranges: bool = True  # honours Range
    conditions: bool = True  # honours If-Match and If-Unmodified-Since
    framing: str = "length"  # "length", "chunked" or "close"
    range_status: int = 206  # rclone says 200
    content_range: str | None = None  # a lie to tell
    # How it goes out
    before: bytes = b""  # sent ahead of the head, as it is
    beyond: bytes = b""  # sent behind the body, as it is, `beyond_s` later
    beyond_s: float = 0.0
    cut_after: int | None = None  # body bytes after which the connection ends; negative: before any header
    reset: bool = False  # ends with a reset instead of a close
    stall: bool = False  # is silent instead, until the client leaves
    last: bool = False  # the connection ends, though nothing is missing
    gate: Any = None  # an asyncio.Event, waited for before the headers
    body_gate: Any = None  # another, waited for once `gate_at` body bytes are out
    gate_at: int = 0
    latency_s: float = 0.0
    bytes_per_s: float | None = None  # of each connection

    @property
    def length(self) -> int:
        return self.size if self.size is not None else len(self.body)  # type: ignore[arg-type]

    @property
    def ends(self) -> bool:
        """Whether the connection cannot be used again."""
        return self.cut_after is not None or self.stall or self.last or bool(self.beyond) or self.framing == "close"

    def part(self, first: int, end: int) -> bytes:
        return self.body(first, end) if callable(self.body) else self.body[first:end]


@dataclass(frozen=True)
class Seen:
    """One request as it came; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    connection: int

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(frozen=True)
class Answer:
    """Bytes ``first`` to ``end`` of the reply's body, under a head."""

    reply: Reply
    status: int
    headers: tuple[tuple[str, str], ...]
    first: int = 0
    end: int = 0

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Scripted", *(f"{name}: {value}" for name, value in self.headers), "", ""]
        return "\r\n".join(lines).encode("latin-1")

    def data(self) -> bytes:
        return self.reply.part(self.first, self.end)

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.headers if known == name), None)

    def saying(self, name: str, value: str | None) -> Answer:
        """With another value of a header it has, or without it."""
        changed = ((known, value if known == name else old) for known, old in self.headers)
        return replace(self, headers=tuple((known, kept) for known, kept in changed if kept is not None))

    def holding(self, data: bytes) -> Answer:
        """With other bytes, and the Content-Length of these."""
        return replace(
            self.saying("Content-Length", str(len(data))), reply=replace(self.reply, body=data, size=None), first=0, end=len(data)
        )


@dataclass
class Served:
    """A path of the origin. ``states[-1]`` is what it is now; ``script`` maps the number of a request (from 0) to what goes wrong."""

    path: str
    states: list[Reply] = field(default_factory=lambda: [Reply(status=404, etag=None)])
    script: dict[int, Fault] = field(default_factory=dict)
    always: Fault | None = None  # every answer that the script does not speak of
    asked: int = 0
    claimed: set[int] = field(default_factory=set)  # lengths it has claimed to have, wrongly

    @property
    def now(self) -> Reply:
        return self.states[-1]

    def answer(self, seen: Seen, in_flight: int = 1) -> Answer:
        """The answer to the next request."""
        number, self.asked = self.asked, self.asked + 1
        return (self.script.pop(number, self.always) or Fault()).answer(Call(self, seen, in_flight))


@dataclass(frozen=True)
class Call:
    """One request being answered, one of ``in_flight``."""

    served: Served
    seen: Seen
    in_flight: int = 1

    def honest(self, **change: Any) -> Answer:
        """What a good server would answer now; with ``change``, one of another reply."""
        reply = replace(self.served.now, **change)
        status, first, end, ranged = _decide(reply, self.seen)
        if status in (200, 206):
            framing = {"length": [("Content-Length", str(end - first))], "chunked": [("Transfer-Encoding", "chunked")], "close": []}
            framed = [*([("Content-Encoding", reply.encoding)] if reply.encoding else []), *framing[reply.framing]]
        else:
            framed = [("Content-Length", str(end - first))]
            reply = replace(reply, framing="length")
        return Answer(reply, status, (*_validators(reply), *ranged, *reply.headers, *framed), first, end)


class Fault:
    """What goes wrong with one answer. This one: nothing."""

    def answer(self, call: Call) -> Answer:
        return call.honest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Change(Fault):
    """The reply is another, this once."""

    def __init__(self, **change: Any) -> None:
        self.change = change

    def answer(self, call: Call) -> Answer:
        return call.honest(**self.change)


def _decide(reply: Reply, seen: Seen) -> tuple[int, int, int, list[tuple[str, str]]]:
    """(status, first, end, headers) that follow from the request."""
    length = reply.length
    if seen.method == "HEAD" and reply.head_status is not None:
        return reply.head_status, 0, 0, []
    if reply.status is not None:
        return reply.status, 0, length, []
    match, since = seen.headers.get("if-match"), seen.headers.get("if-unmodified-since")
    if reply.conditions and ((match is not None and match != reply.etag) or (since is not None and since != reply.last_modified)):
        return 412, 0, 0, []
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", seen.range or "")
    if not reply.ranges or found is None:
        return 200, 0, length, []
    first, end = int(found[1]), min(int(found[2] or length) + 1, length)
    if first >= length:
        return 416, 0, 0, [("Content-Range", f"bytes */{length}")]
    said = reply.content_range if reply.content_range is not None else f"bytes {first}-{end - 1}/{length}"
    return reply.range_status, first, end, [("Content-Range", said)] if said else []


def _validators(reply: Reply) -> list[tuple[str, str]]:
    pairs = (("ETag", reply.etag), ("Last-Modified", reply.last_modified))
    return [(name, value) for name, value in pairs if value is not None]


# Bytes whose value follows from their offset, so that any slice can be checked alone. Pure.
_BLOCK = 1 << 16


def ramp(count: int, start: int = 0) -> bytes:
    """``count`` bytes from offset ``start``; byte i is the exclusive or of the four lowest bytes of i."""
    end = start + count
    blocks = range(start // _BLOCK, -(-end // _BLOCK))
    joined = b"".join(_block(number & 0xFF ^ (number >> 8) & 0xFF) for number in blocks)
    skip = start % _BLOCK
    return joined[skip : skip + count]


@lru_cache(maxsize=256)
def _block(mask: int) -> bytes:
    return bytes((i & 0xFF) ^ (i >> 8) ^ mask for i in range(_BLOCK))
