"""An origin in this process: fed with bytes and versions, held by gates, failing by script, writing down what it was asked."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from support.seams import Gate

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import (
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.shard import (
    ByteRange,
    Credential,
    Pin,
    PinKind,
    Shard,
    Version,
)
from forebay_proxy.origins.base import OriginBody, TellsDigests
from forebay_proxy.wire.urls.shard_url import SCHEMES

__all__ = ["Asked", "FakeOrigin", "FakeOrigins", "Remote", "reset"]

ErrorOf = Callable[[str], ShardError]


def reset(name: str) -> OriginUnavailable:
    """What a connection reset looks like above the origin."""
    return OriginUnavailable(name, "connection reset")


@dataclass
class Failure:
    """One answer gone wrong: instead of headers (``after`` None), or after so many bytes of body."""

    error: ErrorOf | None
    after: int | None = None


@dataclass
class Asked:
    """One request; ``range`` as asked, both ends inclusive, None for the whole."""

    name: str
    range: tuple[int, int | None] | None
    pin: str
    head: bool = False
    credential: Credential = field(default_factory=Credential)
    sent: int = 0


@dataclass
class Remote:
    """A shard on the origin. ``identity`` False: no ETag, no date. ``modes``: what a poor server leaves out."""

    data: bytes
    etag: str = '"v1"'
    identity: bool = True
    ranged: bool = True
    length_known: bool = True
    framed: bool = True
    encoding: str = ""
    chunk_bytes: int = 1 << 14
    allowed: set[Credential] | None = None  # None: everybody
    claimed_length: int | None = None  # what the headers say, where that is not the truth
    headers: Gate | None = None
    bodies: dict[int, Gate] = field(default_factory=dict)  # by offset in the shard: a body waits before the byte there
    failures: deque[Failure] = field(default_factory=deque)
    digests: tuple[Digest, ...] = ()  # of the whole, in every answer
    backends: tuple[str, ...] = ()  # ETags of several servers behind one name, which take turns by chance
    chance: random.Random = field(default_factory=lambda: random.Random(5))
    flips: dict[int, int] = field(default_factory=dict)  # offset -> how often its byte still arrives wrong

    @property
    def version(self) -> Version:
        known = len(self.data) if self.claimed_length is None else self.claimed_length
        length = known if self.length_known or self.ranged else None
        if not self.identity:
            return Version("", Pin(), length, self.encoding)
        return Version(f"etag:{self.etag}", Pin(PinKind.ETAG, self.etag), length, self.encoding)

    def fail(self, error: ErrorOf = reset, *, after: int | None = None, times: int = 1) -> None:
        """The next ``times`` requests fail: at once, or after ``after`` bytes of body."""
        self.failures.extend(Failure(error, after) for _ in range(times))

    def cut(self, after: int) -> None:
        """The next body ends after ``after`` bytes without an error, as a connection that is closed."""
        self.failures.append(Failure(None, after))

    def hold(self, offset: int | None = None) -> Gate:
        """Bodies wait before the byte at ``offset``; None: answers wait before their headers."""
        gate = Gate()
        if offset is None:
            self.headers = gate
        else:
            self.bodies[offset] = gate
        return gate

    def flip(self, offset: int, *, times: int = 1) -> None:
        """The byte at ``offset`` arrives wrong the next ``times`` it is sent."""
        self.flips[offset] = times

    def sent(self, first: int, end: int) -> bytes:
        """What arrives of the bytes ``first`` to ``end``."""
        piece = bytearray(self.data[first:end])
        for offset, times in self.flips.items():
            if first <= offset < end and times:
                piece[offset - first] ^= 0x40
                self.flips[offset] = times - 1
        return bytes(piece)

    def answered_by_chance(self) -> None:
        """Another backend, or the same."""
        if self.backends:
            self.etag = self.chance.choice(self.backends)

    def release(self) -> None:
        if self.headers is not None:
            self.headers.open()
        for gate in self.bodies.values():
            gate.open()


class FakeOrigin:
    """An ``Origin`` of one scheme."""

    def __init__(self) -> None:
        self.remotes: dict[str, Remote] = {}
        self.log: list[Asked] = []
        self.served: list[tuple[str, int, int]] = []  # (name, first, end) of every piece that left
        self.open = 0
        self.most_open = 0
        self.head_error: ErrorOf | None = None
        self.head_version: Version | None = None  # what HEAD says, where that is not what GET says

    def put(self, name: str, data: bytes, **how: object) -> Remote:
        """Store ``data`` under ``name``, as a new state of it if there was one."""
        remote = Remote(data, **how)  # type: ignore[arg-type]
        self.remotes[name] = remote
        return remote

    def asked(self, name: str | None = None) -> list[tuple[int, int | None] | None]:
        """The ranges of the GETs so far."""
        return [asked.range for asked in self.log if not asked.head and name in (None, asked.name)]

    def heads(self) -> int:
        return sum(asked.head for asked in self.log)

    def sent_twice(self, name: str) -> int:
        """How many bytes of a shard left more than once."""
        pieces = sorted((first, end) for shard, first, end in self.served if shard == name)
        twice, reached = 0, 0
        for first, end in pieces:
            twice += max(0, min(end, reached) - first)
            reached = max(reached, end)
        return twice

    def sent(self, name: str) -> int:
        return sum(end - first for shard, first, end in self.served if shard == name)

    def release(self) -> None:
        """Open every gate."""
        for remote in self.remotes.values():
            remote.release()

    @asynccontextmanager
    async def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AsyncIterator[OriginBody]:
        asked = Asked(shard.name, None if range is None else (range.first, range.last), pin.value, credential=shard.credential)
        self.log.append(asked)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            remote = self._find(shard)
            if remote.headers is not None:
                await remote.headers.passed()
                remote = self._find(shard)
            failure = remote.failures.popleft() if remote.failures else Failure(None)
            if failure.after is None and failure.error is not None:
                raise failure.error(shard.name)
            _compare(shard, remote, pin)
            first, end = _extent(shard, remote, range)
            version = remote.version
            async with aclosing(self._chunks(shard, remote, first, end, failure, asked)) as chunks:
                promised = end - first if remote.ranged or remote.length_known else None
                yield OriginBody(version, first, promised, remote.ranged and range is not None, remote.framed, chunks, remote.digests)
        finally:
            self.open -= 1

    async def head(self, shard: Shard) -> Version:
        self.log.append(Asked(shard.name, None, "", head=True, credential=shard.credential))
        remote = self._find(shard)
        if remote.headers is not None:
            await remote.headers.passed()
        if self.head_error is not None:
            raise self.head_error(shard.name)
        return self.head_version or self._find(shard).version

    async def aclose(self) -> None:
        pass

    def _find(self, shard: Shard) -> Remote:
        remote = self.remotes.get(shard.name)
        if remote is None:
            raise ShardNotFound(shard.name, "404")
        if remote.allowed is not None and shard.credential not in remote.allowed:
            raise ShardForbidden(shard.name, "403")
        remote.answered_by_chance()
        return remote

    async def _chunks(
        self, shard: Shard, remote: Remote, first: int, end: int, failure: Failure, asked: Asked
    ) -> AsyncGenerator[bytes, None]:
        cut_at = None if failure.after is None else first + failure.after
        position = first
        while True:
            gate = remote.bodies.get(position)
            if gate is not None:
                await gate.passed()
            if position == cut_at:
                if failure.error is not None:
                    raise failure.error(shard.name)
                return
            if position >= end:
                return
            stops = [stop for stop in (*remote.bodies, cut_at) if stop is not None and stop > position]
            stop = min([position + remote.chunk_bytes, end, *stops])
            self.served.append((shard.name, position, stop))
            asked.sent += stop - position
            yield remote.sent(position, stop)
            position = stop
            await asyncio.sleep(0)


def _compare(shard: Shard, remote: Remote, pin: Pin) -> None:
    if pin and pin != remote.version.pin:
        raise ShardChanged(shard.name, "412")


def _extent(shard: Shard, remote: Remote, range: ByteRange | None) -> tuple[int, int]:
    length = len(remote.data)
    if range is None or not remote.ranged:
        return 0, length
    if range.first >= length:
        raise RangeNotSatisfiable(shard.name, "416", length=length)
    return range.first, length if range.last is None else min(range.last + 1, length)


class FakeOrigins:
    """``Origins`` with the fake behind every scheme."""

    def __init__(self, origin: FakeOrigin) -> None:
        self.by_scheme = dict.fromkeys(SCHEMES, origin)
        self.shared = None
        self.asked_schemes = frozenset(SCHEMES if isinstance(origin, TellsDigests) else ())

    async def aclose(self) -> None:
        pass
