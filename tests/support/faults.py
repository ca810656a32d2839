"""What can go wrong with one answer of an origin, one small class each; ``FaultOrigin`` tells the honest rest."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from support.fault_origin import Call, Fault, Reply, State

__all__ = [
    "Backends", "BadChunk", "CutShort", "DifferentTotal", "Drip", "EncodedOnce", "Flip", "Garbled", "Hints", "Hush", "MisplacedRange",
    "Nameless",
    "NotHttp",     "Nothing", "Redirect", "ShorterRange", "Stall", "Status", "Surplus", "WholeForRange", "WrongLength", "zipped",
]  # fmt: skip


@dataclass(repr=False)
class CutShort(Fault):
    """The connection ends after so many body bytes: with FIN or RST. ``after`` < 0: before any header."""

    after: int
    reset: bool = False

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if self.after >= 0:
            await call.send(reply.head())
            await call.send_body(reply, reply.body[: self.after])
        if self.reset:
            call.reset()
        return False


@dataclass(repr=False)
class Stall(Fault):
    """Silence after so many body bytes. ``after`` < 0: not even a header."""

    after: int

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if self.after >= 0:
            await call.send(reply.head())
            await call.send_body(reply, reply.body[: self.after])
        await call.until_left()
        return False


@dataclass(repr=False)
class Status(Fault):
    """An error status, with a body as S3 writes it; ``retry_after`` as the header says it."""

    code: int
    retry_after: str | None = None
    word: str = "SlowDown"

    async def answer(self, call: Call) -> bool:
        body = f"<Error><Code>{self.word}</Code></Error>".encode()
        headers = {"Content-Length": str(len(body)), "Content-Type": "application/xml"}
        if self.retry_after is not None:
            headers["Retry-After"] = self.retry_after
        return await call.answer(Reply(self.code, headers, body))


@dataclass(repr=False)
class Hush(Fault):
    """An error status whose body never ends."""

    code: int = 500

    async def answer(self, call: Call) -> bool:
        await call.send(f"HTTP/1.1 {self.code} Scripted\r\nContent-Length: 1000\r\n\r\n<Error>".encode())
        await call.until_left()
        return False


@dataclass(repr=False)
class WrongLength(Fault):
    """Content-Length says so many bytes more (or fewer) than Content-Range and the body."""

    off_by: int

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if "Content-Length" in reply.headers:
            reply.headers["Content-Length"] = str(max(0, len(reply.body) + self.off_by))
        await call.answer(reply)
        return False


@dataclass(repr=False)
class Surplus(Fault):
    """More bytes than Content-Length says; the rest looks like an answer to a question nobody asked yet."""

    pause_s: float = 0.0

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        body = b"" if call.method == "HEAD" else reply.body
        surplus = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
        if self.pause_s:
            await call.send(reply.head() + body)
            await asyncio.sleep(self.pause_s)
            await call.send(surplus)
        else:
            await call.send(reply.head() + body + surplus)
        await call.until_left()
        return False


@dataclass(repr=False)
class MisplacedRange(Fault):
    """Another place than asked for, bytes and Content-Range agreeing; ``label_only``: the bytes are those asked for."""

    shift: int
    label_only: bool = False

    async def answer(self, call: Call) -> bool:
        reply, body = call.honest(), call.served.now.body
        if reply.status not in (200, 206) or "Content-Range" not in reply.headers:
            return await call.answer(reply)
        first = int(reply.headers["Content-Range"].split(" ")[1].partition("-")[0])
        there = max(0, min(first + self.shift, len(body) - len(reply.body)))
        if there == first:  # it fills the shard: there is no other place of this size
            there, reply.body = first + 1, reply.body[1:] or b"?"
        elif not self.label_only:
            reply.body = body[there : there + len(reply.body)]
        reply.headers["Content-Range"] = f"bytes {there}-{there + len(reply.body) - 1}/{max(len(body), there + len(reply.body))}"
        reply.headers["Content-Length"] = str(len(reply.body))
        return await call.answer(reply)


@dataclass(repr=False)
class ShorterRange(Fault):
    """Fewer bytes than asked for, said so: legal, and never enough."""

    count: int

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if "Content-Range" in reply.headers and len(reply.body) > self.count:
            reply.body = reply.body[: self.count]
            first = int(reply.headers["Content-Range"].split(" ")[1].partition("-")[0])
            reply.headers["Content-Range"] = f"bytes {first}-{first + self.count - 1}/{len(call.served.now.body)}"
            reply.headers["Content-Length"] = str(self.count)
        return await call.answer(reply)


@dataclass(repr=False)
class DifferentTotal(Fault):
    """Content-Range claims another length of the whole."""

    off_by: int

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        said, slash, total = reply.headers.get("Content-Range", "").rpartition("/")
        if slash:
            call.served.claimed.add(int(total) + self.off_by)
            reply.headers["Content-Range"] = f"{said}/{int(total) + self.off_by}"
        return await call.answer(reply)


@dataclass(repr=False)
class Garbled(Fault):
    """One header is not what it should be. ``value`` None: it is missing."""

    name: str
    value: str | None

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if self.name in reply.headers:
            del reply.headers[self.name]
            if self.value is not None:
                reply.headers[self.name] = self.value
        await call.answer(reply)
        return False


@dataclass(repr=False)
class Nameless(Fault):
    """This answer names no version."""

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        for name in ("ETag", "Last-Modified"):
            reply.headers.pop(name, None)
        return await call.answer(reply)


@dataclass(repr=False)
class WholeForRange(Fault):
    """200 and the whole body, whatever was asked for."""

    async def answer(self, call: Call) -> bool:
        return await call.answer(replace(call, headers={**call.headers, "range": ""}).honest())


@dataclass(repr=False)
class Flip(Fault):
    """From this request on the shard is another version, of other bytes or (as a restored backup) of the same."""

    to: State

    async def answer(self, call: Call) -> bool:
        call.served.states.append(self.to)
        return await call.answer(call.honest())


@dataclass(repr=False)
class Backends(Fault):
    """Each request is answered by one of several servers, by chance: the same bytes, and an ETag of its own."""

    etags: Sequence[str]
    chance: random.Random

    async def answer(self, call: Call) -> bool:
        state = replace(call.served.now, etag=self.chance.choice(self.etags))
        return await call.answer(replace(call, served=replace(call.served, states=[state])).honest())


@dataclass(repr=False)
class EncodedOnce(Fault):
    """gzip that nobody asked for, under the same ETag."""

    async def answer(self, call: Call) -> bool:
        now = zipped(call.served.now)
        headers = {"Content-Encoding": "gzip", "Content-Length": str(len(now.body))}
        if now.etag is not None:
            headers["ETag"] = now.etag
        return await call.answer(Reply(200, headers, now.body))


@dataclass(repr=False)
class Redirect(Fault):
    """302 to ``location``."""

    location: str

    async def answer(self, call: Call) -> bool:
        return await call.answer(Reply(302, {"Location": self.location, "Content-Length": "0"}, b""))


@dataclass(repr=False)
class Drip(Fault):
    """The body in ``pieces`` pieces with a pause between them: slow, and never silent for long."""

    pieces: int
    pause_s: float

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        await call.send(reply.head())
        if call.method != "HEAD":
            size = max(1, -(-len(reply.body) // self.pieces))
            for position in range(0, len(reply.body), size):
                await asyncio.sleep(self.pause_s)
                await call.send_body(reply, reply.body[position : position + size])
            if reply.framing == "chunked":
                await call.send(b"0\r\n\r\n")
        return reply.framing != "close"


@dataclass(repr=False)
class BadChunk(Fault):
    """Chunked coding that ends before its last chunk (``rest`` b""), or goes on in ``rest``, which is none."""

    after: int
    rest: bytes = b""

    async def answer(self, call: Call) -> bool:
        reply = call.honest()
        if reply.status not in (200, 206):
            return await call.answer(reply)
        reply.headers.pop("Content-Length", None)
        reply.headers["Transfer-Encoding"], reply.framing = "chunked", "chunked"
        await call.send(reply.head())
        await call.send_body(reply, reply.body[: self.after])
        if self.rest:
            await call.send(self.rest)
            await call.until_left()
        return False


@dataclass(repr=False)
class NotHttp(Fault):
    """Bytes that are no answer."""

    said: bytes

    async def answer(self, call: Call) -> bool:
        await call.send(self.said)
        return False


@dataclass(repr=False)
class Hints(Fault):
    """Interim answers before the real one: legal, and rare enough to be handled wrongly."""

    async def answer(self, call: Call) -> bool:
        await call.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        return await call.answer(call.honest())


@dataclass(repr=False)
class Nothing(Fault):
    """416 for bytes that exist. ``said``: the Content-Range of it, None for no such header."""

    said: str | None

    async def answer(self, call: Call) -> bool:
        headers = {"Content-Length": "0", **({} if self.said is None else {"Content-Range": self.said})}
        return await call.answer(Reply(416, headers, b""))


def zipped(state: State) -> State:
    """The gzip form of ``state``, as ``EncodedOnce`` sends it."""
    return replace(state, body=gzip.compress(state.body, 1, mtime=0), encoding="gzip")
