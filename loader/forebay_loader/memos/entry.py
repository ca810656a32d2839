"""One entry of a memo as bytes: whose it is, a checksum over all of it, the text, the arrays.

    magic 8 | xxh3-128 16 | length 8 | key 24 | length of the text 8 | text | each array at a multiple of 64

The checksum is of all behind it. What a killed writer, a full disk or a bad one left is told by it, and made again.
"""

from __future__ import annotations

import json
from typing import Any, List, Optional, Protocol, Sequence, Tuple

import numpy
import xxhash

from forebay_loader.memos.kept_value import KeptValue

__all__ = ["KEY_BYTES", "SAMPLE_BYTES", "EntryDamaged", "MemoStore", "checksum_of", "key_in", "packed", "unpacked"]


KEY_BYTES, SAMPLE_BYTES = 24, 16  # the first bytes tell the transform, the last ones the sample
_MAGIC = b"FBMEMO1\n"
_HEAD = len(_MAGIC) + 16 + 8 + KEY_BYTES + 8
_ALIGNED = 64


class EntryDamaged(ValueError):
    """The bytes are not those of an entry that was written whole."""


def packed(key: bytes, kept: KeptValue) -> bytes:
    """The entry of ``key``. Copies all that ``kept`` refers to."""
    places, length = _places(len(kept.text), [one.nbytes for one in kept.arrays])
    room = bytearray(length)
    room[:8] = _MAGIC
    room[24:32] = length.to_bytes(8, "little")
    room[32:56] = key
    room[56:64] = len(kept.text).to_bytes(8, "little")
    room[_HEAD : _HEAD + len(kept.text)] = kept.text
    for (first, size), one in zip(places, kept.arrays):  # noqa: B905  # strict= is not of 3.9
        if size:
            numpy.frombuffer(room, "u1", size, first)[:] = numpy.frombuffer(one.reshape(-1).view("u1"), "u1")
    room[8:24] = xxhash.xxh3_128_digest(memoryview(room)[24:])
    return bytes(room)


def key_in(entry: "bytes | memoryview") -> bytes:
    """Whose entry it is; of damaged bytes, of nobody's."""
    return bytes(entry[32:56])


def unpacked(key: bytes, entry: "bytes | memoryview") -> KeptValue:
    """What was packed; its arrays are copies, and may be written to. Raises ``EntryDamaged``, also for the entry of another key."""
    view = memoryview(entry)
    if len(view) < _HEAD or view[:8] != _MAGIC or int.from_bytes(view[24:32], "little") != len(view) or view[32:56] != key:
        raise EntryDamaged("it has not the head of this entry")
    if xxhash.xxh3_128_digest(view[24:]) != view[8:24]:
        raise EntryDamaged("its checksum is another one")
    text = bytes(view[_HEAD : _HEAD + int.from_bytes(view[56:64], "little")])
    shapes = shapes_in(text)
    places, _ = _places(len(text), [dtype.itemsize * _count(shape) for dtype, shape in shapes])
    arrays = []
    for (first, size), (dtype, shape) in zip(places, shapes):  # noqa: B905
        made = numpy.empty(shape, dtype)
        if size:
            made.reshape(-1).view("u1")[:] = numpy.frombuffer(view, "u1", size, first)
        arrays.append(made)
    return KeptValue(text, arrays)


def shapes_in(text: bytes) -> List[Tuple[Any, Tuple[int, ...]]]:
    """The dtype and shape of each array that a text refers to."""
    return [(numpy.dtype(dtype), tuple(shape)) for dtype, shape in json.loads(text)["arrays"]]


def checksum_of(key: bytes, kept: KeptValue) -> bytes:
    """For stores that keep text and arrays in a format of their own. 16 bytes."""
    found = xxhash.xxh3_128(key + kept.text)
    for one in kept.arrays:
        if one.nbytes:
            found.update(memoryview(one.reshape(-1).view("u1")))
    return found.digest()


def _count(shape: Sequence[int]) -> int:
    count = 1
    for one in shape:
        count *= one
    return count


def _places(text: int, sizes: Sequence[int]) -> Tuple[List[Tuple[int, int]], int]:
    """Where each array begins, its bytes, and how long the entry is."""
    places: List[Tuple[int, int]] = []
    end = _HEAD + text
    for size in sizes:
        first = -(-end // _ALIGNED) * _ALIGNED
        places.append((first, size))
        end = first + size
    return places, end


class MemoStore(Protocol):
    """Entries by their keys, for any number of processes at once; ``put`` and ``drop`` of one process are called by one thread.

    All raise ``OSError`` where the disk fails, and what they leave is readable, whenever the process is killed.
    """

    def get(self, key: bytes) -> Optional[KeptValue]:
        """What is kept under ``key``, in arrays of its own; None without it. Raises ``EntryDamaged``."""

    def put(self, entries: Sequence[bytes]) -> None:
        """Keep packed entries. Raises ``StoreFull``; then some of them may be there."""

    def drop(self, keys: Sequence[bytes]) -> None:
        """Forget entries, those that are not there too."""

    def close(self) -> None:
        """Give back what is open."""
