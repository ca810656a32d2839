"""The sample index, client side: the same samples as webdataset reads, for every tar that has one."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tarmaking import archives, written

from forebay_loader.samples.byte_window import Whole
from forebay_loader.samples.index_client import Indexed, Indexes, samples_in, source_in
from forebay_loader.samples.indexed_shards import IndexedShard, IndexedShards, Span, spans
from forebay_proxy.wire.tar.sample_index import (
    IndexBuilder,
    NotIndexable,
    SampleFile,
    SampleIndex,
    decode,
    encode,
)
from forebay_proxy.wire.tar.scan import scan

pytestmark = pytest.mark.webdataset

URL = "s3://b/a.tar"


def indexed(tar: bytes) -> SampleIndex:
    builder = IndexBuilder()
    for member in scan(lambda at, size: tar[at : at + size], len(tar)):
        builder.add(*member)
    return decode(encode(builder.finished(len(tar))))


def by_webdataset(tar: bytes, **files: Any) -> list[dict[str, Any]]:
    tariterators = pytest.importorskip("webdataset.tariterators")
    files = tariterators.tar_file_expander([{"url": URL, "stream": io.BytesIO(tar)}], **files)
    return [sample for sample in tariterators.group_by_keys(files) if sample]


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


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 300)), max_size=30), st.integers(0, 200), st.integers(1, 1000))
def test_requests_cover_what_is_wanted(gaps: list[tuple[int, int]], merge: int, most: int) -> None:
    """Every file is whole in one of them, in order, none is larger than allowed but for a file that is."""
    files, at = list[SampleFile](), 0
    for gap, size in gaps:
        files.append(SampleFile("x", at + gap, size))
        at += gap + size
    found = spans(files, merge=merge, most=most)
    assert found == sorted(found)
    for file in files:
        assert any(span.first <= file.offset and file.offset + file.size <= span.end for span in found)
    largest = max((file.size for file in files), default=0)
    assert all(span.end - span.first <= max(most, largest) for span in found)
    assert sum(span.end - span.first for span in found) <= sum(file.size for file in files) + merge * len(files)


def test_neighbours_come_together() -> None:
    """Up to a gap that costs less than a request."""
    files = [SampleFile("a", 0, 10), SampleFile("b", 20, 10), SampleFile("c", 1000, 5)]
    assert spans(files, merge=10, most=100) == [Span(0, 30), Span(1000, 1005)]
    assert spans(files, merge=9, most=100) == [Span(0, 10), Span(20, 30), Span(1000, 1005)]
    assert spans(files, merge=10, most=29) == [Span(0, 10), Span(20, 30), Span(1000, 1005)]


def test_a_request_holds_files_that_overlap() -> None:
    """Hostile headers say that one file lies in another: it takes no bytes from the outer one."""
    assert spans([SampleFile("a", 0, 2000), SampleFile("b", 1024, 10)]) == [Span(0, 2000)]


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


class ByRanges(IndexedShard):
    """A shard whose bytes are asked for part by part, of a tar in memory."""

    def __init__(self, tar: bytes, select: Callable[[str], bool]) -> None:
        self.url, self._select, self._opened, self._tar = URL, select, None, tar
        self._indexed = Indexed(indexed(tar), "etag")

    def _bytes(self, span: Span) -> bytes:
        return self._tar[span.first : span.end]


@settings(max_examples=int(os.environ.get("FOREBAY_EXAMPLES", examples(100))), deadline=None, suppress_health_check=list(HealthCheck))
@given(tar=archives(), wanted=st.sets(st.sampled_from("0ablxgst_.é")), span=st.sampled_from([600, 3000, 4 << 20]))
@example(tar=written([("a.x", b"1"), ("b.y", bytes(2000)), ("a.z", b"2")]), wanted={"x", "z"}, span=600)
@example(tar=written([("a.x", b"1"), ("b.y", bytes(2000)), ("a.x", b"2")]), wanted={"x"}, span=600)
def test_selected_by_ranges_as_webdataset_selects(tar: bytes, wanted: set[str], span: int) -> None:
    """Whatever a request may bring: also where files of one key come together because none between them is wanted."""

    def select(name: str) -> bool:
        return name[-1:] in wanted

    def outcome(samples: Callable[[], list[dict[str, Any]]]) -> Any:
        try:
            return samples()
        except ValueError:
            return "twice"

    try:
        shard = ByRanges(tar, select)
    except NotIndexable:
        assume(False)
    assume(shard.index.spelled)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("forebay_loader.samples.indexed_shards.SPAN_BYTES", span)
        assert outcome(lambda: list(shard.samples())) == outcome(lambda: by_webdataset(tar, select_files=select))
