"""The end of a head is found where the HTTP client finds it, or the body is not held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.movers.answer_head import MOST_HEAD_BYTES, AnswerHead, may_hold

LONG = b"Content-Length: 300000\r\n"
GOOD = b"HTTP/1.1 206 Partial Content\r\nETag: x\r\n" + LONG + b"\r\n"


@pytest.mark.parametrize("head", [GOOD, b"HTTP/1.0 200 OK\r\ncontent-length:300000 \r\n\r\n"])
def test_body_of_a_certain_length_may_be_held(head: bytes) -> None:
    assert may_hold(head)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 416 Range\r\n" + LONG + b"\r\n",
        b"HTTP/2 200 OK\r\n" + LONG + b"\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 300000, 300000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + LONG + LONG + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + LONG + b"Content-Length : 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + LONG + b"Transfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\n" + LONG + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: \r" + LONG + b"\r\n",
    ],
)
def test_body_whose_place_is_in_doubt_is_not_held(head: bytes) -> None:
    assert not may_hold(head)


@given(st.integers(1, len(GOOD) + 20), st.sampled_from([b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"]))
def test_pieces_do_not_matter(size: int, interim: bytes) -> None:
    """However a head is cut into pieces, all of it is passed on, and exactly what follows is held."""
    answer = interim + GOOD + b"body of it"
    head, passed, held = AnswerHead(), b"", b""
    for first in range(0, len(answer), size):
        piece = answer[first : first + size]
        if head.over:
            held += piece
            continue
        passed += head.add(piece)
        held += head.rest() if head.over else b""
    assert (passed, held) == (interim + GOOD, b"body of it")


def test_head_without_end_is_passed_on() -> None:
    head = AnswerHead()
    assert head.add(b"x" * MOST_HEAD_BYTES) == b""
    assert head.add(b"y") == b"x" * MOST_HEAD_BYTES + b"y"
    assert head.over
