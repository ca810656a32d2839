"""The sample index, client side: the same samples as webdataset reads, for every tar that has one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.indexes import URL, by_webdataset, indexed
from support.lengths import examples
from support.tarmaking import archives, written

from forebay_loader.samples.byte_window import Whole
from forebay_loader.samples.index_client import Indexed, Indexes, samples_in, source_in
from forebay_proxy.wire.tar.sample_index import (
    NotIndexable,
)

pytestmark = pytest.mark.webdataset


@settings(max_examples=examples(150), deadline=None)
@given(archives(), st.integers(0, 12), st.integers(0, 12))
def test_random_tars_give_webdatasets_samples(tar: bytes, start: int, stop: int) -> None:
    """All of them, and any part; a tar that has no index is one that webdataset disputes."""
    try:
        index = indexed(tar)
    except NotIndexable:
        assume(False)
    expected = by_webdataset(tar)
    assert list(samples_in(Whole(tar), len(tar), index, URL)) == expected
    assert list(samples_in(Whole(tar), len(tar), index, URL, start, stop)) == expected[start:stop]


def test_each_sample_says_where_its_shard_lies() -> None:
    """As webdataset does for cached shards."""
    tar = written([("a.jpg", b"x")])
    assert list(samples_in(Whole(tar), len(tar), indexed(tar), URL, local_path="/c/a")) == [
        {"__key__": "a", "__url__": URL, "jpg": b"x", "__local_path__": "/c/a"}
    ]


def test_an_index_of_other_bytes_is_refused() -> None:
    """Another length, or places beyond the end."""
    tar = written([("a.jpg", b"x" * 900)])
    index = indexed(tar)
    with pytest.raises(ValueError, match="an index of a shard of 10240 bytes, and this one has 10752"):
        list(samples_in(Whole(tar + bytes(512)), len(tar) + 512, index, URL))
    index.length = 1024
    with pytest.raises(ValueError, match="beyond the 1024"):
        list(samples_in(Whole(tar[:1024]), len(tar[:1024]), index, URL))


def test_a_process_keeps_no_more_than_it_may() -> None:
    """The longest unused goes; a new version takes the place of the old one; the last one stays, however large."""
    kept, index = Indexes(most_bytes=100), indexed(written([("a.jpg", b"x")]))
    a, b, c = (source_in(f"file:///{name}.tar") for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    kept.put(a, Indexed(index, '"1"'), 40)
    kept.put(b, Indexed(index, '"2"'), 40)
    kept.put(a, Indexed(index, '"3"'), 40)
    assert kept.get(a) == Indexed(index, '"3"')
    kept.put(c, Indexed(index, '"4"'), 40)
    assert (kept.get(b), kept.get(a) is None, kept.get(c) is None) == (None, False, False)
    kept.put(b, Indexed(index, '"5"'), 1000)
    assert [kept.get(one) is not None for one in (a, b, c)] == [False, True, False]
