"""What other policies would fetch of the very same reads: LRU, and the farthest next use with bypass (no policy fetches less). Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence

__all__ = ["lru_fetched", "optimal_fetched"]

Access = tuple[Hashable, int]  # a segment and its size in bytes


def lru_fetched(reads: Sequence[Access], capacity_bytes: int) -> list[int]:
    """Bytes fetched at each read by a cache that lets go of what was read longest ago."""
    held: OrderedDict[Hashable, int] = OrderedDict()
    used, fetched = 0, []
    for key, size in reads:
        hit = key in held
        fetched.append(0 if hit else size)
        if hit:
            held.move_to_end(key)
            continue
        held[key] = size
        used += size
        while used > capacity_bytes:
            used -= held.popitem(last=False)[1]
    return fetched


def optimal_fetched(reads: Sequence[Access], capacity_bytes: int) -> list[int]:
    """Bytes fetched at each read by a cache that knows all reads to come, and keeps what is read soonest."""
    following = [len(reads)] * len(reads)
    last: dict[Hashable, int] = {}
    for place in range(len(reads) - 1, -1, -1):
        following[place] = last.get(reads[place][0], len(reads) + place)
        last[reads[place][0]] = place
    held: dict[Hashable, tuple[int, int]] = {}  # key -> (next use, size)
    farthest: list[tuple[int, int, Hashable]] = []
    used, fetched = 0, []
    for place, (key, size) in enumerate(reads):
        fetched.append(0 if key in held else size)
        used += 0 if key in held else size
        held[key] = (following[place], size)
        heapq.heappush(farthest, (-following[place], place, key))
        while used > capacity_bytes:
            use, _, victim = heapq.heappop(farthest)
            if victim in held and held[victim][0] == -use:
                used -= held.pop(victim)[1]
    return fetched
