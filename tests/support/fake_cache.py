"""A fake of the cache as the HTTP server sees it: fed with bytes, held by gates, failing where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.errors import ShardError, ShardNotFound
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.shard import Pin, PinKind, Shard, Version, store_key
from forebay_proxy.server.http.plan_route import shards_of
from forebay_proxy.telemetry.history import COLUMNS
from forebay_proxy.wire.protocol.plan import PlanBody, ReaderName
from forebay_proxy.wire.urls.patterns import parse_pattern


@dataclass
class FakeShard:
    """One shard. ``fails_at``: after that many bytes of a reading ``error`` is raised; ``held_at``: there it waits for ``gate``."""

    data: bytes | memoryview
    etag: str = '"v1"'
    modified: str = ""
    length_known: bool = True
    encoding: str = ""
    content_type: str = "application/x-tar"
    outcome: RequestOutcome = RequestOutcome.MISS
    chunk_bytes: int = 1 << 20
    fails_at: int | None = None
    error: BaseException | None = None
    held_at: int | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # set when a reading waits at the gate
    reused_buffer: bool = False  # chunks are views of one buffer, overwritten for the next chunk

    def version(self) -> Version:
        pin = Pin(PinKind.MODIFIED, self.modified) if self.modified else Pin(PinKind.ETAG, self.etag) if self.etag else Pin()
        length = len(self.data) if self.length_known else None
        return Version(
            f"etag:{self.etag}",
            pin,
            length,
            self.encoding,
            self.content_type,
            modified=self.modified or "",
            second_over=bool(self.modified),
        )


@dataclass
class Opening:
    """The arguments of one ``open``, and whether its reader has left."""

    shard: Shard
    reader: ReaderName | None
    want: RangeRequest | None
    head: bool
    range: tuple[int, int | None] | None = None
    left: bool = False
    handed: int = 0  # bytes yielded so far


@dataclass
class FakeVersion:
    shown_key: str
    shown_version: Version


class FakeReading:
    def __init__(self, name: str, shard: FakeShard, opening: Opening) -> None:
        version = shard.version()
        self.entry = FakeVersion(store_key(name, version.identity), version)
        self.outcome, self.hit_bytes, self.waited_s = shard.outcome, 0, 0.0
        self.epoch: int | None = None
        self._shard = shard
        self._opening = opening

    async def begin(self, first: int, last: int | None) -> RequestOutcome:
        self._opening.range = (first, last)
        return self.outcome

    async def chunks(self) -> AsyncGenerator[bytes | memoryview, None]:
        assert self._opening.range is not None
        first, last = self._opening.range
        part = memoryview(self._shard.data)[first : None if last is None else last + 1]
        stops = sorted({stop for stop in (self._shard.fails_at, self._shard.held_at) if stop is not None})
        position = 0
        while position < len(part) or position in stops:
            await self._stop_at(position)
            if position == len(part):
                break
            stop = min([position + self._shard.chunk_bytes, len(part), *(stop for stop in stops if stop > position)])
            async for chunk in self._handed(part[position:stop]):
                yield chunk
            position = stop

    def pieces(self, stretches: Callable[[], bool]) -> AsyncGenerator[bytes | memoryview, None]:
        """As ``chunks``: nothing lies in a file here."""
        return self.chunks()

    async def _stop_at(self, position: int) -> None:
        if position == self._shard.held_at:
            self._shard.reached.set()
            await self._shard.gate.wait()
        if position == self._shard.fails_at:
            assert self._shard.error is not None
            raise self._shard.error

    async def _handed(self, data: memoryview) -> AsyncIterator[bytes | memoryview]:
        self._opening.handed += len(data)
        if self.outcome is RequestOutcome.HIT:
            self.hit_bytes += len(data)
        if not self._shard.reused_buffer:
            yield data
            return
        buffer = bytearray(data)
        yield memoryview(buffer)
        buffer[:] = bytes(len(buffer))  # whoever still looks at it sees zeros


class FakeCache:
    """Shards by name. ``resolver`` records every ``open``; ``errors`` are raised by ``open`` itself."""

    def __init__(self, shards: dict[str, FakeShard] | None = None) -> None:
        self.contents = dict(shards or {})
        self.errors: dict[str, BaseException] = {}
        self.resolver: list[Opening] = []

    @asynccontextmanager
    async def open(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> AsyncIterator[FakeReading]:
        opening = Opening(shard, reader, want, head)
        self.resolver.append(opening)
        if shard.name in self.errors:
            raise self.errors[shard.name]
        if shard.name not in self.contents:
            raise ShardNotFound(shard.name, "the origin answered 404")
        try:
            yield FakeReading(shard.name, self.contents[shard.name], opening)
        finally:
            opening.left = True


class FakePlans:
    """Records what is announced."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def replace(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        self.calls.append(("replace", str(reader), [shard.name for shard in shards], epoch, set_name))
        self.shards = shards

    def append(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        self.calls.append(("append", str(reader), [shard.name for shard in shards], epoch, set_name))

    def withdraw(self, reader: ReaderName) -> bool:
        self.calls.append(("withdraw", str(reader)))
        return True

    async def announce(self, reader: ReaderName, plan: PlanBody, headers: tuple[tuple[str, str], ...], *, appended: bool) -> None:
        texts: Iterable[str] = plan.shards
        if plan.indices is not None:
            texts = map(parse_pattern(plan.set or "").at, plan.indices)
        shards = shards_of(texts, headers)
        (self.append if appended else self.replace)(reader, shards, plan.epoch, plan.set)

    async def retract(self, reader: ReaderName) -> bool:
        return self.withdraw(reader)


class FakePage:
    """A history of two rows, and a map of the shards in ``names``, all of them here."""

    def __init__(self) -> None:
        self.names = ["s3://b/0.tar", "s3://b/1.tar"]
        self.rows: list[list[float | None]] = [[1000.0, 0.4, 100.0, 1e6, 2e6, 0.5, 3.0], [1005.0, None, None, 3e6, 4e6, None, None]]
        self.readers: list[list[Any]] = []

    def as_json(self) -> dict[str, Any]:
        return {"every_s": 5.0, "columns": list(COLUMNS), "rows": self.rows}

    def last(self) -> list[float | None] | None:
        return self.rows[-1]

    async def cells(self) -> dict[str, Any]:
        return {"version": len(self.names), "cells": "h" * len(self.names), "readers": self.readers}

    async def whole(self) -> dict[str, Any]:
        return {**await self.cells(), "prefix": "", "names": self.names, "cut": False}


class FakeOperations:
    """Answers commands with fixed numbers and records them."""

    def __init__(self) -> None:
        self.evicted: list[list[str] | None] = []
        self.verified: list[list[str] | None] = []
        self.warm_gate: asyncio.Event | None = None
        self.warm_error: ShardError | None = None
        self.warm_left = asyncio.Event()

    def shards(self, name: str = "") -> list[dict[str, object]]:
        return [{"shard": "s3://b/0.tar", "complete": True}]

    async def evict(self, patterns: list[str] | None) -> dict[str, int]:
        self.evicted.append(patterns)
        return {"shards": 1, "bytes": 10, "leased": 0}

    async def verify(self, patterns: list[str] | None) -> AsyncIterator[dict[str, object]]:
        self.verified.append(patterns)
        try:
            yield {"event": "progress", "done_bytes": 0, "bytes": 10}
            if self.warm_gate is not None:
                await self.warm_gate.wait()
            yield {"event": "end", "wrong": 0}
        finally:
            self.warm_left.set()

    async def warm(self, shards: list[Shard]) -> AsyncIterator[dict[str, object]]:
        try:
            for shard in shards:
                yield {"event": "shard", "shard": shard.name, "result": "stored", "bytes": 10, "error": ""}
                if self.warm_gate is not None:
                    await self.warm_gate.wait()
            if self.warm_error is not None:
                raise self.warm_error
            yield {"event": "end", "stored": len(shards), "present": 0, "no_room": 0, "failed": 0, "bytes": 10 * len(shards)}
        finally:
            self.warm_left.set()


def fake_status() -> dict[str, Any]:
    """What the service hands the HTTP server for ``/v1/status``."""
    cache = dict.fromkeys(("stored", "reserved", "doomed", "overhead", "leased"), 1_000_000)
    return {
        "forebay": "0.0.0", "instance": "0123456789abcdef", "pid": 1, "started_at": 0.0, "uptime_s": 5.0, "fd_socket": None,
        "cache_dir": "/cache", "fingerprint": "0123456789abcdef",
        "cache": {f"{name}_bytes": count for name, count in cache.items()}
        | {"capacity_bytes": 10_000_000, "effective_bytes": 9_000_000, "shards": 2, "segments": 3, "in_flight": 1, "disk_state": "normal"},
        "requests": {"hit": 3, "collapsed": 0, "partial": 1, "miss": 2, "bypass": 0},
        "bytes": {"sent": 3_000_000, "hit": 1_000_000, "origin": 2_000_000, "saved": 1_000_000},
        "reader_wait_s": 1.5, "errors": 0, "notices": ["cache size: 20 GiB inside a container (--cache-size)"],
        "verdict": {"severity": "fine", "cause": "trainer", "share": 0.004, "sentence": "training does not wait", "do": "", "line": ""},
        "readers": [{
            "reader": "job/0/1/7.1", "shard": "s3://b/0.tar", "position_bytes": 5, "length_bytes": 10, "waited_s": 0.5, "waiting_for": "",
        }],
        "plans": [fake_plan("job/0/1/7.1")], "plans_total": 1,
        "progress": [{"job": "job", "epoch": 1, "readers": 1, "position": 3, "length": 100, "of": 1000, "rate": 0.5}],
        "leads": {"job": {"bytes": 5_000_000, "seconds": 2.5}},
    }  # fmt: skip


def fake_plan(reader: str, **changes: Any) -> dict[str, Any]:
    """One plan as ``/v1/plans`` shows it."""
    return {
        "reader": reader, "job": reader.partition("/")[0], "epoch": 1, "set": None, "position": 3, "length": 100, "rate": 0.5,
        "lead_bytes": 5_000_000, "lead_s": 2.5, "window_bytes": 16_000_000, "waiting": False, "waited_s": 0.5, "silent_s": 0.1,
        "openings": {"planned": 3, "skipped": 0, "repeated": 0, "unplanned": 0}, **changes,
    }  # fmt: skip


def fake_plans(job: str | None = None, after: object = None, limit: int = 256) -> dict[str, Any]:
    """What the service hands the HTTP server for ``/v1/plans``."""
    return {"instance": "0123456789abcdef", "total": 1, "plans": [fake_plan("job/0/1/7.1")], "next": None}
