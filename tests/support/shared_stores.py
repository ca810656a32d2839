"""A ``SharedStore`` in this process: objects in a dict, a clock of its own, gates and refusals by script."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from forebay_proxy.config.shared_place import SharedPlace
from forebay_proxy.core.errors import OriginUnavailable, ShardChanged, ShardError, ShardNotFound
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.shared.shared_store import StoreRefused

__all__ = ["FakeSharedStore"]


class FakeSharedStore:
    """Several sidecars' tiers may have one. ``clock`` is the store's, and nobody else's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.place = SharedPlace("s3://cluster/tier")
        self.clock = clock
        self.objects: dict[str, tuple[bytes, str, float]] = {}  # name -> bytes, ETag, when
        self.log: list[tuple[str, str]] = []  # what, of which kind
        self.down = False
        self.stuck: set[str] = set()  # what is never answered
        self.refused: dict[str, str] = {}  # what -> reason
        self.full: Iterable[str] = ()  # kinds of objects that there is no room for
        self.chunk_bytes = 1 << 14
        self.closed = False

    def kinds(self, what: str) -> list[str]:
        return [kind for said, kind in self.log if said == what]

    def of(self, kind: str) -> list[str]:
        """The objects of this kind: .json, .lease, .bytes."""
        return [name for name in self.objects if name.endswith(kind)]

    def store(self, name: str, data: bytes, age_s: float = 0.0) -> str:
        etag = f'"{hashlib.md5(data).hexdigest()}"'  # as S3 does
        self.objects[name] = data, etag, self.clock() - age_s
        return etag

    async def _does(self, what: str, name: str) -> None:
        self.log.append((what, name[name.rfind(".") :]))
        if what in self.stuck:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def _writes(self, what: str, name: str) -> None:
        await self._does(what, name)
        if self.down or what in self.refused:
            raise StoreRefused(self.refused.get(what, "unavailable"), "the store says no")
        if any(name.endswith(kind) for kind in self.full) and what != "delete":
            raise StoreRefused("full", "the store answered 507 QuotaExceeded")

    @asynccontextmanager
    async def read(self, name: str, want: ByteRange, etag: str) -> AsyncIterator[OriginBody]:
        await self._does("read", name)
        data, has, _ = self._found(name)
        if has != etag:
            raise ShardChanged(name, "412")
        assert want.last is not None
        part = data[want.first : want.last + 1]

        async def chunks() -> AsyncIterator[bytes]:
            for at in range(0, len(part), self.chunk_bytes):
                await self._does("piece", name)
                yield part[at : at + self.chunk_bytes]

        version = Version(f"etag:{etag}", Pin(PinKind.ETAG, etag), len(data))
        yield OriginBody(version, want.first, len(part), True, True, chunks())

    def _found(self, name: str) -> tuple[bytes, str, float]:
        if self.down:
            raise OriginUnavailable(name, "connection refused")
        if name not in self.objects:
            raise ShardNotFound(name, "404")
        return self.objects[name]

    async def get(self, name: str) -> bytes | None:
        await self._does("get", name)
        if error := self.refused.get("get"):
            raise ShardError(name, error)
        try:
            return self._found(name)[0]
        except ShardNotFound:
            return None

    async def put(self, name: str, data: bytes) -> None:
        await self._writes("put", name)
        self.store(name, data)

    async def take(self, name: str, data: bytes, instead: str = "") -> bool:
        await self._writes("take", name)
        has = self.objects.get(name, (b"", "", 0.0))[1]
        if has != instead:
            return False
        self.store(name, data)
        return True

    async def age(self, name: str) -> tuple[float, str] | None:
        await self._writes("age", name)
        if name not in self.objects:
            return None
        _, etag, at = self.objects[name]
        return self.clock() - at, etag

    async def delete(self, name: str) -> None:
        await self._writes("delete", name)
        self.objects.pop(name, None)

    async def put_shard(self, name: str, descriptor: int, length: int, segment_bytes: int, sums: Sequence[int]) -> str:
        await self._writes("put_shard", name)
        return self.store(name, os.pread(descriptor, length, 0))

    def close(self) -> None:
        self.closed = True
