"""What a state says of one worker's pass, taken apart and checked: whatever is damaged is named here, not met in the middle of an epoch.

Its numbers are texts: thousands of references to samples in a state of JSON values, at 5.3 bytes each.
"""

from __future__ import annotations

import random
import sys
from array import array
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any, Iterable, Mapping

__all__ = ["NUMBER_BYTES", "PassState", "Ranges", "drawn_by", "draws_of", "packed", "ranges_of", "refs_of", "unpacked", "whole_of"]


NUMBER_BYTES = 4
MOST = 2**31 - 1


def packed(numbers: Iterable[int]) -> str:
    """The base64 text of ``numbers`` as little-endian int32. Raises ``ValueError`` for one that is too large."""
    try:
        held = array("i", numbers)
    except OverflowError:
        raise ValueError(f"a state counts samples and shards up to {MOST:,} in each worker's pass, and this one counts further") from None
    return b64encode(_little(held).tobytes()).decode("ascii")


def unpacked(text: Any, what: str) -> array[int]:
    """The numbers that ``packed`` made ``text`` of. Raises ``ValueError`` that names ``what`` for any other value."""
    held = array("i")
    try:
        held.frombytes(b64decode(text.encode("ascii"), validate=True))
    except (AttributeError, ValueError):  # UnicodeEncodeError and binascii.Error are ValueErrors; frombytes raises one for half a number
        raise ValueError(f"the state is damaged: its {what!r} holds no base64 text of int32 numbers but {_shown(text)}") from None
    return _little(held)


def _little(held: array[int]) -> array[int]:
    if sys.byteorder == "big":
        held.byteswap()
    return held


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


_WORDS = 625  # of Python's generator: its 624 and where it stands in them

Ranges = list[tuple[int, int]]  # [start, stop), ascending and disjoint


def whole_of(state: Mapping[str, Any], name: str, least: int = 0) -> int:
    """The whole number ``name`` of ``state``. Raises ``ValueError`` for what is none, or below ``least``."""
    value = state.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"the state is damaged: its {name!r} is no whole number from {least}, but {value!r}")
    return value


def draws_of(rng: random.Random) -> str:
    """Where ``rng`` stands, as a text."""
    words = array("I", rng.getstate()[1])
    return packed(array("i", words.tobytes()))


def drawn_by(rng: random.Random, text: Any) -> random.Random:
    """``rng``, set to where ``draws_of`` gave ``text``. Raises ``ValueError``."""
    words = tuple(array("I", unpacked(text, "rng").tobytes()))
    if len(words) != _WORDS or not 0 < words[-1] < _WORDS:
        raise ValueError(f"the state is damaged: its 'rng' has {len(words)} words, and Python's generator {_WORDS}")
    rng.setstate((3, words, None))
    return rng


def ranges_of(value: Any, what: str) -> Ranges:
    """``[[start, stop], …]`` of a merged state. Raises ``ValueError``."""
    found: Ranges = []
    for one in value if isinstance(value, list) else [None]:
        pair = one if isinstance(one, (list, tuple)) and len(one) == 2 else (None, None)
        start, stop = pair
        if type(start) is not int or type(stop) is not int or not (found[-1][1] if found else 0) <= start < stop:
            raise ValueError(f"the state is damaged: of {what} it has {str(value)[:60]} done, which are no ascending ranges of samples")
        found.append((start, stop))
    return found


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
    def of(cls, state: Mapping[str, Any], listed: int) -> PassState:
        """Of a worker's state, for a data set of ``listed`` shards. Raises ``ValueError`` where it is damaged."""
        shards, firsts, ordinals = (unpacked(state.get(name), name) for name in ("shards", "firsts", "ordinals"))
        read, stripe = whole_of(state, "read"), state.get("stripe")
        if not isinstance(stripe, (list, tuple)) or len(stripe) != 2:
            raise ValueError(f"the state is damaged: its 'stripe' is no pair of numbers, but {stripe!r}")
        stripes = whole_of({"stripe": stripe[1]}, "stripe", 1)
        own = whole_of({"stripe": stripe[0]}, "stripe")
        if not len(shards) == len(firsts) == len(ordinals):
            raise ValueError(
                f"the state is damaged: it tells of {len(shards)} shards begun, the first samples of {len(firsts)}, and where "
                f"{len(ordinals)} of them began"
            )
        beyond = [shard for shard in shards if not 0 <= shard < listed]
        if beyond:
            raise ValueError(f"the state is damaged: it names shard number {beyond[0]}, of a list of {listed}")
        if min(firsts, default=0) < 0 or any(a > b for a, b in zip([0, *ordinals], [*ordinals, read])):  # noqa: B905  # Python 3.9
            raise ValueError("the state is damaged: the samples of its shards do not follow each other")
        found = cls(
            whole_of(state, "turn"),
            (own, stripes),
            shards,
            firsts,
            ordinals,
            read,
            _etags(state.get("etags"), len(shards)),
            _buffers(state),
        )
        held = array("i")
        for buffer in found.buffers:
            held += refs_of(buffer)
        found.check(held)
        return found

    def check(self, refs: array[int]) -> None:
        """Raise ``ValueError`` where one of ``refs`` is of no sample that was read."""
        first = self.ordinals[0] if self.ordinals else self.read
        wrong = [ref for ref in refs if not first <= ref < self.read]
        if wrong:
            raise ValueError(f"the state is damaged: sample {wrong[0]} waits in a buffer, and those read are {first} to {self.read - 1}")
        if len(set(refs)) < len(refs):
            raise ValueError("the state is damaged: a sample waits twice in its buffers")

    @property
    def entered(self) -> int:
        """The number of the sample to go on with, in the shard of the last item."""
        return self.read - self.ordinals[-1] + self.firsts[-1] if self.ordinals else 0


def refs_of(buffer: Mapping[str, Any]) -> array[int]:
    """All samples that a stage held, also those of its batch that were given already."""
    return unpacked(buffer.get("given", ""), "given") + unpacked(buffer.get("refs"), "refs")


def _etags(value: Any, items: int) -> dict[int, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"the state is damaged: its 'etags' are no dictionary, but {value!r}")
    found: dict[int, str] = {}
    for item, etag in value.items():
        if not str(item).isdigit() or not int(item) < items or not isinstance(etag, str):
            raise ValueError(f"the state is damaged: its 'etags' have {item!r}: {etag!r}, and {items} shards were begun")
        found[int(item)] = etag
    return found


def _buffers(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    buffers = state.get("buffers")
    if not isinstance(buffers, (list, tuple)) or not all(isinstance(one, Mapping) for one in buffers):
        raise ValueError(f"the state is damaged: its 'buffers' are no list of dictionaries, but {str(buffers)[:60]!r}")
    return tuple(buffers)
