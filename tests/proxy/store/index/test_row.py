"""A row reads back as it was written, and nothing else is a row."""

from __future__ import annotations

import base64
import dataclasses
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import BOOT, make_row, text_of

from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.segments import DEFAULT_LAYOUT, MOST_BYTES, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version, store_key
from forebay_proxy.store.index.row import InvalidRow, Row, decode

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30)
PINS = st.one_of(
    st.just(Pin()), st.builds(Pin, st.sampled_from([PinKind.ETAG, PinKind.MODIFIED]), TEXT.filter(bool))
)  # fmt: skip


SUM, NO_SUM, SUMS = (base64.b64encode(b"".join(value.to_bytes(8, "little") for value in sums)).decode() for sums in ([7], [0], [7, 8]))


@st.composite
def rows(draw: st.DrawFn) -> Row:
    length = draw(st.none() | st.integers(0, 5 * SEGMENT_BYTES))
    count = draw(st.integers(0, 6)) if length is None else DEFAULT_LAYOUT.count(length)
    sums = Checksums(draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count)))
    modified = draw(TEXT)
    version = Version(draw(TEXT.filter(bool)), draw(PINS), length, draw(TEXT), draw(TEXT), modified, bool(modified) and draw(st.booleans()))
    macs = st.text("0123456789abcdef", min_size=32, max_size=32)
    return Row.of(draw(TEXT), version, tuple(draw(st.lists(macs, max_size=3))), BOOT, sums)


@given(rows())
def test_a_row_reads_back(row: Row) -> None:
    """decode(text_of(row)) is the row, and its text is ASCII."""
    text = text_of(row)
    assert text.isascii()
    assert decode(row.key, text, DEFAULT_LAYOUT) == row


def test_bytes_outside_utf8_survive() -> None:
    """A name that came as raw bytes (surrogate escapes) reads back."""
    row = make_row("https://h/\udcff.tar")
    assert decode(row.key, text_of(row), DEFAULT_LAYOUT) == row


def test_a_version_without_identity_is_not_written() -> None:
    """Without an identity nothing may outlive its fetch."""
    row = make_row()
    with pytest.raises(ValueError, match="identity"):
        dataclasses.replace(row, version=dataclasses.replace(row.version, identity=""), key=store_key("s3://b/0.tar", "")).check()


def test_a_row_without_a_date_reads_back() -> None:
    """As those of earlier sidecars are; and none is written where the origin told none, so that those can read it."""
    row = make_row()
    assert "modified" not in json.loads(text_of(row))
    assert decode(row.key, text_of(row), DEFAULT_LAYOUT).version.modified == ""


def test_a_row_is_as_long_as_what_is_stored() -> None:
    """Whatever length the origin names: 25 bytes for each run, 11 for each segment of one."""
    lone, run, short = make_row(length=MOST_BYTES), make_row(length=MOST_BYTES), make_row()
    lone.sums[DEFAULT_LAYOUT.count(MOST_BYTES) - 1] = 2**64 - 1
    run.sums.extend(1000, array("Q", [2**64 - 1] * 1000))
    assert len(text_of(lone)) < len(text_of(short)) + 40
    assert len(text_of(run)) < len(text_of(short)) + 40 + 11 * 1000
    assert [decode(row.key, text_of(row), DEFAULT_LAYOUT) for row in (lone, run)] == [lone, run]


WRONG: list[tuple[str, Any]] = [
    ("url", 1), ("url", "s3://b/other.tar"), ("url", "a\nb"), ("url", "\ud800"), ("identity", ""), ("identity", None),
    ("pin", "etag"), ("pin", ["etag"]), ("pin", ["else", "x"]), ("pin", [[], "x"]), ("pin", ["etag", "a\r\nb"]), ("pin", ["etag", ""]),
    ("pin", ["none", "x"]),
    ("length", -1), ("length", 1.0), ("length", True), ("length", 2**60), ("length", "1"), ("length", SEGMENT_BYTES),
    ("encoding", None), ("type", "a\x00"), ("access", "x"), ("access", ["x"]), ("access", [1]), ("boot", 7),
    ("modified", "x"), ("modified", ["x"]), ("modified", ["x", 1]), ("modified", ["a\nb", True]), ("modified", None),
    ("sums", 5), ("sums", "!"), ("sums", "AAAA"), ("sums", "é"), ("sums", ""), ("sums", SUM), ("sums", SUMS[:16] + "="), ("sums", {}),
    ("sums", {"segment": SEGMENT_BYTES}), ("sums", {"segment": SEGMENT_BYTES, "runs": [], "more": 0}), ("sums", [[0, SUM]]),
    ("sums", {"segment": SEGMENT_BYTES // 2, "runs": []}), ("sums", {"segment": float(SEGMENT_BYTES), "runs": []}),
    ("sums", {"segment": SEGMENT_BYTES, "runs": {}}), ("extra", 1),  # it may mean a newer form, which we would misread
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_field_of_another_shape_is_refused(name: str, value: Any) -> None:
    """Each field has one type and one form."""
    row = make_row(sums=[7, 8])
    text = json.dumps({**json.loads(text_of(row)), name: value})
    with pytest.raises(InvalidRow):
        decode(row.key, text, DEFAULT_LAYOUT)


RUNS: list[list[Any]] = [
    [SUM], [[0]], [[0, SUM, 1]], [["0", SUM]], [[True, SUM]], [[0.0, SUM]], [[-1, SUM]], [[2, SUM]], [[1, SUMS]], [[2**22, SUM]],
    [[2**64, SUM]], [[0, ""]], [[0, "!"]], [[0, 5]], [[0, None]], [[0, NO_SUM]],
    [[0, SUM], [0, SUM]], [[1, SUM], [0, SUM]], [[0, SUMS], [1, SUM]],
]  # fmt: skip


@pytest.mark.parametrize("length", [2 * SEGMENT_BYTES, None])
@pytest.mark.parametrize("runs", RUNS)
def test_runs_of_another_shape_are_refused(runs: list[Any], length: int | None) -> None:
    """Each lies behind the one before it, inside of the shard, and has no 0; of a shard without a length, inside of the longest."""
    row = make_row(length=length)
    text = json.dumps({**json.loads(text_of(row)), "sums": {"segment": SEGMENT_BYTES, "runs": runs}})
    if length is None and runs in ([[2, SUM]], [[1, SUMS]]):
        assert decode(row.key, text, DEFAULT_LAYOUT).sums.last == 2
        return
    with pytest.raises(InvalidRow):
        decode(row.key, text, DEFAULT_LAYOUT)
