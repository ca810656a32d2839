"""Which requests bring the files that are wanted, and that their samples are webdataset's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.indexes import URL, by_webdataset, indexed
from support.lengths import examples
from support.tarmaking import archives, written

from forebay_loader.samples.ranged_samples import RangedSamples, Span, spans
from forebay_proxy.wire.tar.sample_index import NotIndexable, SampleFile

pytestmark = pytest.mark.webdataset


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
    assert spans(files, merge=10, most=30) == [Span(0, 30), Span(1000, 1005)]
    assert spans(files, merge=10, most=29) == [Span(0, 10), Span(20, 30), Span(1000, 1005)]


def test_neighbours_far_behind_others_come_together_too() -> None:
    files = [SampleFile("a", 0, 10), SampleFile("b", 1000, 5), SampleFile("c", 1010, 5)]
    assert spans(files, merge=10, most=20) == [Span(0, 10), Span(1000, 1015)]


def test_a_request_holds_files_that_overlap() -> None:
    """Hostile headers say that one file lies in another: it takes no bytes from the outer one."""
    assert spans([SampleFile("a", 0, 2000), SampleFile("b", 1024, 10)]) == [Span(0, 2000)]


@settings(max_examples=int(os.environ.get("FOREBAY_EXAMPLES", examples(100))), deadline=None, suppress_health_check=list(HealthCheck))
@given(tar=archives(), wanted=st.sets(st.sampled_from("0ablxgst_.é")), span=st.sampled_from([600, 3000, 4 << 20]))
@example(tar=written([("a.x", b"1"), ("b.y", bytes(2000)), ("a.z", b"2")]), wanted={"x", "z"}, span=600)
@example(tar=written([("a.x", b"1"), ("b.y", bytes(2000)), ("a.x", b"2")]), wanted={"x"}, span=600)
@example(tar=written([("c.x", b"0"), ("a.x", b"1"), ("b.y", bytes(100_000)), ("a.z", b"2")]), wanted={"x", "z"}, span=4 << 20)
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
        index = indexed(tar)
    except NotIndexable:
        assume(False)
    assume(index.spelled)
    shard = RangedSamples(URL, index, lambda part: tar[part.first : part.end], select)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("forebay_loader.samples.ranged_samples.SPAN_BYTES", span)
        assert outcome(lambda: list(shard.between(0, len(index)))) == outcome(lambda: by_webdataset(tar, select_files=select))


def test_one_sample_costs_its_own_bytes() -> None:
    """Nothing of its neighbours in the same tar."""
    tar = written([("a.x", bytes(100_000)), ("b.x", b"2"), ("c.x", bytes(100_000))])
    asked = list[Span]()

    def read(span: Span) -> bytes:
        asked.append(span)
        return tar[span.first : span.end]

    assert RangedSamples(URL, indexed(tar), read).one(1) == {"__key__": "b", "__url__": URL, "x": b"2"}
    assert [span.end - span.first for span in asked] == [1]
