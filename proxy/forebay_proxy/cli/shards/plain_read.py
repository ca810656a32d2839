"""Shards read as a plain reader reads them, with Forebay out of the way: one connection, one shard after the other, no second try."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xxhash

from forebay_proxy.config.settings import Settings
from forebay_proxy.core.shard import Pin, Shard
from forebay_proxy.origins.survey import origins_for

__all__ = ["Direct", "Piece", "read_directly"]


@dataclass(frozen=True, slots=True)
class Piece:
    """The first ``size`` bytes of a shard, all of them if it is ``whole``, and their digest (XXH3, 128 bits, hexadecimal)."""

    shard: Shard
    size: int
    whole: bool
    digest: str


@dataclass(frozen=True, slots=True)
class Direct:
    """What was read, in how many seconds."""

    pieces: tuple[Piece, ...]
    seconds: float


def read_directly(shards: Sequence[Shard], settings: Settings, most_bytes: int, most_s: float, environ: Mapping[str, str]) -> Direct:
    """Read ``shards`` in order until one of the limits is met. Raises ``ForebayError`` for one that cannot be read."""
    return asyncio.run(_read(shards, settings, most_bytes, most_s, environ))


async def _read(shards: Sequence[Shard], settings: Settings, most_bytes: int, most_s: float, environ: Mapping[str, str]) -> Direct:
    pieces: list[Piece] = []
    origins = origins_for(settings, environ)
    began = time.monotonic()
    try:
        for shard in shards:
            left = most_bytes - sum(piece.size for piece in pieces)
            if left <= 0 or time.monotonic() - began > most_s:
                break
            digest, size, whole = xxhash.xxh3_128(), 0, True
            async with origins.by_scheme[shard.url.scheme].read(shard, None, Pin()) as body:
                async for chunk in body.chunks:
                    part = memoryview(chunk)[: left - size]
                    digest.update(part)
                    size += len(part)
                    if len(part) < len(chunk) or time.monotonic() - began > most_s:
                        whole = False
                        break
            pieces.append(Piece(shard, size, whole, digest.hexdigest()))
        return Direct(tuple(pieces), time.monotonic() - began)
    finally:
        await origins.aclose()
