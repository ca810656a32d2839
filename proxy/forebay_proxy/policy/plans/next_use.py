"""When a shard is used next, as an order from "leaves first" to "stays longest". Pure.

It is known from plans where somebody announced it, else guessed from what its jobs have read.

From "leaves first" to "stays":

=====  ============================================================================  ====================
rank   meaning                                                                       within the rank
=====  ============================================================================  ====================
DEAD   nobody waits for it: no plan, no set that a live job reads (``EpochTracker``)  oldest opening first
READ   every live job that knows the group has read it in its present pass           tails before heads
LATER  unread, not announced, while every reader of its jobs has a plan              latest opening first
AHEAD  announced                                                                     farthest need first
SOON   unread in some pass, and nobody has announced anything                        latest opening first
NOW    a reader is inside it                                                         latest opening first
=====  ============================================================================  ====================

"Tails before heads" goes across shards: what is missing is then spread evenly over the set. Else a shuffle that begins with shards of
which nothing is here keeps its readers waiting for a slow origin, and what it saves them at its end comes too late (simulated: 4 % of an
epoch at 96 shards of up to 16 segments and half the bandwidth needed, 1 % so). Of equal tails the latest opening is first.
"Latest opening first" is what keeps a fixed part of a set that does not fit, instead of chasing it round (LRU keeps nothing of a cyclic
scan). Leased segments are no matter of this module: they are never offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["NextUse", "Rank"]


class Rank(IntEnum):
    """Why a segment may leave; lower leaves first. The table in the module's text says what each means."""

    DEAD = 0
    READ = 1
    LATER = 2
    AHEAD = 3
    SOON = 4
    NOW = 5


@dataclass(slots=True, order=True, unsafe_hash=True)  # not frozen: one is made with every decision, and that would take 1 us more
class NextUse:
    """When a shard is used next, ordered from "leaves first" to "stays". Never changed."""

    rank: Rank
    order: float
    then: float = 0.0  # who is first among those of the same order
