"""Ranges and preconditions by the letter of RFC 9110."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.core.http_range import RangeRequest, Suffix, if_match, if_none_match, if_range, parse_range, resolve
from forebay_proxy.core.shard import ByteRange


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 0)),
        ("bytes=5-", ByteRange(5)),
        ("bytes=-5", Suffix(5)),
        ("bytes=-0", Suffix(0)),
        ("BYTES=1-2", ByteRange(1, 2)),
        ("bytes= 1-2 ", ByteRange(1, 2)),
        ("bytes=,1-2,", ByteRange(1, 2)),
        ("bytes=0-9999999999999999999", ByteRange(0, 2**63 - 1)),
        ("bytes=0-" + "9" * 4000, ByteRange(0, 2**63 - 1)),
        ("bytes=" + "9" * 5000 + "-", ByteRange(2**63 - 1)),
        ("bytes=" + "9" * 20 + "-" + "9" * 21, ByteRange(2**63 - 1, 2**63 - 1)),
        ("bytes=-" + "9" * 5000, Suffix(2**63 - 1)),
        ("bytes=" + "0" * 5000 + "1-" + "0" * 5000 + "2", ByteRange(1, 2)),
        ("bytes=0-1,3-4", None),
        ("bytes=0-1, -5", None),
        ("lines=1-2", None),
        ("lines=gibberish", None),
    ],
)
def test_ranges(header: str, expected: RangeRequest | None) -> None:
    """One range is read; none, several, and other units mean the whole."""
    assert parse_range(header) == expected


@pytest.mark.parametrize(
    "header",
    ["", "bytes", "bytes=", "bytes=,", "bytes=-", "bytes=a-b", "bytes=1", "bytes=5-4", "bytes=1-2,x", "bytes=--1", "bytes=+1-2",
    "bytes=1_0-20",
     "bytes=1 - 2", "bytes=٣-٤", "bytes=" + "9" * 5000 + "-4", "bytes=0x1-2", "0-1"],
)  # fmt: skip
def test_malformed_ranges(header: str) -> None:
    """400, with an example of a right one."""
    with pytest.raises(InvalidRequest) as caught:
        parse_range(header)
    assert caught.value.status == 400
    assert "Range: bytes=0-1048575" in caught.value.next_step


@pytest.mark.parametrize(
    ("wanted", "length"), [(ByteRange(10), 10), (ByteRange(0), 0), (Suffix(0), 10), (Suffix(5), 0), (ByteRange(11, 12), 10)]
)
def test_unsatisfiable(wanted: RangeRequest, length: int) -> None:
    """Nothing of the range is there: ValueError, which the server answers with 416."""
    with pytest.raises(ValueError, match=f"of {length}"):
        resolve(wanted, length)


@given(st.integers(0, 200), st.none() | st.integers(0, 200), st.integers(0, 100))
def test_resolving_is_slicing(first: int, last: int | None, length: int) -> None:
    """The same bytes as a slice of the whole, or an error where that slice is empty."""
    whole = bytes(range(length))
    expected = whole[first : None if last is None else last + 1]
    try:
        start, end = resolve(ByteRange(first, last), length)
    except ValueError:
        assert not expected
        return
    assert whole[start : end + 1] == expected


@given(st.integers(0, 200), st.integers(0, 100))
def test_resolving_suffixes_is_slicing(count: int, length: int) -> None:
    """The last bytes, or an error where there are none."""
    whole = bytes(range(length))
    try:
        start, end = resolve(Suffix(count), length)
    except ValueError:
        assert count == 0 or length == 0
        return
    assert whole[start : end + 1] == whole[-count:]


A, B, WEAK_A = '"a"', '"b"', 'W/"a"'


@pytest.mark.parametrize(
    ("header", "etag", "goes_on"),
    [
        (None, A, True), ("*", A, True), (" * ", None, True), (A, A, True), (f"{B}, {A}", A, True), (f"{B},{A},", A, True), (B, A, False),
        (WEAK_A, A, False), (A, WEAK_A, False), (WEAK_A, WEAK_A, False), (A, None, False), ("a", A, False), (f"{A} {B}", A, False),
        ('"x,y"', '"x,y"', True), ('"x, y"', '"x"', False), (f"{A}garbage", A, False), ("", A, False), ('""', '""', True),
    ],
)  # fmt: skip
def test_if_match(header: str | None, etag: str | None, goes_on: bool) -> None:
    """Strong comparison with each tag of the list; a malformed field matches nothing."""
    assert if_match(header, etag) is goes_on


@pytest.mark.parametrize(
    ("header", "etag", "goes_on"),
    [
        (None, A, True), ("*", A, False), ("*", None, False), (A, A, False), (f"{B} , {WEAK_A}", A, False), (A, WEAK_A, False),
        (B, A, True),
        (A, None, True), ("a", A, True), ("", A, True),
    ],
)  # fmt: skip
def test_if_none_match(header: str | None, etag: str | None, goes_on: bool) -> None:
    """Weak comparison; a malformed field matches nothing."""
    assert if_none_match(header, etag) is goes_on


DATE = "Sat, 29 Oct 1994 19:43:31 GMT"


@pytest.mark.parametrize(
    ("header", "etag", "modified", "honoured"),
    [
        (None, A, None, True), (A, A, None, True), (B, A, None, False), (WEAK_A, WEAK_A, None, False), (A, WEAK_A, None, False),
        (f"{A}, {B}", A, None, False), (DATE, A, DATE, True), (DATE, A, None, False), (DATE, A, DATE.replace("29", "28"), False),
        ("", A, "", False), ("a", A, None, False), ("*", A, None, False),
    ],
)  # fmt: skip
def test_if_range(header: str | None, etag: str, modified: str | None, honoured: bool) -> None:
    """One strong tag or the very date; else the whole is sent."""
    assert if_range(header, etag, modified) is honoured


@pytest.mark.parametrize("header", [", " * 4000, '"a' * 4000, '"a",' * 4000 + "x", "," * 8000 + '"', " ," * 4000 + 'W/"'])
def test_long_lists_take_no_time(header: str) -> None:
    """No precondition backtracks itself to death."""
    assert if_match(header, '"b"') is False
