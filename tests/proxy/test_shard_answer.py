"""What a request of a shard is answered, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.errors import ForebayError, RangeNotSatisfiable
from forebay_proxy.problem import PreconditionFailed
from forebay_proxy.shard import Pin, PinKind, Version
from forebay_proxy.shard_answer import Answer, Asked, decide

KEY = "ab" * 32
ETAG = '"v1"'


def version(length: int | None, **changes: str) -> Version:
    return Version("i", Pin(PinKind.ETAG, changes.pop("etag", ETAG)), length, **changes)


def answer(length: int | None, **headers: str) -> Answer:
    asked = Asked.of("GET", {name.replace("_", "-"): value for name, value in headers.items()})
    return decide(asked, "s3://b/0.tar", version(length), KEY)


@given(length=st.integers(0, 30), first=st.integers(0, 35), count=st.integers(1, 40))
def test_a_range_is_what_slicing_gives(length: int, first: int, count: int) -> None:
    """Bytes, length and Content-Range agree with a Python slice, or it is 416."""
    data = bytes(range(length))
    wanted = data[first : first + count]
    if not wanted:
        with pytest.raises(RangeNotSatisfiable) as caught:
            answer(length, Range=f"bytes={first}-{first + count - 1}")
        assert caught.value.length == length
        return
    found = answer(length, Range=f"bytes={first}-{first + count - 1}")
    assert found.last is not None
    assert data[found.first : found.last + 1] == wanted
    assert found.headers["Content-Length"] == str(len(wanted)) == str(found.length)
    assert found.headers["Content-Range"] == f"bytes {found.first}-{found.last}/{length}"


@given(length=st.integers(1, 30), count=st.integers(1, 40))
def test_a_suffix_is_what_slicing_gives(length: int, count: int) -> None:
    """The last bytes, or all of them."""
    found = answer(length, Range=f"bytes=-{count}")
    assert found.last is not None
    assert bytes(range(length))[found.first : found.last + 1] == bytes(range(length))[-count:]


@given(
    length=st.none() | st.integers(0, 30),
    headers=st.dictionaries(st.sampled_from(["Range", "If-Match", "If-None-Match", "If-Range"]), st.text(max_size=12)),
)
def test_no_header_makes_it_fail_otherwise(length: int | None, headers: dict[str, str]) -> None:
    """Whatever is sent: an answer, or one of the errors that have a status."""
    try:
        status = decide(Asked.of("GET", headers), "s3://b/0.tar", version(length), KEY).status
    except ForebayError as error:
        status = error.status
    assert status in {200, 206, 304, 400, 412, 416}


def test_if_match_is_looked_at_before_if_none_match() -> None:
    """The order of RFC 9110, 13.2.2."""
    with pytest.raises(PreconditionFailed):
        answer(5, If_Match='"other"', If_None_Match=ETAG)
    assert answer(5, If_Match=ETAG, If_None_Match=ETAG).status == 304


def test_head_ignores_range() -> None:
    """RFC 9110 defines Range for GET alone, so even a malformed one is no error there."""
    assert Asked.of("HEAD", {"Range": "bytes=x"}).range is None


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: x", "\x00", "\x7f", "é", "x" * 2000, ""])
def test_an_odd_header_of_the_origin_is_not_passed_on(value: str) -> None:
    """It could split our response."""
    odd = decide(Asked(), "s3://b/0.tar", version(5, encoding=value, content_type=value, etag=value), KEY)
    assert {"Content-Encoding", "ETag"} & set(odd.headers) == set()
    assert odd.headers["Content-Type"] == "application/octet-stream"
