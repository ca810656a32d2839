"""What a request of a shard is answered, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from forebay_proxy.core.errors import RangeNotSatisfiable
from forebay_proxy.core.http_range import RangeRequest, Suffix
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, SparseRange, Version
from forebay_proxy.server.http.problem import PreconditionFailed
from forebay_proxy.server.http.shard_response import ShardRequest, ShardResponse, decide

KEY = "ab" * 32
ETAG = '"v1"'


def version(length: int | None, **changes: str) -> Version:
    return Version("i", Pin(PinKind.ETAG, changes.pop("etag", ETAG)), length, **changes)


def answer(length: int | None, **headers: str) -> ShardResponse:
    asked = ShardRequest.of("GET", CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}))
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


@pytest.mark.parametrize(("headers", "want"), [
    ({"Range": "bytes=3-9", "Forebay-Sparse": "1"}, SparseRange(3, 9)), ({"Range": "bytes=3-9", "Forebay-Sparse": "0"}, ByteRange(3, 9)),
    ({"Range": "bytes=3-", "Forebay-Sparse": "1"}, ByteRange(3)), ({"Range": "bytes=-3", "Forebay-Sparse": "1"}, Suffix(3)),
    ({"Forebay-Sparse": "1"}, None),
])  # fmt: skip
def test_a_sparse_range_is_one_with_both_ends(headers: dict[str, str], want: RangeRequest | None) -> None:
    """What makes no sense of the hint is answered as without it."""
    assert ShardRequest.of("GET", CIMultiDict(headers)).range == want


def test_if_match_is_looked_at_before_if_none_match() -> None:
    """The order of RFC 9110, 13.2.2."""
    with pytest.raises(PreconditionFailed):
        answer(5, If_Match='"other"', If_None_Match=ETAG)
    assert answer(5, If_Match=ETAG, If_None_Match=ETAG).status == 304


def test_a_date_that_another_version_may_have_resumes_nothing() -> None:
    """RFC 9110, 13.1.5: the date must be a strong validator."""
    date = "Tue, 14 Nov 2023 22:13:20 GMT"
    asked = ShardRequest.of("GET", CIMultiDict({"Range": "bytes=1-2", "If-Range": date}))
    for second_over, status in ((True, 206), (False, 200)):
        dated = Version("i", Pin(PinKind.ETAG, ETAG), 5, modified=date, second_over=second_over)
        assert decide(asked, "s3://b/0.tar", dated, KEY).status == status


@pytest.mark.parametrize("since", ["Tue, 14 Nov 2023 22:13:20 GMT", "Wed, 15 Nov 2023 00:00:00 GMT"])
def test_tags_win_over_dates(since: str) -> None:
    """RFC 9110, 13.2.2: If-None-Match wins over If-Modified-Since, If-Match over If-Unmodified-Since."""
    dated = Version("i", Pin(PinKind.ETAG, ETAG), 5, modified="Tue, 14 Nov 2023 22:13:20 GMT")

    def status(**headers: str) -> int:
        return decide(
            ShardRequest.of("GET", CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()})), "s3://b/0.tar", dated, KEY
        ).status

    assert status(If_Modified_Since=since) == 304
    assert status(If_Modified_Since=since, If_None_Match='"other"') == 200
    assert status(If_Unmodified_Since="Mon, 13 Nov 2023 22:13:20 GMT", If_Match=ETAG) == 200
    with pytest.raises(PreconditionFailed):
        status(If_Unmodified_Since="Mon, 13 Nov 2023 22:13:20 GMT")


def test_head_ignores_range() -> None:
    """RFC 9110 defines Range for GET alone, so even a malformed one is no error there."""
    assert ShardRequest.of("HEAD", CIMultiDict({"Range": "bytes=x"})).range is None


@pytest.mark.parametrize(("name", "lines", "status"), [
    ("If-Match", ['"x"', ETAG], 200), ("If-Match", [ETAG, '"x"'], 200), ("If-Match", ['"x"', '"y"'], 412),
    ("If-None-Match", ['"x"', ETAG], 304), ("If-None-Match", ['"x"', f'"y", W/{ETAG}'], 304), ("If-None-Match", ['"x"', '"y"'], 200),
])  # fmt: skip
def test_all_lines_of_a_condition_count(name: str, lines: list[str], status: int) -> None:
    """Several lines of a list field are one list (RFC 9110, section 5.3)."""
    asked = ShardRequest.of("GET", CIMultiDict([(name, line) for line in lines]))
    if status == 412:
        with pytest.raises(PreconditionFailed):
            decide(asked, "s3://b/0.tar", version(3), KEY)
    else:
        assert decide(asked, "s3://b/0.tar", version(3), KEY).status == status
