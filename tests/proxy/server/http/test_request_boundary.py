"""Where one request ends and the next begins."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.server.http.request_boundary import RequestBoundary

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
PUT = b"PUT / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
BODY = b"\r\n\r\nab\r\n\r"  # nothing in a body is an end


@dataclass
class Body:
    ended: bool

    def is_eof(self) -> bool:
        return self.ended


class Parsed:
    """A stream of GETs and PUTs, and a part of one more, as the parser sees it."""

    def __init__(self, parts: list[bytes], tail: bytes) -> None:
        self.stream = b"".join(parts) + tail
        self.headers: list[tuple[int, bool]] = []  # where each ends, and whether a body follows
        self.ends: list[int] = []
        at = 0
        for part in parts:
            self.headers.append((at + len(GET if part == GET else PUT), part != GET))
            at += len(part)
            self.ends.append(at)
        self.whole = at

    def feed(self, boundary: RequestBoundary, at: int, end: int) -> None:
        passed = [number for number, (place, _) in enumerate(self.headers) if at < place <= end]
        payload, length = None, None
        if passed:
            has_body = self.headers[passed[-1]][1]
            payload, length = Body(not has_body or self.ends[passed[-1]] <= end), len(BODY) if has_body else None
            self.body, self.body_end = payload, self.ends[passed[-1]]
        elif self.headers and end >= self.headers[0][0]:
            self.body.ended = self.body_end <= end
        boundary.parsed(self.stream[at:end], payload, length, len(passed))


@given(st.lists(st.sampled_from([GET, PUT + BODY]), max_size=4), st.integers(0, len(GET) - 1), st.lists(st.integers(0, 200), max_size=8))
def test_what_comes_behind_the_last_whole_request_is_seen(parts: list[bytes], extra: int, cuts: list[int]) -> None:
    """However the bytes are cut into packets; and between requests that come one at a time nothing is seen that is not there."""
    parsed, boundary = Parsed(parts, GET[:extra]), RequestBoundary()
    places = sorted({0, len(parsed.stream), *(min(cut, len(parsed.stream)) for cut in cuts)} | set(parsed.ends))
    for at, end in itertools.pairwise(places):
        parsed.feed(boundary, at, end)
        if end in parsed.ends:
            assert not boundary.partial
    assert boundary.partial == bool(extra)


@pytest.mark.parametrize("ahead", [GET, PUT + BODY, GET + GET])
def test_a_part_in_the_same_packet_is_seen(ahead: bytes) -> None:
    """Whatever it is behind."""
    boundary = RequestBoundary()
    boundary.parsed(ahead + GET[:-1], Body(ended=True), 9 if ahead.startswith(b"PUT") else None, 2 if ahead == GET + GET else 1)
    assert boundary.partial


def test_a_chunked_body_ends_as_a_header_does() -> None:
    """Its bytes are not counted."""
    boundary = RequestBoundary()
    body = Body(ended=False)
    boundary.parsed(b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab", body, None, 1)
    assert not boundary.partial
    body.ended = True
    boundary.parsed(b"c\r\n0\r\n\r\n", None, None, 0)
    assert not boundary.partial
