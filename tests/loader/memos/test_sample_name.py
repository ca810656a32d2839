"""Which sample it is: a digest of what it holds, or of what the user names."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from forebay_loader.memos.errors import MemberMissing, MemoRefused
from forebay_loader.memos.memo_results import name_of_sample

SAMPLE = {"__key__": "a", "__url__": "s3://b/0.tar", "mp4": b"clip", "json": {"n": [1, 2.5]}, "x": numpy.arange(3)}


@pytest.mark.parametrize(
    "change", [{"__key__": "b"}, {"mp4": b"other"}, {"json": {"n": [1, 2.25]}}, {"x": numpy.arange(1, 4)}, {"new": 1}, {"mp4": "clip"}]
)
def test_any_change_is_another(change: dict[str, Any]) -> None:
    """Of its key, of a member, of a type."""
    assert name_of_sample({**SAMPLE, **change}, None) != name_of_sample(SAMPLE, None)


def test_where_it_lies_does_not_count() -> None:
    """A URL is signed anew, a shard moved; a view of bytes is those bytes."""
    moved = {**SAMPLE, "__url__": "s3://c/1.tar?X-Amz-Signature=1", "__local_path__": "/x", "mp4": memoryview(b"clip")}
    assert name_of_sample(moved, None) == name_of_sample(SAMPLE, None)


def test_members_may_be_named() -> None:
    """Then the others do not count, the key does; one that is not there is an error."""
    assert name_of_sample({**SAMPLE, "json": 7}, ["mp4"]) == name_of_sample(SAMPLE, "mp4")
    assert name_of_sample({**SAMPLE, "__key__": "b"}, "mp4") != name_of_sample(SAMPLE, "mp4")
    with pytest.raises(MemberMissing, match=r"the sample 'a' of s3://b/0\.tar has no 'flac', which fb\.memo\(key=…\) names"):
        name_of_sample(SAMPLE, ["mp4", "flac"])


def test_a_function_tells_what_it_tells() -> None:
    """And nothing else counts."""
    assert name_of_sample({**SAMPLE, "mp4": b""}, lambda sample: sample["__key__"]) == name_of_sample(SAMPLE, lambda sample: "a")


def test_what_has_no_digest_asks_for_a_key() -> None:
    """By the member's name."""
    with pytest.raises(MemoRefused, match=r"builtins\.object.*or give key="):
        name_of_sample({**SAMPLE, "jpg": object()}, None)
