"""Bytes whose value follows from their offset, so that any slice can be checked alone. Pure."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["ramp"]

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
