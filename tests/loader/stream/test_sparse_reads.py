"""When so little of an object is wanted that its segments need not come."""

from __future__ import annotations

import pytest

from forebay_loader.stream.range_reads import REQUEST_BYTES, SEGMENT_BYTES, are_sparse

MB = 1 << 20


@pytest.mark.parametrize(
    ("spans", "length", "sparse"),
    [
        ([(0, 64)], 100 * MB, True),
        ([(0, SEGMENT_BYTES // 2 - 1)], 100 * MB, True),
        ([(0, SEGMENT_BYTES // 2)], 100 * MB, False),
        ([(at * MB, at * MB + 100_000) for at in range(0, 40, 5)], 40 * MB, True),
        ([(0, MB), (SEGMENT_BYTES, 2 * SEGMENT_BYTES)], 100 * MB, False),  # of what they touch; the rest of the object counts for nothing
        ([(0, MB)], int(2.5 * MB), True),  # a segment ends with its object
        ([(0, MB)], int(1.5 * MB), False),
        ([(SEGMENT_BYTES - 10, SEGMENT_BYTES + 10)], 16 * MB, True),
        ([], 100, False),
        ([(0, 10)], REQUEST_BYTES, False),  # all of it costs less than another request
        ([(at, at + 10) for at in range(0, 4 * MB, REQUEST_BYTES // 2)], 4 * MB, False),
    ],
)
def test_less_than_half_of_the_segments_touched(spans: list[tuple[int, int]], length: int, sparse: bool) -> None:
    """And the bytes spared are worth the requests."""
    assert are_sparse(spans, length) is sparse
