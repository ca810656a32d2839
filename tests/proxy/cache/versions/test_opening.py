"""How long a first segment is expected to be."""

from __future__ import annotations

import pytest
from support.house import shard_of

from forebay_proxy.cache.versions import opening
from forebay_proxy.cache.versions.opening import FirstSegmentSizes
from forebay_proxy.core.segments import BLOCK_BYTES, SEGMENT_BYTES


def name(number: int, folder: str) -> str:
    return f"https://origin.example/{folder}/{number:05}.tar"


def test_as_long_as_the_longest_of_its_folder() -> None:
    """Of a folder that nobody knows, a whole segment."""
    sizes = FirstSegmentSizes(SEGMENT_BYTES)
    for size in (100, 300, 200):
        sizes.learn(shard_of(name(size, "a")), size)
    assert [sizes.guess(shard_of(name(9, folder))) for folder in "ab"] == [300, SEGMENT_BYTES]


def test_the_groups_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unopened is forgotten."""
    monkeypatch.setattr(opening, "LEARNED_MOST", 2)
    sizes = FirstSegmentSizes(SEGMENT_BYTES)
    for folder in "abac":
        sizes.learn(shard_of(name(0, folder)), BLOCK_BYTES)
    assert [sizes.guess(shard_of(name(0, folder))) for folder in "abc"] == [BLOCK_BYTES, SEGMENT_BYTES, BLOCK_BYTES]
