"""Digests of whole shards, as origins name them: which can be computed here, and the hashers that do it. Pure.

Every algorithm runs in C or not at all: a loop of Python over a gigabyte takes minutes. OpenSSL (``hashlib``) and zlib are always there;
CRC-32C and CRC-64/NVME come with ``awscrt`` (the extra ``digests``). What cannot be computed is counted as unchecked, never guessed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

__all__ = ["ALGORITHMS", "SIZES", "Digest", "DigestHasher", "first_usable", "hasher_of", "usable"]

# Where an origin offers several, the first of these that can be computed is. Strongest first, with two exceptions: SHA-256 before SHA-512
# (an accident beats neither, and it is twice as fast), and the cyclic sums before MD5: on the cores this was measured on MD5 takes 1.45 s
# a gigabyte, CRC-32C 0.1 s, and the end of a shard waits for whichever it is. (Google, who offers both, recommends CRC-32C too.)
SIZES = {"sha-256": 32, "sha-512": 64, "sha-1": 20, "crc64nvme": 8, "crc32c": 4, "md5": 16, "crc32": 4}
ALGORITHMS = tuple(SIZES)
_HASHLIB = {"sha-256": "sha256", "sha-512": "sha512", "sha-1": "sha1", "md5": "md5"}


@dataclass(frozen=True, slots=True)
class Digest:
    """What an origin says that the whole body of a shard version hashes to. ``value`` is as long as the algorithm's sums are."""

    algorithm: str
    value: bytes

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value.hex()}"


class DigestHasher(Protocol):
    """As ``hashlib``'s: takes bytes in order; a copy goes its own way."""

    def update(self, data: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...

    def copy(self) -> DigestHasher: ...


class _Crc:
    """A cyclic redundancy check with a hasher's methods."""

    def __init__(self, function: Callable[[Any, int], int], size: int, value: int = 0) -> None:
        self._function = function
        self._size = size
        self._value = value

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")

    def copy(self) -> _Crc:
        return _Crc(self._function, self._size, self._value)


def usable(algorithm: str) -> bool:
    """Whether ``algorithm`` can be computed here, by C code."""
    return _maker(algorithm) is not None


def first_usable(offered: Iterable[Digest]) -> Digest | None:
    """Of the digests that an origin offers, the one worth computing; None where none can be computed here."""
    able = [digest for digest in offered if usable(digest.algorithm)]
    return min(able, key=lambda digest: ALGORITHMS.index(digest.algorithm), default=None)


def hasher_of(algorithm: str) -> DigestHasher:
    """A fresh hasher of a usable algorithm."""
    make = _maker(algorithm)
    assert make is not None, f"{algorithm} cannot be computed here"
    return make()


@cache
def _maker(algorithm: str) -> Callable[[], DigestHasher] | None:
    if algorithm in _HASHLIB:
        return _of_openssl(_HASHLIB[algorithm])
    if algorithm == "crc32":
        return lambda: _Crc(zlib.crc32, SIZES["crc32"])
    if algorithm in SIZES and find_spec("awscrt") is not None:
        function = getattr(import_module("awscrt.checksums"), algorithm, None)  # an older one lacks the 64-bit sum
        return None if function is None else lambda: _Crc(function, SIZES[algorithm])
    return None


def _of_openssl(name: str) -> Callable[[], DigestHasher] | None:
    try:
        hashlib.new(name, usedforsecurity=False)
    except ValueError:  # left out of this build of OpenSSL
        return None
    return lambda: hashlib.new(name, usedforsecurity=False)
