"""Parts of a file of a sample: where they lie, and whether little is wanted around them."""

from __future__ import annotations

from forebay_loader.samples.indexed_shard import MemberBytes
from forebay_loader.stream.range_reads import SEGMENT_BYTES, SPANS_AT_ONCE


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
