"""The state of one worker's pass, parsed. Its checksum was verified before.

Numbers are stored as base64 text: a state may name thousands of samples, and each takes 5.3 bytes in JSON.
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
    """Return ``numbers`` as base64 text of little-endian int32. Raises ``ValueError`` if one is too large."""
    try:
        held = array("i", numbers)
    except OverflowError:
        raise ValueError(f"a state counts samples and shards up to {MOST:,} in each worker's pass, and this one counts further") from None
    return b64encode(_little(held).tobytes()).decode("ascii")


def unpacked(text: str) -> array[int]:
    """The numbers in a text of ``packed``."""
    held = array("i", b64decode(text))
    return _little(held)


def _little(held: array[int]) -> array[int]:
    if sys.byteorder == "big":
        held.byteswap()
    return held


Ranges = list[tuple[int, int]]  # [start, stop), ascending and disjoint


def draws_of(rng: random.Random) -> str:
    """The state of ``rng`` as a text."""
    words = array("I", rng.getstate()[1])
    return packed(array("i", words.tobytes()))


def drawn_by(rng: random.Random, text: str) -> random.Random:
    """Set ``rng`` to the state in a ``text`` of ``draws_of``, and return it."""
    rng.setstate((3, tuple(array("I", unpacked(text).tobytes())), None))
    return rng


@dataclass(frozen=True)
class PassState:
    """One pass of one worker.

    ``shards``, ``firsts`` and ``ordinals`` describe the shards that were begun: number in the data set's list, number of the first sample,
    and its ordinal. ``read`` is the next ordinal.
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
        """Parse a worker's state."""
        shards, firsts, ordinals = (unpacked(state[name]) for name in ("shards", "firsts", "ordinals"))
        etags = {int(item): etag for item, etag in state["etags"].items()}
        own, stripes = state["stripe"]
        return cls(state["turn"], (own, stripes), shards, firsts, ordinals, state["read"], etags, tuple(state["buffers"]))

    @property
    def entered(self) -> int:
        """The number of the sample to continue with, in the shard of the last item."""
        return self.read - self.ordinals[-1] + self.firsts[-1] if self.ordinals else 0


def refs_of(buffer: Mapping[str, Any]) -> array[int]:
    """All samples that a stage held, including those of its batch that were already yielded."""
    return unpacked(buffer.get("given", "")) + unpacked(buffer["refs"])
