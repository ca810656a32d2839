"""A row reads back as it was written, and nothing else is a row."""

from __future__ import annotations

import dataclasses
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import BOOT, make_row

from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version, store_key
from forebay_proxy.store.index.row import InvalidRow, Row, decode, encode

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30)
PINS = st.one_of(
    st.just(Pin()), st.builds(Pin, st.sampled_from([PinKind.ETAG, PinKind.MODIFIED]), TEXT.filter(bool))
)  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Row:
    length = draw(st.none() | st.integers(0, 5 * SEGMENT_BYTES))
    count = draw(st.integers(0, 6)) if length is None else DEFAULT_LAYOUT.count(length)
    sums = array("Q", draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count)))
    modified = draw(TEXT)
    version = Version(draw(TEXT.filter(bool)), draw(PINS), length, draw(TEXT), draw(TEXT), modified, bool(modified) and draw(st.booleans()))
    macs = st.text("0123456789abcdef", min_size=32, max_size=32)
    return Row.of(draw(TEXT), version, tuple(draw(st.lists(macs, max_size=3))), BOOT, sums)


@given(rows())
def test_a_row_reads_back(row: Row) -> None:
    """decode(encode(row)) is the row, and its text is ASCII."""
    text = encode(row)
    assert text.isascii()
    assert decode(row.key, text, DEFAULT_LAYOUT) == row


def test_bytes_outside_utf8_survive() -> None:
    """A name that came as raw bytes (surrogate escapes) reads back."""
    row = make_row("https://h/\udcff.tar")
    assert decode(row.key, encode(row), DEFAULT_LAYOUT) == row


def test_the_version_comes_back() -> None:
    """A row knows the version it was made of."""
    version = Version("etag:1", Pin(PinKind.MODIFIED, "Mon"), None, "gzip", "x/y")
    assert Row.of("s3://b/k", version, (), BOOT, array("Q")).version == version


def test_a_row_of_another_key_is_not_written() -> None:
    """A row that would be refused at the next start is refused now."""
    with pytest.raises(ValueError, match="key"):
        encode(dataclasses.replace(make_row(), url="s3://b/other.tar"))


def test_a_version_without_identity_is_not_written() -> None:
    """Without an identity nothing may outlive its fetch."""
    with pytest.raises(ValueError, match="identity"):
        encode(dataclasses.replace(make_row(), identity="", key=store_key("s3://b/0.tar", "")))


def test_a_row_without_a_date_reads_back() -> None:
    """As those of earlier sidecars are; and none is written where the origin told none, so that those can read it."""
    row = make_row()
    assert "modified" not in json.loads(encode(row))
    assert decode(row.key, encode(row), DEFAULT_LAYOUT).version.modified == ""


WRONG: list[tuple[str, Any]] = [
    ("url", 1), ("url", "s3://b/other.tar"), ("url", "a\nb"), ("url", "\ud800"), ("identity", ""), ("identity", None),
    ("pin", "etag"), ("pin", ["etag"]), ("pin", ["else", "x"]), ("pin", [[], "x"]), ("pin", ["etag", "a\r\nb"]), ("pin", ["etag", ""]),
    ("pin", ["none", "x"]),
    ("length", -1), ("length", 1.0), ("length", True), ("length", 2**60), ("length", "1"), ("length", SEGMENT_BYTES),
    ("encoding", None), ("type", "a\x00"), ("access", "x"), ("access", ["x"]), ("access", [1]), ("boot", 7),
    ("modified", "x"), ("modified", ["x"]), ("modified", ["x", 1]), ("modified", ["a\nb", True]), ("modified", None),
    ("sums", 5), ("sums", "!"), ("sums", "AAAA"), ("sums", "é"), ("sums", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_field_of_another_shape_is_refused(name: str, value: Any) -> None:
    """Each field has one type and one form."""
    row = make_row()
    text = json.dumps({**json.loads(encode(row)), name: value})
    with pytest.raises(InvalidRow):
        decode(row.key, text, DEFAULT_LAYOUT)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "NaN", "[" * 100_000, '{"url":' + "9" * 5000 + "}"])
def test_other_json_is_refused(text: str) -> None:
    """No object of exactly our fields: no row."""
    with pytest.raises(InvalidRow):
        decode(make_row().key, text, DEFAULT_LAYOUT)


def test_a_field_more_is_refused() -> None:
    """An unknown field may mean a newer form, which we would misread."""
    row = make_row()
    with pytest.raises(InvalidRow):
        decode(row.key, json.dumps({**json.loads(encode(row)), "extra": 1}), DEFAULT_LAYOUT)


@pytest.mark.parametrize("key", ["", "../../x", "0" * 63, "0" * 64, "A" * 64])
def test_a_row_cannot_speak_for_another_file(key: str) -> None:
    """The key must follow from name and identity."""
    with pytest.raises(InvalidRow):
        decode(key, encode(make_row()), DEFAULT_LAYOUT)
