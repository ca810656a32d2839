"""What can go wrong with one answer of a ``ScriptedOrigin``: most of it is another ``Reply``, some of it another ``Answer``."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from support.scripted_answers import Answer, Call, Change, Fault, Reply

__all__ = [
    "Backends", "DifferentTotal", "Drip", "EncodedOnce", "Flip", "Garbled", "MisplacedRange", "Nameless", "ShorterRange", "Surplus",
    "TurnedByte", "WrongLength", "bad_chunk", "cut_short", "hints", "hush", "not_http", "nothing", "redirect", "stall", "status",
    "whole_for_range", "zipped",
]  # fmt: skip


def cut_short(after: int, *, reset: bool = False) -> Fault:
    """The connection ends after so many body bytes: with FIN or RST. ``after`` < 0: before any header."""
    return Change(cut_after=after, reset=reset)


def stall(after: int) -> Fault:
    """Silence after so many body bytes. ``after`` < 0: not even a header."""
    return Change(cut_after=after, stall=True)


def status(code: int, retry_after: str | None = None, word: str = "SlowDown") -> Fault:
    """An error status, with a body as S3 writes it; ``retry_after`` as the header says it."""
    headers = [("Content-Type", "application/xml"), *([] if retry_after is None else [("Retry-After", retry_after)])]
    return Change(status=code, etag=None, last_modified=None, headers=headers, body=f"<Error><Code>{word}</Code></Error>".encode())


def hush(code: int = 500) -> Fault:
    """An error status whose body never ends."""
    return Change(status=code, etag=None, last_modified=None, body=b"<Error>".ljust(1000), cut_after=7, stall=True)


def whole_for_range() -> Fault:
    """200 and the whole body, whatever was asked for."""
    return Change(ranges=False)


def redirect(location: str) -> Fault:
    """302 to ``location``."""
    return Change(status=302, etag=None, last_modified=None, headers=[("Location", location)], body=b"")


def bad_chunk(after: int, rest: bytes = b"") -> Fault:
    """Chunked coding that ends before its last chunk (``rest`` b""), or goes on in ``rest``, which is none."""
    return Change(framing="chunked", cut_after=after, beyond=rest, stall=bool(rest))


def not_http(said: bytes) -> Fault:
    """Bytes that are no answer."""
    return Change(before=said, cut_after=-1)


def hints() -> Fault:
    """Interim answers before the real one: legal, and rare enough to be handled wrongly."""
    return Change(before=b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")


def nothing(said: str | None) -> Fault:
    """416 for bytes that exist. ``said``: the Content-Range of it, None for no such header."""
    headers = [] if said is None else [("Content-Range", said)]
    return Change(status=416, etag=None, last_modified=None, headers=headers, body=b"")


@dataclass(repr=False)
class WrongLength(Fault):
    """Content-Length says so many bytes more (or fewer) than Content-Range and the body."""

    off_by: int

    def answer(self, call: Call) -> Answer:
        answer = call.honest(last=True)
        return answer.saying("Content-Length", str(max(0, answer.end - answer.first + self.off_by)))


@dataclass(repr=False)
class Surplus(Fault):
    """More bytes than Content-Length says; the rest looks like an answer to a question nobody asked yet."""

    pause_s: float = 0.0

    def answer(self, call: Call) -> Answer:
        return call.honest(beyond=b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong", beyond_s=self.pause_s, stall=True)


@dataclass(repr=False)
class MisplacedRange(Fault):
    """Another place than asked for, bytes and Content-Range agreeing; ``label_only``: the bytes are those asked for."""

    shift: int
    label_only: bool = False

    def answer(self, call: Call) -> Answer:
        answer, length = call.honest(), call.served.now.length
        if answer.status not in (200, 206) or answer.header("Content-Range") is None:
            return answer
        data = answer.data()
        there = max(0, min(answer.first + self.shift, length - len(data)))
        if there == answer.first:  # it fills the shard: there is no other place of this size
            there, data = there + 1, data[1:] or b"?"
        elif not self.label_only:
            data = call.served.now.part(there, there + len(data))
        said = f"bytes {there}-{there + len(data) - 1}/{max(length, there + len(data))}"
        return answer.holding(data).saying("Content-Range", said)


@dataclass(repr=False)
class ShorterRange(Fault):
    """Fewer bytes than asked for, said so: legal, and never enough."""

    count: int

    def answer(self, call: Call) -> Answer:
        answer = call.honest()
        if answer.status not in (200, 206) or answer.header("Content-Range") is None or answer.end - answer.first <= self.count:
            return answer
        said = f"bytes {answer.first}-{answer.first + self.count - 1}/{call.served.now.length}"
        return answer.holding(answer.data()[: self.count]).saying("Content-Range", said)


@dataclass(repr=False)
class DifferentTotal(Fault):
    """Content-Range claims another length of the whole."""

    off_by: int

    def answer(self, call: Call) -> Answer:
        answer = call.honest()
        said, slash, total = (answer.header("Content-Range") or "").rpartition("/")
        if not slash:
            return answer
        call.served.claimed.add(int(total) + self.off_by)
        return answer.saying("Content-Range", f"{said}/{int(total) + self.off_by}")


@dataclass(repr=False)
class Garbled(Fault):
    """One header is not what it should be. ``value`` None: it is missing."""

    name: str
    value: str | None

    def answer(self, call: Call) -> Answer:
        return call.honest(last=True).saying(self.name, self.value)


@dataclass(repr=False)
class Nameless(Fault):
    """This answer names no version."""

    def answer(self, call: Call) -> Answer:
        return call.honest().saying("ETag", None).saying("Last-Modified", None)


@dataclass(repr=False)
class Flip(Fault):
    """From this request on the shard is another version, of other bytes or (as a restored backup) of the same."""

    to: Reply

    def answer(self, call: Call) -> Answer:
        to, now = self.to, call.served.now
        call.served.states.append(replace(now, body=to.body, etag=to.etag, last_modified=to.last_modified, encoding=to.encoding))
        return call.honest()


@dataclass(repr=False)
class TurnedByte(Fault):
    """The byte at ``offset`` of the shard arrives wrong, the first time it is sent; ``turned`` counts."""

    offset: int
    turned: int = 0

    def answer(self, call: Call) -> Answer:
        answer = call.honest()
        if self.turned or call.seen.method == "HEAD" or not answer.first <= self.offset < answer.end:
            return answer
        self.turned += 1
        data = bytearray(answer.data())
        data[self.offset - answer.first] ^= 0x20
        return answer.holding(bytes(data))


@dataclass(repr=False)
class Backends(Fault):
    """Each request is answered by one of several servers, by chance: the same bytes, and an ETag of its own."""

    etags: Sequence[str]
    chance: random.Random

    def answer(self, call: Call) -> Answer:
        return call.honest(etag=self.chance.choice(self.etags))


@dataclass(repr=False)
class EncodedOnce(Fault):
    """gzip that nobody asked for, under the same ETag."""

    def answer(self, call: Call) -> Answer:
        now = zipped(call.served.now)
        return call.honest(body=now.body, encoding=now.encoding, last_modified=None, ranges=False, conditions=False, framing="length")


@dataclass(repr=False)
class Drip(Fault):
    """The body within ``seconds``: slow, and never silent for long."""

    seconds: float

    def answer(self, call: Call) -> Answer:
        answer = call.honest()
        return replace(answer, reply=replace(answer.reply, bytes_per_s=max(1, answer.end - answer.first) / self.seconds))


def zipped(state: Reply) -> Reply:
    """The gzip form of ``state``, as ``EncodedOnce`` sends it."""
    return replace(state, body=gzip.compress(state.part(0, state.length), 1, mtime=0), encoding="gzip")
