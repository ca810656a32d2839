"""Parts of wanted spans, of which few are fetched and little is held."""

from __future__ import annotations

import threading

import pytest

from forebay_loader.videos.decode.byte_spans import SpanReader

DATA = bytes(range(256)) * 8


class Reads:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def __call__(self, at: int, size: int) -> bytes:
        self.asked.append((at, size))
        return DATA[at : at + size]


def test_a_span_is_fetched_once() -> None:
    """Whatever is asked of it, in order."""
    reads = Reads()
    spans = SpanReader(reads, [(10, 100), (500, 600)])
    parts = [(10, 40), (50, 50), (500, 1), (501, 99)]
    assert [bytes(spans(at, size)) for at, size in parts] == [DATA[at : at + size] for at, size in parts]
    assert reads.asked == [(10, 90), (500, 100)]


def test_of_a_long_span_a_piece_is_held() -> None:
    """A part may be larger than a piece; what is asked for again is fetched again."""
    reads = Reads()
    spans = SpanReader(reads, [(0, 1000)], most_bytes=100)
    parts = [(0, 60), (60, 40), (100, 300), (400, 10), (0, 10)]
    assert [bytes(spans(at, size)) for at, size in parts] == [DATA[at : at + size] for at, size in parts]
    assert reads.asked == [(0, 100), (100, 300), (400, 100), (0, 100)]


def test_spans_behind_are_asked_for_meanwhile() -> None:
    """So many at a time: these wait for each other. Then each time one is read another is asked for; none twice."""
    spans = [(at, at + 10) for at in range(0, 1000, 100)]
    together, reads = threading.Barrier(3, timeout=10), Reads()

    def read(at: int, size: int) -> bytes:
        if at < 300:
            together.wait()
        return reads(at, size)

    with SpanReader(read, spans, at_once=3) as reader:
        for number, (begin, end) in enumerate(spans):
            assert b"".join((reader(begin, 4), reader(begin + 4, 6))) == DATA[begin:end]
            assert len(reads.asked) <= number + 3
    assert sorted(reads.asked) == [(begin, 10) for begin, _ in spans]


def test_what_is_passed_or_unlike_is_asked_for_by_itself() -> None:
    """A jump, a part within a span, one of none, and one more time what was read: the bytes are right, whatever was on its way."""
    reads = Reads()
    with SpanReader(reads, [(at, at + 150) for at in range(0, 1600, 200)], at_once=4, most_bytes=100) as reader:
        for at, size in ((0, 50), (1000, 50), (1240, 60), (1380, 10), (0, 150), (1400, 100), (1500, 50)):
            assert bytes(reader(at, size)) == DATA[at : at + size]


def test_trouble_is_told_where_the_span_is_read() -> None:
    """Not before; and nothing is asked for behind the end."""

    def read(at: int, size: int) -> bytes:
        if at == 200:
            raise OSError("gone")
        return DATA[at : at + size]

    with SpanReader(read, [(at, at + 10) for at in range(0, 400, 100)], at_once=4) as reader:
        assert [bytes(reader(at, 1)) for at in (0, 100)] == [DATA[0:1], DATA[100:101]]
        with pytest.raises(OSError, match="gone"):
            reader(200, 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("span")]
