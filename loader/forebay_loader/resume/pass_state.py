"""What a state says of one worker's pass, taken apart. Its checksum was looked at before: what is read here is as it was taken.

Its numbers are texts: thousands of references to samples in a state of JSON values, at 5.3 bytes each.
"""

from __future__ import annotations

import random
import sys
from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

__all__ = ["NUMBER_BYTES", "PassState", "Ranges", "drawn_by", "draws_of", "packed", "refs_of", "unpacked"]


NUMBER_BYTES = 4
MOST = 2**31 - 1


def packed(numbers: Iterable[int]) -> str:
    """The base64 text of ``numbers`` as little-endian int32. Raises ``ValueError`` for one that is too large."""
    try:
        held = array("i", numbers)
    except OverflowError:
        raise ValueError(f"a state counts samples and shards up to {MOST:,} in each worker's pass, and this one counts further") from None
    return b64encode(_little(held).tobytes()).decode("ascii")


def unpacked(text: str) -> array[int]:
    """The numbers that ``packed`` made ``text`` of."""
    held = array("i", b64decode(text))
    return _little(held)


def _little(held: array[int]) -> array[int]:
    if sys.byteorder == "big":
        held.byteswap()
    return held


Ranges = list[tuple[int, int]]  # [start, stop), ascending and disjoint


def draws_of(rng: random.Random) -> str:
    """Where ``rng`` stands, as a text."""
    words = array("I", rng.getstate()[1])
    return packed(array("i", words.tobytes()))


def drawn_by(rng: random.Random, text: str) -> random.Random:
    """``rng``, set to where ``draws_of`` gave ``text``."""
    rng.setstate((3, tuple(array("I", unpacked(text).tobytes())), None))
    return rng


@dataclass(frozen=True)
class PassState:
    """One pass of one worker. ``shards``, ``firsts`` and ``ordinals`` tell of its items, those begun: which shard of the data set's list,
    the number of its first sample, and that one's ordinal; ``read`` is the next ordinal.
    """

    turn: int
    stripe: tuple[int, int]
    shards: array[int]
    firsts: array[int]
    ordinals: array[int]
    read: int
    etags: Mapping[int, str]
    buffers: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> PassState:
        """Of a worker's state."""
        shards, firsts, ordinals = (unpacked(state[name]) for name in ("shards", "firsts", "ordinals"))
        etags = {int(item): etag for item, etag in state["etags"].items()}
        own, stripes = state["stripe"]
        return cls(state["turn"], (own, stripes), shards, firsts, ordinals, state["read"], etags, tuple(state["buffers"]))

    @property
    def entered(self) -> int:
        """The number of the sample to go on with, in the shard of the last item."""
        return self.read - self.ordinals[-1] + self.firsts[-1] if self.ordinals else 0


def refs_of(buffer: Mapping[str, Any]) -> array[int]:
    """All samples that a stage held, also those of its batch that were given already."""
    return unpacked(buffer.get("given", "")) + unpacked(buffer["refs"])
