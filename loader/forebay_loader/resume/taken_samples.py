"""Which samples a pass gave since somebody looked last: how a loader knows what became of its batches without a state for each."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from forebay_loader.resume.cursor import Cursor

__all__ = ["Taken", "TakenSamples"]


class TakenSamples:
    """Which samples the outputs since the last look were made of, and which shards were begun since."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._ordinals = array("i")
        self._items = len(cursor.shards)

    def note(self) -> None:
        """An output was given."""
        made = self._cursor.made()
        if isinstance(made, int):
            self._ordinals.append(made)
        else:
            self._ordinals.extend(made)

    def look(self) -> Taken:
        ordinals, self._ordinals = self._ordinals, array("i")
        before, self._items = self._items, len(self._cursor.shards)
        if self._items == before:
            return Taken(ordinals.tobytes(), ())
        return Taken(ordinals.tobytes(), tuple(zip(*self._cursor.shards.items.since(before))))  # noqa: B905  # strict= is not of 3.9


class Taken(NamedTuple):
    """What was given since the last look: the ordinals of the samples in it, and the shards begun, each as its number in the list, the
    number of its first sample, and the ordinal of that one. One goes with each batch: an ``array`` costs four times as much to pickle as
    the bytes of its int32.
    """

    ordinals: bytes
    begun: "tuple[tuple[int, int, int], ...]"

    @classmethod
    def nothing(cls) -> Taken:
        return cls(b"", ())
