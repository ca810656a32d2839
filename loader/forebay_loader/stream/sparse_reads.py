"""Whether so little of an object is wanted that only these bytes should travel from its origin, and not the segments around them. Pure.

The sidecar is told by a header of the request. It then stores nothing of the bytes, until half of a segment went by so (docs/protocol.md).
So what other workers and later epochs want of it costs at most half a segment more than a whole one, and to say so by default does no harm.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

__all__ = ["SEGMENT_BYTES", "SPANS_AT_ONCE", "are_sparse", "sparse_header"]

SEGMENT_BYTES = 8 << 20  # the sidecar's; where it has others, this only guesses less well
REQUEST_BYTES = 64 << 10  # what a request costs an origin that is near, in bytes that it could have sent meanwhile: less is not worth one

SPANS_AT_ONCE = 4  # of a clip that is not here: eight groups of pictures then cost two round trips; each may be 4 MiB in memory


def are_sparse(spans: Sequence[Tuple[int, int]], length: int) -> bool:
    """Whether ``spans``, each (offset, end), ascending, are less than half of the segments that they touch, in an object of ``length``."""
    touched: Dict[int, int] = {}
    for begin, end in spans:
        for index in range(begin // SEGMENT_BYTES, -(-end // SEGMENT_BYTES)):
            touched[index] = min(SEGMENT_BYTES, length - index * SEGMENT_BYTES)
    wanted = sum(end - begin for begin, end in spans)
    return 2 * wanted < sum(touched.values()) and sum(touched.values()) - wanted > REQUEST_BYTES * len(spans)


def sparse_header(sparse: bool) -> List[Tuple[str, str]]:
    """What tells it to the sidecar."""
    return [("Forebay-Sparse", "1")] if sparse else []
