"""How a sample of a shard is named by its number, and which shards have numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forebay_loader import ShardReadError
from forebay_loader.samples.indexed_shard import MemberBytes, place, shard_source
from forebay_loader.samples.indexed_shards import IndexedShards
from forebay_loader.stream.range_reads import SEGMENT_BYTES, SPANS_AT_ONCE


@pytest.mark.parametrize(("number", "found"), [(0, 0), (4, 4), (-1, 4), (-5, 0)])
def test_a_number_may_count_from_behind(number: int, found: int) -> None:
    """As of any sequence."""
    assert place(number, 5) == found


@pytest.mark.parametrize("number", [5, -6])
def test_a_number_beyond_is_an_error(number: int) -> None:
    """Which says how many there are."""
    with pytest.raises(IndexError, match=f"sample {number} of 5"):
        place(number, 5)


def test_only_what_the_sidecar_reads_has_an_index() -> None:
    """A command of unknown kind is webdataset's."""
    with pytest.raises(ShardReadError, match="left to webdataset"):
        shard_source("pipe:zcat a.tar.gz")


# What a sequence over many shards takes for a list of them.


@pytest.mark.parametrize("urls", [Path("a.tar"), b"a.tar", None, 7, ["s3://bucket/a.tar", Path("b.tar")], [b"s3://bucket/a.tar"]])
def test_shards_are_named_by_strings(urls: Any) -> None:
    """What is none is told by its place and type, before anything is asked."""
    with pytest.raises(TypeError, match=r"entry \d of \d is (PosixPath|bytes|NoneType|int)"):
        IndexedShards(urls)


@pytest.mark.parametrize("urls", [[], ()])
def test_an_empty_list_is_an_error(urls: Any) -> None:
    """As fb.WebDataset says it."""
    with pytest.raises(ValueError, match="the list of shards is empty"):
        IndexedShards(urls)


# Parts of a file of a sample: where they lie, and whether little is wanted around them.


class Shard:
    """Writes down what is read of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []

    def read(self, at: int, size: int, *, sparse: bool = False) -> bytes:
        self.asked.append((at, size, sparse))
        return bytes(size)


def test_a_part_lies_in_its_shard() -> None:
    """It ends with the member; nothing is asked for behind it."""
    shard = Shard()
    member = MemberBytes(shard.read, 1000, 50)
    assert [len(member.read(at, 20)) for at in (0, 40, 50)] == [20, 10, 0]
    assert shard.asked == [(1000, 20, False), (1040, 10, False)]


def test_little_of_a_large_file_is_asked_for_alone() -> None:
    """By what is read next where that is known, else by each part."""
    shard = Shard()
    member = MemberBytes(shard.read, 1000, SEGMENT_BYTES)
    member.read(0, 10)
    member.expect([(0, SEGMENT_BYTES)])
    member.read(0, 10)
    member.expect([(0, 10), (500_000, 500_010)])
    member.read(0, 10)
    assert [sparse for _, _, sparse in shard.asked] == [True, False, True]


def test_a_small_file_shares_its_segment_with_others() -> None:
    """They are wanted soon, so the segment comes whole."""
    shard = Shard()
    member = MemberBytes(shard.read, 1000, SEGMENT_BYTES - 1)
    member.expect([(0, 10)])
    member.read(0, 10)
    assert shard.asked == [(1000, 10, False)]


def test_parts_are_asked_for_together_where_the_shard_is_not_here() -> None:
    """Of a file that is, one after the other."""
    assert [MemberBytes(Shard().read, 0, 100, here).expect([(0, 10)]) for here in (True, False)] == [1, SPANS_AT_ONCE]
