"""How long the first segment of a shard may be before anybody knows: as those of its folder were. Not thread-safe."""

from __future__ import annotations

from collections import OrderedDict

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard

__all__ = ["FirstSegmentSizes"]

LEARNED_MOST = 4096  # groups whose shards' size is remembered


class FirstSegmentSizes:
    """The largest first segment of each group."""

    def __init__(self) -> None:
        self._largest: OrderedDict[str, int] = OrderedDict()  # group -> bytes, longest unopened first

    def __len__(self) -> int:
        return len(self._largest)

    def guess(self, shard: Shard) -> int:
        """How many bytes to reserve for a first segment whose length nobody knows: as the largest of its group had.

        A whole segment each would have thousands of tiny shards leave for one of them.
        """
        return self._largest.get(shard.group, SEGMENT_BYTES)

    def learn(self, shard: Shard, size: int) -> None:
        """The first segment of ``shard`` has ``size`` bytes."""
        self._largest[shard.group] = max(size, self._largest.get(shard.group, 0))
        self._largest.move_to_end(shard.group)
        if len(self._largest) > LEARNED_MOST:
            self._largest.popitem(last=False)
