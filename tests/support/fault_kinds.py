"""The kinds of trouble a shard's origin can be in, each made from a seed: what the shard is, what goes wrong, and how reads of it may end.

``MENDS``: a right answer exists, and a fetch that does not give up finds it. ``EITHER``: the version a reader began with is gone, or
nothing tells it from another; whole bytes of one version or an error. ``FAILS``: nobody could read this; every read ends in an error.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from support import faults
from support.faults import zipped
from support.scripted_answers import Fault, Reply

__all__ = ["KINDS", "Case", "Ends", "case"]

DATES = ("Wed, 21 Oct 2026 07:28:00 GMT", "Thu, 22 Oct 2026 07:28:00 GMT")
_NOT_HTTP = (
    b"HTTP/1.1 abc\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"<html>502</html>",
    b"HTTP/9.9 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 206 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
)
_NO_RANGES = ("bytes banana", "bytes 0-/5", "", "items 0-1/2", "bytes 5-3/9", "bytes 0-99999999999999999999/*", "bytes */77", None)


class Ends(Enum):
    MENDS = "mends"
    EITHER = "either"
    FAILS = "fails"


@dataclass
class Case:
    """One shard in trouble: the arguments of ``ScriptedOrigin.put``."""

    kind: str
    ends: Ends
    state: Reply
    how: dict[str, Any] = field(default_factory=dict)
    forms: tuple[Reply, ...] = ()  # further bodies the origin may rightly send
    host: str = "127.0.0.1"  # its name for the sidecar: what is learned of one origin is nothing about the others

    @property
    def passing(self) -> bool:
        """Whether the sidecar may have learnt of a version that nothing names, or that is sent once: no later body has the rest of it."""
        answers = (self.how.get("always"), *self.how.get("script", {}).values())
        return not (self.state.etag or self.state.last_modified) or any(
            isinstance(answer, faults.Nameless | faults.EncodedOnce) for answer in answers
        )


class _Draw:
    """What a kind is made from: chance, the shard's path, and sizes in terms of the sidecar's segments."""

    def __init__(self, chance: random.Random, path: str, segment: int, forbidden: str) -> None:
        self.chance = chance
        self.path = path
        self.segment = segment
        self.forbidden = forbidden  # a URL on this machine that the sidecar may not visit
        self.size = self._size()
        self.body = chance.randbytes(self.size)
        self.segments = -(-self.size // segment)

    def _size(self) -> int:
        pick, segment = self.chance.random(), self.segment
        if pick < 0.05:
            return self.chance.choice((1, 2, 511, segment - 1, segment, segment + 1, 2 * segment, 3 * segment + 1))
        if pick < 0.5:
            return self.chance.randrange(1, segment)
        return self.chance.randrange(segment, 8 * segment)

    def state(self, **how: Any) -> Reply:
        return Reply(self.body, **{"etag": f'"{self.chance.getrandbits(48):x}"', **how})

    def other(self, state: Reply, **how: Any) -> Reply:
        """Another version: other bytes, mostly of another size."""
        size = self.size if self.chance.random() < 0.3 else self._size()
        names = {"etag": state.etag and state.etag[:-2] + 'ff"', "last_modified": state.last_modified and DATES[1]}
        return replace(state, body=self.chance.randbytes(size), **{**names, **how})

    def after(self) -> int:
        """So many bytes of a body."""
        return self.chance.randrange(0, min(self.size, self.segment) + 1)

    def script(self, make: Callable[[], Fault], *, first: int = 0, most: int = 2) -> dict[int, Fault]:
        """One to ``most`` requests in a row go wrong, anywhere in the shard."""
        at = first if self.segments <= 1 or self.chance.random() < 0.4 else self.chance.randrange(first, first + self.segments)
        return {at + more: make() for more in range(self.chance.randint(1, most))}

    def pick(self, *among: Any) -> Any:
        return self.chance.choice(among)


_Kind = Callable[[_Draw], Case]
KINDS: dict[str, _Kind] = {}


def _kind(name: str, ends: Ends) -> Callable[[Callable[[_Draw], tuple[Reply, dict[str, Any]]]], None]:
    def add(make: Callable[[_Draw], tuple[Reply, dict[str, Any]]]) -> None:
        def build(draw: _Draw) -> Case:
            state, how = make(draw)
            return Case(name, ends, state, how, how.pop("forms", ()), how.pop("host", "127.0.0.1"))

        KINDS[name] = build

    return add


def _simple(name: str, ends: Ends, make: Callable[[_Draw], Fault], *, first: int = 0, most: int = 2, **how: Any) -> None:
    """A kind that is one fault, on a server that is otherwise good."""
    _kind(name, ends)(lambda draw: (draw.state(), {"script": draw.script(lambda: make(draw), first=first, most=most), **how}))


def _always(name: str, make: Callable[[_Draw], Fault], **how: Any) -> None:
    _kind(name, Ends.FAILS)(lambda draw: (draw.state(), {"always": make(draw), **how}))


def _breaks(draw: _Draw) -> Fault:
    return faults.cut_short(draw.after(), reset=draw.pick(True, False))


_simple("honest", Ends.MENDS, lambda _: Fault())
_simple("cut", Ends.MENDS, lambda draw: faults.cut_short(draw.after()), most=4)
_simple("reset", Ends.MENDS, lambda draw: faults.cut_short(draw.after(), reset=True), most=4)
_simple("closed before headers", Ends.MENDS, lambda draw: faults.cut_short(-1, reset=draw.pick(True, False)), most=4)
_simple("stall", Ends.MENDS, lambda draw: faults.stall(draw.after()), most=1)
_simple("stall before headers", Ends.MENDS, lambda _: faults.stall(-1), most=1)
_simple("slow drip", Ends.MENDS, lambda draw: faults.Drip(draw.pick(0.1, 0.3, 0.6)), most=1)
_simple("interim answers", Ends.MENDS, lambda _: faults.hints())
_simple("not HTTP", Ends.MENDS, lambda draw: faults.not_http(draw.pick(*_NOT_HTTP)))
_simple("error body that stalls", Ends.MENDS, lambda draw: faults.hush(draw.pick(500, 502)), most=1)
for _code in (408, 429, 500, 502, 503, 504):
    _simple(
        f"status {_code}", Ends.MENDS, lambda draw, code=_code: faults.status(code, draw.pick(None, "0", "1", DATES[0], "soon")), most=3
    )  # type: ignore[misc]
_simple("SlowDown as 400", Ends.MENDS, lambda _: faults.status(400, None, "SlowDown"))
_simple("short Content-Length", Ends.MENDS, lambda draw: faults.WrongLength(-draw.chance.randint(1, 500)))
_simple("long Content-Length", Ends.MENDS, lambda draw: faults.WrongLength(draw.chance.randint(1, 500)))
_simple("bad Content-Length", Ends.MENDS, lambda draw: faults.Garbled("Content-Length", draw.pick("banana", "-1", "5, 6", "1e3")))
_simple("bytes beyond the body", Ends.MENDS, lambda _: faults.Surplus())
_simple("shifted range", Ends.MENDS, lambda draw: faults.MisplacedRange(draw.pick(1, -1, 100, draw.segment), draw.pick(True, False)))
_simple("shorter range", Ends.MENDS, lambda draw: faults.ShorterRange(draw.chance.randint(1, draw.segment)), most=4)
_simple("garbled Content-Range", Ends.MENDS, lambda draw: faults.Garbled("Content-Range", draw.pick(*_NO_RANGES)))
_simple("other total", Ends.MENDS, lambda draw: faults.DifferentTotal(draw.pick(-1, 1, 1000)), first=1)
# The first answer's word for the length is all there is: a smaller one would be believed, from anybody.
_simple("larger total at first", Ends.EITHER, lambda draw: faults.DifferentTotal(draw.pick(1, 1000, draw.segment)), most=1)
_simple("answer without a version", Ends.MENDS, lambda _: faults.Nameless())
_simple("whole for range", Ends.MENDS, lambda _: faults.whole_for_range())
_simple("range as 200", Ends.MENDS, _breaks, range_status=200)
_simple("range as 200, shifted", Ends.MENDS, lambda draw: faults.MisplacedRange(draw.pick(1, -1, 100)), range_status=200)
_simple("If-Match ignored", Ends.MENDS, _breaks, conditions=False)
_simple("gzip surprise", Ends.MENDS, lambda _: faults.EncodedOnce())
_simple("chunked", Ends.MENDS, lambda _: Fault(), framing="chunked")
_simple("chunked, cut", Ends.MENDS, lambda draw: faults.bad_chunk(draw.after()), most=3)
_simple("chunk header unreadable", Ends.MENDS, lambda draw: faults.bad_chunk(draw.after(), b"zzzz\r\nJUNK"), most=1)
_simple("closed at the end", Ends.MENDS, lambda _: Fault(), framing="close")
_simple("no Range", Ends.MENDS, lambda _: Fault(), ranges=False)
_simple("no Range, broken", Ends.MENDS, _breaks, ranges=False, most=3)
_simple("no Range, chunked, broken", Ends.MENDS, lambda draw: faults.bad_chunk(draw.after()), ranges=False, framing="chunked", most=1)
_simple("redirect", Ends.MENDS, lambda draw: faults.redirect(f"{draw.path}?again"))
_simple("416 on the way", Ends.EITHER, lambda draw: faults.nothing(draw.pick(None, "bytes */0", "bytes */12")), first=1)
_simple("refused on the way", Ends.EITHER, lambda draw: faults.status(draw.pick(401, 403, 404, 412, 418), None, "Denied"), first=1)
_simple("redirect away on the way", Ends.EITHER, lambda draw: faults.redirect(draw.forbidden), first=1)
_always("redirect to a private address", lambda draw: faults.redirect(draw.forbidden))
_always("redirect loop", lambda draw: faults.redirect(f"{draw.path}?again"))
_always("Retry-After beyond the budget", lambda draw: faults.status(draw.pick(429, 503), "3600"))
_always("always a shifted range", lambda draw: faults.MisplacedRange(7, draw.pick(True, False)), range_status=206)
_always("always a garbled range", lambda draw: faults.Garbled("Content-Range", "bytes banana"))
_always("never HTTP", lambda draw: faults.not_http(draw.pick(*_NOT_HTTP)))
_always("not found", lambda _: faults.status(404, None, "NoSuchKey"))


@_kind("empty", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return replace(draw.state(), body=b""), {"script": draw.script(_cut_at_once), "ranges": draw.pick(True, False)}


@_kind("416 at first", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(), {"script": {0: faults.nothing(draw.pick(None, "bytes */0", "bytes */12"))}, "ranges": draw.pick(True, False)}


@_kind("gzip from the start", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return zipped(draw.state()), {"script": draw.script(lambda: _breaks(draw))}


@_kind("weak ETag", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(etag=f'W/"{draw.size}"', last_modified=draw.pick(None, DATES[0])), {"script": draw.script(lambda: _breaks(draw))}


@_kind("Last-Modified only", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(etag=None, last_modified=DATES[0]), {"script": draw.script(lambda: _breaks(draw))}


@_kind("no validator", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(etag=None), {"script": draw.script(_cut_at_once)}


@_kind("no validator, broken", Ends.EITHER)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(etag=None), {"script": draw.script(lambda: _breaks(draw)), "ranges": draw.pick(True, False)}


@_kind("no validator, broken and another", Ends.EITHER)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    state = draw.state(etag=None)
    other = replace(state, body=draw.chance.randbytes(draw.size))  # of the same length, so that nothing at all tells them apart
    return state, {"script": {0: faults.cut_short(max(1, draw.size // 2)), 1: faults.Flip(other)}, "ranges": False}


@_kind("closed at the end of a tar", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    body = _tar(draw.body)
    cut = draw.chance.randrange(0, len(body) - 1024)
    script = {0: faults.cut_short(cut)} if draw.pick(True, False) else {}
    return replace(draw.state(), body=body), {"ranges": False, "framing": "close", "script": script}


@_kind("closed anywhere", Ends.FAILS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    return draw.state(), {"ranges": False, "framing": "close"}


def _cut_at_once() -> Fault:
    return faults.cut_short(0)


def _flips(name: str, **how: Any) -> None:
    """The shard becomes another version while it is read."""

    @_kind(name, Ends.EITHER)
    def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
        state = draw.state(**how)
        first, then = draw.other(state), draw.other(state, etag='"third"' if state.etag else None)
        script: dict[int, Fault] = {draw.chance.randrange(0, draw.segments + 1): faults.Flip(first)}
        if draw.chance.random() < 0.3:
            script[draw.segments + 2] = faults.Flip(replace(then, last_modified=None))
        if draw.chance.random() < 0.5:  # a broken body is asked for again, and now of another version
            script.setdefault(0, _breaks(draw))
        return state, {"script": script, "conditions": draw.pick(True, False), "ranges": draw.chance.random() < 0.8}


_flips("flip")
_flips("flip, weak ETag", etag='W/"aaaa"')
_flips("flip, Last-Modified only", etag=None, last_modified=DATES[0])
_flips("flip, no validator", etag=None)


@_kind("flip of the ETag alone", Ends.EITHER)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    state = draw.state()
    return state, {"script": {draw.chance.randrange(0, draw.segments + 1): faults.Flip(replace(state, etag='"restored"'))}}


@_kind("several backends", Ends.MENDS)
def _(draw: _Draw) -> tuple[Reply, dict[str, Any]]:
    state, number = draw.state(), draw.pick(2, 2, 3, 4)
    forms = tuple(replace(state, etag=f'"{draw.chance.getrandbits(48):x}"') for _ in range(number - 1))
    etags = [form.etag or "" for form in (state, *forms)]
    return state, {"always": faults.Backends(etags, random.Random(draw.size)), "forms": forms, "host": "localhost"}


def case(number: int, *, seed: int, path: str, segment: int, forbidden: str) -> Case:
    """The ``number``-th shard of a run; every kind comes once in as many."""
    names = list(KINDS)
    order = random.Random(f"{seed}/{number // len(names)}")
    order.shuffle(names)
    draw = _Draw(random.Random(f"{seed}/{number}"), path, segment, forbidden)
    made = KINDS[names[number % len(names)]](draw)
    if made.kind == "gzip surprise":
        made.forms = (zipped(made.state),)
    return made


def _tar(body: bytes) -> bytes:
    """A tar of one file, ending with exactly two zero blocks: what lies behind them is padding that a cut may take."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("member.bin")
        info.size = len(body)
        tar.addfile(info, io.BytesIO(body))
    return buffer.getvalue()[: 512 + -(-len(body) // 512) * 512 + 1024]
