"""How long a first segment is expected to be."""

from __future__ import annotations

import pytest
from support.house import shard_of

from forebay_proxy.cache.versions import opening
from forebay_proxy.cache.versions.opening import FirstSegmentSizes
from forebay_proxy.core.segments import SEGMENT_BYTES


def name(number: int, folder: str) -> str:
    return f"https://origin.example/{folder}/{number:05}.tar"


def test_as_long_as_those_of_its_folder_mostly_are() -> None:
    """Of the last few; one that is larger, or smaller, than the others decides nothing."""
    sizes = FirstSegmentSizes(SEGMENT_BYTES)
    for size in (*[7] * opening.RECENT, 100, 300, 100, SEGMENT_BYTES, 100, 1, 100, 100):
        sizes.learn(shard_of(name(size, "a")), size)
    assert sizes.guess(shard_of(name(9, "a"))) == 100


def test_of_an_unknown_folder_as_of_its_origin() -> None:
    """Shards may lie in a folder each. Of an unknown origin it is a whole segment."""
    sizes = FirstSegmentSizes(SEGMENT_BYTES)
    for folder, size in ("a", 100), ("b", 200), ("c", 300):
        sizes.learn(shard_of(name(0, folder)), size)
    assert [sizes.guess(shard_of(name(1, folder))) for folder in "abcd"] == [100, 200, 300, 200]
    assert sizes.guess(shard_of("https://other.example/a/0.tar")) == SEGMENT_BYTES


def test_the_groups_that_are_remembered_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unopened is forgotten."""
    monkeypatch.setattr(opening, "LEARNED_MOST", 3)
    sizes = FirstSegmentSizes(SEGMENT_BYTES)
    for number, folder in enumerate("abac"):
        sizes.learn(shard_of(name(0, folder)), 10**number)
    assert len(sizes) == 3
    assert [sizes.guess(shard_of(name(0, folder))) for folder in "abc"] == [1, 10, 1000]  # "b" is forgotten: as the origin's
