"""Digests are computed in C or not at all, and in pieces as in one."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core import digests as digest_module
from forebay_proxy.core.digests import ALGORITHMS, SIZES, Digest, first_usable, hasher_of, usable

CHECK = b"123456789"  # the catalogue's check input
CHECKS = {
    "sha-256": hashlib.sha256(CHECK).hexdigest(),
    "sha-512": hashlib.sha512(CHECK).hexdigest(),
    "sha-1": hashlib.sha1(CHECK).hexdigest(),
    "md5": hashlib.md5(CHECK).hexdigest(),
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
}


def _digest(algorithm: str) -> Digest:
    return Digest(algorithm, bytes(SIZES[algorithm]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_known_answer(algorithm: str) -> None:
    """As the standard, or the catalogue of checksums, has it."""
    hasher = hasher_of(algorithm)
    hasher.update(CHECK)
    assert hasher.digest().hex() == CHECKS[algorithm]
    assert len(hasher.digest()) == SIZES[algorithm]


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5), algorithm=st.sampled_from(ALGORITHMS))
def test_pieces_are_the_whole(data: bytes, cuts: list[int], algorithm: str) -> None:
    """However it is cut, also where a copy goes on; what is done with a copy does not happen to the original."""
    whole, pieces = hasher_of(algorithm), hasher_of(algorithm)
    whole.update(data)
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for first, end in pairwise(bounds):
        pieces.copy().update(b"x")
        pieces = pieces.copy()
        pieces.update(memoryview(data)[first:end])
    assert pieces.digest() == whole.digest()


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None), (["md5", "sha-256"], "sha-256"), (["sha-512", "sha-256"], "sha-256"), (["md5", "crc32c"], "crc32c"),
        (["crc32", "md5"], "md5"),
    ],
)  # fmt: skip
def test_the_one_worth_computing(offered: list[str], chosen: str | None) -> None:
    """Strong ones first; of two that catch every accident the quicker."""
    found = first_usable(map(_digest, random.sample(offered, len(offered))))
    assert (found.algorithm if found else None) == chosen


def test_what_this_openssl_lacks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without MD5, as some companies have it, still starts."""

    def lacks(name: str, **how: object) -> None:
        raise ValueError(f"unsupported hash type {name}")

    monkeypatch.setattr(digest_module.hashlib, "new", lacks)
    digest_module._maker.cache_clear()
    try:
        assert not usable("md5")
    finally:
        digest_module._maker.cache_clear()
