"""How a sample of a shard is named by its number, and which shards have numbers."""

from __future__ import annotations

import os
from array import array

import pytest

from forebay_loader import ShardReadError
from forebay_loader.samples.index_client import Indexed
from forebay_loader.samples.indexed_shard import IndexedShard, place, shard_source
from forebay_proxy.wire.tar.sample_index import SampleIndex


@pytest.mark.parametrize(("number", "found"), [(0, 0), (4, 4), (-1, 4), (-5, 0)])
def test_a_number_may_count_from_behind(number: int, found: int) -> None:
    """As of any sequence."""
    assert place(number, 5) == found


@pytest.mark.parametrize("number", [5, -6])
def test_a_number_beyond_is_an_error(number: int) -> None:
    """Which says how many there are."""
    with pytest.raises(IndexError, match=f"sample {number} of 5"):
        place(number, 5)


def test_the_files_of_a_sample_are_asked_for_at_once() -> None:
    """Of one that is here as a file, by their places in the tar; the next sample's are not."""
    keys, files = (b"ab", array("I", [1, 2])), (array("Q", [512, 1536, 2560]), array("Q", [3, 4, 5]), array("B", [0, 1, 0]))
    index = SampleIndex(4096, array("I", [0, 2, 3]), *keys, *files, ["cls", "jpg"], spelled=True)
    shard, asked = IndexedShard.__new__(IndexedShard), list[list[tuple[int, int]]]()

    class Held:
        closed = False

        def parts(self, spans: list[tuple[int, int]]) -> list[bytes]:
            asked.append(spans)
            return [b"x" * size for _, size in spans]

    shard.__dict__.update(url="s3://b/a.tar", _pid=os.getpid(), _opened=Held(), _indexed=Indexed(index, "e"))
    assert shard[0] == {"__key__": "a", "__url__": "s3://b/a.tar", "cls": b"xxx", "jpg": b"xxxx"}
    assert asked == [[(512, 3), (1536, 4)]]


def test_only_what_the_sidecar_reads_has_an_index() -> None:
    """A command of unknown kind is webdataset's."""
    with pytest.raises(ShardReadError, match="left to webdataset"):
        shard_source("pipe:zcat a.tar.gz")
