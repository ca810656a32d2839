"""The fd door's two lines: what is said is what is heard, and nothing else is taken."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.protocol.fd import (
    MAX_LINE_BYTES,
    FdAnswer,
    FdRequest,
    InvalidFdAnswer,
    InvalidFdRequest,
    decode_answer,
    decode_end,
    decode_request,
    encode_answer,
    encode_end,
    encode_refusal,
    encode_request,
)
from forebay_proxy.wire.protocol.plan import ReaderName

SHARD = "https://origin.example/a b/ü.tar?x=1"
READER = ReaderName("job", "0", "3", "4711.1")


def test_a_request_is_heard_as_it_was_said() -> None:
    """Shard, reader and headers; one line. Without a reader it is anonymous, as over HTTP."""
    line = encode_request(SHARD, str(READER), [("Authorization", "Bearer x y"), ("X-Empty", "")])
    assert line.count(b"\n") == 1
    assert decode_request(line) == FdRequest(SHARD, READER, (("Authorization", "Bearer x y"), ("X-Empty", "")))
    assert decode_request(encode_request(SHARD, "")) == FdRequest(SHARD)


def test_a_lease_is_numbered_and_ended() -> None:
    """The number of the question is the number of its end; no question is an end, nor the other way round."""
    assert decode_request(encode_request(SHARD, "", parts=True)) == FdRequest(SHARD, parts=True)
    line = encode_request(SHARD, "", lease=12)
    assert decode_request(line) == FdRequest(SHARD, lease=12)
    assert (decode_end(line), decode_end(encode_end(12)), decode_end(b'{ "end":12 }')) == (None, 12, 12)
    assert [decode_end(b'{"end": %s}' % wrong) for wrong in (b"-1", b"1.5", b'"1"', b"1" * 16)] == [None] * 4
    for wrong in (-1, True, "1", 10**15):
        with pytest.raises(InvalidFdRequest):
            decode_request(json.dumps({"shard": SHARD, "lease": wrong}).encode())


def test_members_of_tomorrow_are_left_alone() -> None:
    """A younger client may say more, a younger door too."""
    assert decode_request(b'{"shard": "s3://b/k", "wish": [1]}\n').shard == "s3://b/k"
    assert decode_answer(b'{"size": 5, "etag": "x", "more": null}\n') == FdAnswer(200, 5, "x")


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"[]\n", b"nonsense\n", b"\xff\n", b"{}\n", b'{"shard": ""}\n', b'{"shard": 5}\n', b'{"shard": "s3://b/k", "reader": 5}\n',
        b'{"shard": "s3://b/k", "reader": "a/b"}\n', b'{"shard": "s3://b/k", "headers": {}}\n', b"[" * 60_000 + b"\n",
        b'{"shard": "s3://b/k", "headers": [["a"]]}\n', b'{"shard": "s3://b/k", "headers": [["a", 5]]}\n',
        b'{"shard": "s3://b/k", "headers": [["a", "b\\r\\nc: d"]]}\n', b'{"shard": "s3://b/k", "headers": [["a b", "c"]]}\n',
        b'{"shard": "s3://b/k", "headers": [["a", " b"]]}\n',
        json.dumps({"shard": "s3://b/k", "headers": [["a", "b"]] * 101}).encode() + b"\n",
    ],
)  # fmt: skip
def test_what_asks_for_nothing_is_refused(line: bytes) -> None:
    """With a reason, and never with another error."""
    with pytest.raises(InvalidFdRequest):
        decode_request(line)


@pytest.mark.parametrize("headers", [[("Cookie", "é")], [("X-A", "a\nb")], [("", "a")], [("X-A", "a" * MAX_LINE_BYTES)]])
def test_what_cannot_be_said_goes_over_http(headers: list[tuple[str, str]]) -> None:
    """A credential that both sides would not read alike, and a line that is too long."""
    with pytest.raises(InvalidFdRequest):
        encode_request(SHARD, "", headers)


def test_answers_are_heard_as_they_were_said() -> None:
    """With a descriptor, and without."""
    assert decode_answer(encode_answer(1 << 40, '"v1"', "00ff")) == FdAnswer(200, 1 << 40, '"v1"', "00ff")
    assert decode_answer(encode_refusal(409, "not complete", "00ff")) == FdAnswer(409, instance="00ff", title="not complete")


@pytest.mark.parametrize(
    "line", [b"\n", b"[]\n", b"{}\n", b'{"size": 0, "etag": ""}\n', b'{"size": -1}\n', b'{"size": true}\n', b'{"size": 5, "etag": 5}\n']
)
def test_what_is_no_answer_is_not_believed(line: bytes) -> None:
    """Whatever listens there, it is not our door."""
    with pytest.raises(InvalidFdAnswer):
        decode_answer(line)


def test_secrets_are_not_shown() -> None:
    """Neither a signed URL nor a header."""
    shown = repr(decode_request(encode_request("https://o/a.tar?sig=secret", str(READER), [("Cookie", "secret")])))
    assert "secret" not in shown


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["shard", "reader", "headers", "size", "etag"]), inner),
    max_leaves=12,
)


@given(st.binary(max_size=200) | _JSON.map(lambda told: json.dumps(told).encode()))
def test_no_line_does_harm(line: bytes) -> None:
    """Whatever comes, it is understood or refused."""
    with suppress(InvalidFdRequest):
        _is_harmless(decode_request(line))
    with suppress(InvalidFdAnswer):
        decode_answer(line)


def _is_harmless(request: Any) -> None:
    assert all(part.isascii() and part.replace("\t", " ").isprintable() for header in request.headers for part in header)
