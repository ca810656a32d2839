"""The seam between Forebay and the places shards live: one verb, ``read``, and the body it gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from forebay_proxy.core.digests import Digest
from forebay_proxy.core.shard import ByteRange, Pin, Shard, Version

__all__ = ["Origin", "OriginBody", "TellsDigests"]


@dataclass(frozen=True, slots=True)
class OriginBody:
    """An origin's answer, its headers checked, its bytes still to come.

    ``first`` is the offset of the first byte in the shard. ``length`` is how many bytes this body promises (None: no promise made).
    ``ranged`` says whether the origin honours Range at all: True for a 206 (and for files), False for a 200. ``framed`` says that the end
    of ``chunks`` is a real end (Content-Length or chunked coding), not just a closed connection. ``chunks`` yields non-empty bytes; it
    raises ``TruncatedShard``, ``OriginUnavailable`` or ``OriginTimeout``, never a library's error, and ends early only when ``framed`` is
    False. ``digests`` are those of the *whole* shard that the answer carries, whatever part of it this body is (see ``origins.digests``).
    ``narrow`` is told how many bytes at most should wait in this process from now on, because the reader of the body may be slow.
    ``shared``: it came from the shared tier, and its origin was not asked.
    """

    version: Version
    first: int
    length: int | None
    ranged: bool
    framed: bool
    chunks: AsyncIterator[bytes | memoryview]
    digests: tuple[Digest, ...] = ()
    narrow: Callable[[int], None] = lambda size: None
    shared: bool = False


class Origin(Protocol):
    """A kind of place shards live in (http and https, s3, file, …); one instance serves all hosts of its kind."""

    def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AbstractAsyncContextManager[OriginBody]:
        """Ask for ``range`` (None: the whole body, no Range header) of ``shard``, held to ``pin`` if it is set.

        One attempt, no retry: repeating is the fetch's business. ``__aenter__`` returns once headers are in and checked; leaving the
        ``async with`` closes the connection if the body was not read to its end.

        Raises ``ShardNotFound``, ``ShardForbidden``, ``ShardChanged`` (412, or another version where a pin was sent),
        ``RangeNotSatisfiable`` (416; its ``length`` from ``Content-Range: bytes */N``), ``OriginError``, ``OriginUnavailable``,
        ``OriginTimeout``, ``OriginRefused``.
        """
        ...

    async def head(self, shard: Shard) -> Version:
        """The version the origin holds now, without a body: HEAD, or a 1-byte ranged GET where the URL is signed for GET."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class TellsDigests(Protocol):
    """An origin that names a shard's digests only when asked for them, in a request of its own."""

    async def digests(self, shard: Shard, pin: Pin) -> tuple[Digest, ...]:
        """The digests of the version that ``pin`` names; () where it has none, or another version. Raises as ``Origin.read``."""
        ...
