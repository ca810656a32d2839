"""Parts of wanted spans, of which few are fetched and little is held."""

from __future__ import annotations

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


def test_a_part_of_no_span() -> None:
    """It alone is fetched."""
    reads = Reads()
    assert bytes(SpanReader(reads, [(100, 200)])(50, 10)) == DATA[50:60]
    assert reads.asked == [(50, 10)]


def test_a_clip_that_ends_early() -> None:
    """What is there is given: whoever asked looks at its length."""
    assert len(SpanReader(Reads(), [(2000, 2200)])(2000, 200)) == len(DATA) - 2000
