"""Readers of a sidecar whose origin lies, and the verdict on each of their reads: whole bytes of one version, or an error.

Bytes are compared one by one with the states the origin has had. What a reader received before an abort is held to one version too.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from support.fault_kinds import Case, Ends, case
from support.scripted_answers import Reply, Served
from support.scripted_origin import ScriptedOrigin

__all__ = ["Campaign", "Got", "Restarts", "Tally", "WrongBytes", "away_now_and_then", "forbidden", "get", "verdict"]

AT_ONCE = 24
READ_S = 120.0  # a read that takes longer has given up in a way of its own


class WrongBytes(AssertionError):
    """A reader was given something that no version of the shard is. The one thing that must never happen."""


@dataclass
class Got:
    """What a reader received. ``clean``: the answer ended as its framing promised; ``status`` 0: no answer came."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    clean: bool = False


@dataclass
class Tally:
    """How reads ended, by kind: ``complete`` or the error's name."""

    ends: dict[str, Counter[str]] = field(default_factory=dict)
    wanted: dict[str, Ends] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def count(self, kind: Case, end: str) -> None:
        self.ends.setdefault(kind.kind, Counter())[end] += 1
        self.wanted[kind.kind] = kind.ends

    def reads(self, *which: Ends) -> int:
        return sum(sum(ends.values()) for kind, ends in self.ends.items() if not which or self.wanted[kind] in which)

    def complete(self, *which: Ends) -> int:
        return sum(ends["complete"] for kind, ends in self.ends.items() if not which or self.wanted[kind] in which)

    def table(self) -> str:
        """A line a kind of fault: the expected end of its reads, and their real ends."""
        lines = []
        for kind in sorted(self.ends, key=lambda kind: (list(Ends).index(self.wanted[kind]), kind)):
            ends = ", ".join(f"{end} {count}" for end, count in self.ends[kind].most_common())
            lines.append(f"{self.wanted[kind].value:7} {kind:32} {ends}")
        return "\n".join(lines)


async def get(port: int, target: str, headers: Mapping[str, str] | None = None, *, leave_after: int | None = None) -> Got:
    """GET ``target`` from 127.0.0.1; ``leave_after``: go away after so many body bytes."""
    got = Got()
    with suppress(OSError, asyncio.IncompleteReadError, ValueError):
        async with asyncio.timeout(READ_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 18)
            try:
                lines = [f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in (headers or {}).items())]
                writer.write(("\r\n".join([*lines, "Connection: close", "", ""])).encode())
                await _receive(reader, got, leave_after)
            finally:
                writer.transport.abort()
    return got


async def _receive(reader: asyncio.StreamReader, got: Got, leave_after: int | None) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    got.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    got.status = int(head[0].split(" ")[1])
    body = bytearray()
    try:
        async for piece in _pieces(reader, got):
            body += piece
            if leave_after is not None and len(body) >= leave_after:
                return
        got.clean = True
    finally:
        got.body = bytes(body)


async def _pieces(reader: asyncio.StreamReader, got: Got) -> AsyncIterator[bytes]:
    """The body's bytes; ends normally only where its framing does."""
    length = got.headers.get("content-length")
    if length is not None:
        left = int(length)
        while left:
            piece = await reader.read(min(left, 1 << 16))
            if not piece:
                raise ConnectionError("cut")
            left -= len(piece)
            yield piece
    elif "chunked" in got.headers.get("transfer-encoding", ""):
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    else:
        raise ConnectionError("nothing says where it ends")


def verdict(states: list[Reply], got: Got, first: int = 0, last: int | None = None, claimed: AbstractSet[int] = frozenset()) -> str:
    """How a read of bytes ``first`` to ``last`` ended: "complete", or a word for the error. Raises ``WrongBytes``.

    A clean answer must be exactly one of ``states``, the one its ETag names; what came before an abort must be the beginning of one.
    ``claimed``: lengths the origin has claimed; Content-Range may repeat them.
    """
    if got.status == 416 and any(
        got.headers.get("content-range") == f"bytes */{state.length}" for state in states if state.length <= first
    ):
        return "complete"  # there is nothing at that place
    if got.status not in (200, 206):
        return f"status {got.status}" if got.status else "no answer"
    encoding = got.headers.get("content-encoding", "")
    possible = [state for state in states if state.encoding == encoding and _may_be(state, got.headers.get("etag", ""))]
    for state in possible:
        body = state.part(0, state.length)
        if got.status == 206:
            found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", got.headers.get("content-range", ""))
            if found is None or int(found[3]) not in (len(body), *claimed):
                continue
            begin, end, total = int(found[1]), int(found[2]) + 1, int(found[3])
            if begin != first or end != min(total, total if last is None else last + 1):
                continue
            body = body[begin:end]
        if got.body == body and got.clean:
            return "complete"
        if not got.clean and got.body == body[: len(got.body)]:
            return "aborted"
    if not got.clean and not got.body:
        return "aborted"
    sizes = [state.length for state in states]
    raise WrongBytes(
        f"{got.status} with {len(got.body)} bytes ({'clean' if got.clean else 'aborted'}) of no version: {sizes}, {got.headers}"
    )


def _may_be(state: Reply, etag: str) -> bool:
    """Whether an answer with this ETag may be of ``state``. An ETag of our own making (its answer had no strong one) says nothing here."""
    return etag.startswith('"fb-') or state.etag == etag


class Campaign:
    """Many reads of many shards in trouble, ``AT_ONCE`` shards at a time."""

    def __init__(
        self,
        origin: ScriptedOrigin,
        port: Callable[[], int],
        *,
        seed: int,
        segment: int,
        forbidden: str,
        restarts: Restarts | None = None,
    ) -> None:
        self.tally = Tally()
        self._origin = origin
        self._port = port
        self._seed = seed
        self._segment = segment
        self._forbidden = forbidden
        self._restarts = restarts or Restarts()

    async def run(self, reads: int, told: Callable[[int], None] = lambda _: None) -> Tally:
        """At least ``reads`` reads; ``told`` hears how many have ended."""
        numbers = iter(range(reads))

        async def worker() -> None:
            for number in numbers:
                if self.tally.reads() >= reads:
                    return
                await self._shard(number)
                told(self.tally.reads())

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(worker())
        return self.tally

    async def _shard(self, number: int) -> None:
        path = f"/set/{number:06}.tar"
        made = case(number, seed=self._seed, path=path, segment=self._segment, forbidden=self._forbidden)
        served = self._origin.put(path, made.state, **made.how)
        chance = random.Random(f"{self._seed}/{number}/readers")
        try:
            await self._readers(number, made, served, chance)
        finally:
            del self._origin.shards[path]

    async def _readers(self, number: int, made: Case, served: Served, chance: random.Random) -> None:
        """A whole reader, a ranged one, one that leaves and comes back, three at once; in an order of chance, or all at once."""
        target = f"/http/{made.host}:{self._origin.port}{served.path}"
        readers = [self._whole, self._ranged, self._resumed, self._whole]
        chance.shuffle(readers)
        coming = [reader(target, made, served, random.Random(f"{chance.random()}")) for reader in readers]
        if chance.random() < 0.5:
            ends = await asyncio.gather(*coming, return_exceptions=True)
        else:
            ends = [await _ended(reader) for reader in coming]
        for end in ends:
            if isinstance(end, WrongBytes):
                self.tally.wrong.append(f"seed {self._seed}, shard {number} ({made.kind}): {end}")
                end = "WRONG"  # noqa: PLW2901
            elif isinstance(end, BaseException):
                raise end
            self.tally.count(made, str(end))

    async def _whole(self, target: str, made: Case, served: Served, _: random.Random) -> str:
        return await self._read(target, made, served)

    async def _ranged(self, target: str, made: Case, served: Served, chance: random.Random) -> str:
        first = chance.randrange(0, max(1, made.state.length))
        last = chance.choice((None, first, first + chance.randrange(0, 2 * self._segment)))
        return await self._read(target, made, served, first, last)

    async def _resumed(self, target: str, made: Case, served: Served, chance: random.Random) -> str:
        """Leaves in the middle, and asks for the rest of that very version, as a loader does whose connection broke.

        Of some versions nobody may have the rest any more: then, as it is told, it reads from the start.
        """
        begun = await self._restarts.outlived(lambda: get(self._port(), target, leave_after=chance.randrange(1, made.state.length + 2)))
        end = _judged(made, served, begun)
        if end != "aborted" or not begun.body:
            return end
        headers = {"Range": f"bytes={len(begun.body)}-", "If-Match": begun.headers.get("etag", "*")}
        rest = await self._restarts.outlived(lambda: get(self._port(), target, headers))
        end = _judged(made, served, rest, len(begun.body))
        if end == "status 412" and made.passing:
            return await self._read(target, made, served)
        if end == "complete" and rest.status == 206:
            joined = Got(200, {**rest.headers, "etag": begun.headers.get("etag", "")}, begun.body + rest.body, clean=True)
            return _judged(made, served, joined)
        return end

    async def _read(self, target: str, made: Case, served: Served, first: int = 0, last: int | None = None) -> str:
        whole = first == 0 and last is None
        headers = {} if whole else {"Range": f"bytes={first}-{'' if last is None else last}"}
        got = await self._restarts.outlived(lambda: get(self._port(), target, headers))
        return _judged(made, served, got, first, last)


class Restarts:
    """Readers survive a sidecar that is started again: a read that was broken by it is repeated once it is back."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.up.set()
        self.count = 0

    async def outlived(self, read: Callable[[], Awaitable[Got]]) -> Got:
        while True:
            await self.up.wait()
            before = self.count
            got = await read()
            if before == self.count or (got.clean and got.status < 500):  # one that drains says 503
                return got


def _judged(made: Case, served: Served, got: Got, first: int = 0, last: int | None = None) -> str:
    return verdict([*served.states, *made.forms], got, first, last, served.claimed)


async def _ended(reader: Awaitable[str]) -> str | BaseException:
    try:
        return await reader
    except WrongBytes as wrong:
        return wrong


@asynccontextmanager
async def forbidden() -> AsyncIterator[tuple[str, list[int]]]:
    """A server on this machine's loopback that nobody allowed, and a note of each connection to it."""
    met: list[int] = []

    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer.get_extra_info("peername")[1])
        writer.close()

    server = await asyncio.start_server(meet, "127.0.0.2", 0)
    async with server:
        yield f"http://127.0.0.2:{server.sockets[0].getsockname()[1]}/secret", met


async def away_now_and_then(origin: ScriptedOrigin) -> None:
    """Every few seconds the host is gone for a moment: connections are reset, new ones refused."""
    while True:
        await asyncio.sleep(4)
        async with origin.away():
            await asyncio.sleep(0.2)
