"""Equal shares of samples: pure arithmetic, and the stage that reads them."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tarmaking import written

import forebay_loader as fb
from forebay_loader.base.errors import ShardReadError
from forebay_loader.dataset.sample_shares import SharePiece, counts_by_url, piece, ranges, shareable, shared_out

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def read(counts: list[int], wanted: SharePiece) -> list[tuple[int, int]]:
    """Every (shard, sample) of a piece, in order."""
    return [(at, sample) for at, first, stop in ranges(counts, wanted) for sample in range(first, stop)]


@given(COUNTS, st.integers(1, 20), st.booleans())
def test_pieces_are_equal_and_whole(counts: list[int], places: int, drop: bool) -> None:
    """All workers read as many samples. "repeat" leaves none out, "drop" reads none twice, and less than one a worker differs."""
    total = sum(counts)
    found = [read(counts, piece(total, place, places, drop=drop)) for place in range(places)]
    assert len({len(part) for part in found}) == 1
    seen = Counter(sample for part in found for sample in part)
    rest = sum(seen.values()) - total
    if drop:
        assert not seen or set(seen.values()) == {1}
        assert -places < rest <= 0
    elif total:
        assert len(seen) == total
        assert 0 <= rest < places


@given(COUNTS, st.integers(0, 40), st.integers(0, 60))
def test_a_piece_is_a_part_of_the_row(counts: list[int], first: int, samples: int) -> None:
    """Sample by sample as the row has them, from the start again after its end."""
    row = [(at, sample) for at, count in enumerate(counts) for sample in range(count)]
    assert read(counts, SharePiece(first, samples)) == ([row[n % len(row)] for n in range(first, first + samples)] if row else [])


def test_counts_by_name() -> None:
    """By URL, or by file name as in a sizes.json; one unknown shard is enough to know nothing."""
    urls = ["s3://b/x/0.tar", "https://h/x/1.tar?download=true"]
    assert counts_by_url({"s3://b/x/0.tar": 3, "1.tar": 4}, urls) == dict(zip(urls, (3, 4), strict=True))
    assert counts_by_url({"0.tar": 3}, urls) is None
    assert counts_by_url(lambda asked: [len(url) for url in asked], urls) == {url: len(url) for url in urls}
    assert counts_by_url(lambda asked: None, urls) is None


@pytest.mark.parametrize("how", [{"select_files": str.isalpha}, {"resampled": True}, {"nodesplitter": None}, {"workersplitter": None}])
def test_what_cannot_be_shared_out(how: dict[str, object]) -> None:
    """Where samples are left out, drawn, or split by somebody else, shares stay of shards."""
    usual = {"nodesplitter": wds.split_by_node, "data_parallel": (0, 2)}
    stage = shared_out(shareable(fb.WebDataset("s3://b/{0..3}.tar", **usual), drop=False))
    assert stage is not None
    assert pickle.loads(pickle.dumps(stage)).urls == stage.urls
    other = fb.WebDataset("s3://b/{0..3}.tar", **{**usual, **how})
    assert shareable(other, drop=False) is other


def test_ranks_compare_what_they_know() -> None:
    """Other counts, another rule for the rest, another number of workers: another digest. None is 0."""
    made = fb.WebDataset(["s3://b/0.tar"], nodesplitter=wds.split_by_node, data_parallel=(0, 2))
    repeat, drop = (shared_out(shareable(made, drop=rule)) for rule in (False, True))
    found = [repeat.digest({"s3://b/0.tar": 3}), repeat.digest({"s3://b/0.tar": 4}), drop.digest({"s3://b/0.tar": 3})]
    found.append(repeat.digest({"s3://b/0.tar": 3}, 2))
    assert len(set(found)) == 4
    assert min(found) > 0
    assert repeat.digest(None) == 0


@pytest.mark.parametrize(("told", "heard"), [(3, True), (4, False), (9, False)])
def test_samples_that_nobody_counted_are_an_error(tmp_path: Path, told: int, heard: bool) -> None:
    """A shard with more samples than its count, which nobody would read; with as many, or fewer, there is nothing to lose."""
    shard = tmp_path / "0.tar"
    shard.write_bytes(written([(f"{number}.x", b"1") for number in range(4)]))
    parts = []
    for rank in range(2):
        made = fb.WebDataset([f"file:{shard}"], nodesplitter=wds.split_by_node, data_parallel=(rank, 2), empty_check=False)
        shared = shareable(made, drop=False)
        shared_out(shared).by_samples({f"file:{shard}": told})
        parts.append(shared)
    first, second = parts
    got = [sample["__key__"] for sample in first]
    with pytest.raises(ShardReadError, match="more than the 3 samples") if heard else contextlib.nullcontext():
        got += [sample["__key__"] for sample in second]
    assert heard or set(got) == set("0123")
