"""Which samples a pass gave since somebody looked last: how a loader knows what became of its batches without a state for each."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Optional

from forebay_loader.resume.cursor import Cursor

__all__ = ["Taken", "TakenSamples"]


class TakenSamples:
    """Which samples the outputs since the last look were made of, and which shards were begun since. Those of a pass ``before`` that was
    not looked at to its end are told as -1: a batch may have its last samples and the first ones of the next."""

    def __init__(self, cursor: Cursor, before: Optional[TakenSamples] = None) -> None:
        self._cursor = cursor
        self._ordinals: array[int] = array("i", [-1]) * (0 if before is None else len(before._ordinals))
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
        cursor, before = self._cursor, self._items
        self._items = len(cursor.shards)
        if self._items == before:
            return Taken(ordinals.tobytes(), (), {}, cursor.read, cursor.held())
        begun = tuple(zip(*cursor.shards.items.since(before)))  # noqa: B905  # strict= is not of 3.9
        return Taken(ordinals.tobytes(), begun, cursor.shards.etags_since(before), cursor.read, cursor.held())


class Taken(NamedTuple):
    """What was given since the last look: the ordinals of the samples in it, and the shards begun, each as its number in the list, the
    number of its first sample, and the ordinal of that one. ``etags`` are those of them that have one, by their number in the pass; the
    next sample that is read will be ``read``, and ``held`` wait in stages (-1: one has seen the end, or nobody tells). One goes with each
    batch: an ``array`` costs four times as much to pickle as the bytes of its int32.
    """

    ordinals: bytes
    begun: "tuple[tuple[int, int, int], ...]"
    etags: "dict[int, str]"
    read: int = -1
    held: int = -1

    @classmethod
    def nothing(cls) -> Taken:
        return cls(b"", (), {})
