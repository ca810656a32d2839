"""Which plans mention a shard, and where in them: arrays by number, and a dict only for what is mentioned more than once. Pure.

A mention is one integer: the number of the plan, 32 bits, then the index in it. Sorted, those of one plan stand together, in its order. A
dict for all was tried: of half a million mentions it takes 107 bytes each where the array takes 9.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence

__all__ = ["INDEX_BITS", "INDEX_MASK", "ReverseIndex"]

INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
_NONE, _MANY = 0, 1  # no plan has the number 0


class ReverseIndex:
    """Mentions by shard number. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._one = array("Q", [_NONE])
        self._more: dict[int, array[int]] = {}  # an array, not a list: a resampled shard is mentioned a thousand times, 8 bytes each

    def __repr__(self) -> str:
        return f"<ReverseIndex of {len(self)} shards, {len(self._more)} of them more than once>"

    def __len__(self) -> int:
        return sum(1 for mention in self._one if mention)

    def of(self, number: int) -> Sequence[int]:
        """Every mention of the shard, in order. Not to be kept: it changes."""
        if number >= len(self._one) or not (mention := self._one[number]):
            return ()
        return self._more[number] if mention == _MANY else (mention,)

    def first_from(self, number: int, plan: int, index: int) -> int | None:
        """The first index, ``index`` or later, at which the plan mentions the shard."""
        mentions = self.of(number)
        wanted = plan << INDEX_BITS | index
        place = bisect_left(mentions, wanted)
        if place == len(mentions) or mentions[place] >> INDEX_BITS != plan:
            return None
        return mentions[place] & INDEX_MASK

    def add(self, number: int, plan: int, index: int) -> None:
        mention = plan << INDEX_BITS | index
        if number >= len(self._one):
            self._one.extend([_NONE] * (number + 1 - len(self._one)))
        other = self._one[number]
        if not other:
            self._one[number] = mention
        elif other == _MANY:
            insort(self._more[number], mention)
        else:
            self._more[number] = array("Q", sorted((other, mention)))
            self._one[number] = _MANY

    def remove(self, number: int, plan: int, index: int) -> None:
        mention = plan << INDEX_BITS | index
        if self._one[number] != _MANY:
            assert self._one[number] == mention
            self._one[number] = _NONE
            return
        more = self._more[number]
        more.pop(bisect_left(more, mention))
        if len(more) == 1:
            self._one[number] = more[0]
            del self._more[number]

    def clear(self) -> None:
        """Nobody mentions anything any more."""
        self._one, self._more = array("Q", [_NONE]), {}
