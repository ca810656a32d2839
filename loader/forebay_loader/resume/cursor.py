"""Where one pass of one worker stands: which shards it began, which samples it read, and which of these a stage still holds.

A pipeline is pulled, in one thread: when it has given something, every stage of it is suspended behind what it gave. So no sample has to
carry a tag. The reader numbers its samples in the order in which it gives them (their *ordinals*, before stripes are taken), and each
stage that holds samples or puts them together says of which ordinals its last output was made. What lies between gives one for one, or
leaves some out, and changes nothing in that. The numbers cost a sample no step of Python but where a stage holds it.
"""

from __future__ import annotations

import os
import threading
from array import array
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Protocol, Sequence, Union

from forebay_loader.meter.skips.counts import Tally
from forebay_loader.resume.begun_shards import ITEM, BegunShards, left
from forebay_loader.resume.pass_state import PassState, Ranges, packed

__all__ = ["Again", "Cursor", "Made", "Taken", "TakenSamples", "cursor_here", "note", "putting_together"]


Made = Union[int, "array[int]"]  # the ordinals that an output was made of
_PIPELINE = threading.local()  # .cursor: of the pipeline that is being put together in this thread
os.register_at_fork(after_in_child=lambda: vars(_PIPELINE).clear())  # what a stage forks meanwhile reads for itself


class Again(Protocol):
    """Makes again what a stage was given when the state was taken that is gone on from."""

    def expect(self, ordinals: Iterable[int]) -> None:
        """These will be asked for, in about this order."""

    def one(self, ordinal: int) -> Any: ...

    def batch(self, ordinals: Iterable[int]) -> Any: ...


class Cursor:
    """One pass over shards of the list ``urls``. ``key`` is what its draws are seeded with; ``began``: what it goes on from; ``done``: the
    samples of a shard that are left out, all of them where there are no ranges; ``etags``: of such shards.
    """

    def __init__(
        self,
        urls: Sequence[str] = (),
        turn: int = 0,
        key: str = "",
        began: Optional[PassState] = None,
        done: Optional[Mapping[int, Ranges]] = None,
        etags: Optional[Mapping[int, str]] = None,
    ) -> None:
        self.turn = turn
        self.key = key
        self.began = began
        self.done = done or {}
        self.shards = BegunShards(urls, began, etags)
        self.stripe = (0, 1) if began is None else began.stripe
        self.holders: list[tuple[Callable[[], dict[str, Any]], Callable[[], int]]] = []  # each with what counts its samples
        before, tally = 0 if began is None else began.read, Tally()
        self._before, self._tally = before, tally
        self.made: Callable[[], Made] = lambda: (
            before + tally.now() - 1
        )  # of what the last output of the stages so far was made; no cycle through this
        self.reads = False  # whether the stages so far read shards: what comes before passes shards on
        self.waits: Callable[[], bool] = lambda: False  # whether the reader holds a sample back while it opens the next shard
        self.again: Optional[Again] = None  # for the stage that is put together now

    def __repr__(self) -> str:
        return f"<Cursor at sample {self.read}, {len(self.shards)} shards begun>"

    @property
    def read(self) -> int:
        """The next ordinal."""
        return self._before + self._tally.now()

    @property
    def own(self) -> int:
        """How many of the samples that were read are of this worker's stripe."""
        stripe, stripes = self.stripe
        return len(range(stripe, self.read, stripes))

    def counting(self, samples: Iterable[Any]) -> Iterator[Any]:
        """``samples``, which are all that the reader gives, and in its order."""
        self.reads = True
        return self._tally.counting(samples)

    def left(self, items: Iterable[Any]) -> Iterator[Any]:
        """Of the ``items`` of the whole pass those that are not behind: what follows announces what will be read."""
        given = iter(items)
        return given if self.began is None else left(given, self.shards, len(self.began.shards))

    def taking(self, items: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """``items``, each noted just before it is opened."""
        begun = len(self.shards) > 0  # the first of them was, when the state was taken
        for item in items:
            if self.shards.are_all_empty() and not self.read and not self.waits():
                return  # drawn with replacement, they would not end
            if not begun:
                self.shards.begin(item, self.read + self.waits())
            begun = False
            made, number = dict(item) if isinstance(item, dict) else {"url": item}, len(self.shards) - 1
            if "url" in made:
                made["url"] = self.shards.visited(number, made["url"])
            yield {**made, ITEM: number}

    def entered(self, item: int) -> int:
        """The number of the sample with which ``item``, which is opened now, is gone on with; 0 from its start."""
        if self.began is not None and item == len(self.began.shards) - 1:
            return self.began.entered
        return 0

    def hold(
        self,
        kind: str,
        state: Callable[[], dict[str, Any]],
        made: Optional[Callable[[], Made]] = None,
        count: Callable[[], int] = lambda: -1,
    ) -> Optional[Mapping[str, Any]]:
        """The next stage that holds or counts samples is a ``kind``. Its ``state`` is plain values, and arrays of ordinals: "refs" of
        samples that were not given yet, "given" of others that it needs. ``made`` tells of its outputs; ``count`` how many samples it
        holds, a number below 0 once it has seen the end. Gives what it held in the state gone on from. Raises ``ValueError`` where that is
        of another stage."""
        at = len(self.holders)
        self.holders.append((state, count))
        if made is not None:
            self.made = made
        if self.began is None:
            return None
        held = self.began.buffers[at]
        if held["kind"] != kind:
            raise ValueError(f"the state cannot be resumed: buffer {at + 1} is of a {held['kind']!r}, and the stage here is a {kind!r}")
        return held

    def held(self) -> int:
        """How many samples wait in stages; -1 where one has seen the end, or nobody tells."""
        counts = [count() for _, count in self.holders]
        return -1 if min(counts, default=0) < 0 else sum(counts)

    def place(self, ordinal: int) -> tuple[int, int]:
        """(number of the shard in the list, number of the sample in it)."""
        item, number = self.shards.place(ordinal)
        return self.shards.items.shards[item], number

    def state(self) -> dict[str, Any]:
        """Plain values, as ``PassState`` reads them."""
        buffers = [state() for state, _ in self.holders]
        oldest = min(
            (min(value) for buffer in buffers for value in buffer.values() if isinstance(value, array) and value), default=self.read - 1
        )
        shards, firsts, ordinals = map(packed, self.shards.items)
        found = {"turn": self.turn, "stripe": list(self.stripe), "shards": shards, "firsts": firsts, "ordinals": ordinals}
        found |= {"read": self.read, "etags": self.shards.etags_from(oldest), "buffers": [_plain(buffer) for buffer in buffers]}
        if self.done:
            found["done_etags"] = {str(shard): etag for shard, etag in self.shards.parted.items()}
            found["done"] = {str(shard): [list(one) for one in ranges] or "all" for shard, ranges in self.done.items()}
        return found


def _plain(buffer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: packed(value) if isinstance(value, array) else value for name, value in buffer.items()}


def note(ordinals: array[int], made: Made) -> None:
    """``made`` goes behind ``ordinals``."""
    if isinstance(made, int):
        ordinals.append(made)
    else:
        ordinals.extend(made)


@contextmanager
def putting_together(cursor: Optional[Cursor]) -> Iterator[None]:
    """The stages that are put together meanwhile, in this thread, are of this pass."""
    outer = cursor_here()
    _PIPELINE.cursor = cursor
    try:
        yield
    finally:
        _PIPELINE.cursor = outer


def cursor_here() -> Optional[Cursor]:
    """Of the pass whose pipeline is being put together in this thread."""
    found: Optional[Cursor] = getattr(_PIPELINE, "cursor", None)
    return found


class TakenSamples:
    """Which samples the outputs since the last look were made of, and which shards were begun since. Those of a pass ``before`` that was
    not looked at to its end are told as -1: a batch may have its last samples and the first ones of the next."""

    def __init__(self, cursor: Cursor, before: Optional[TakenSamples] = None) -> None:
        self._cursor = cursor
        self._ordinals: array[int] = array("i", [-1]) * (0 if before is None else len(before._ordinals))
        self._items = len(cursor.shards)

    def note(self) -> None:
        """An output was given."""
        note(self._ordinals, self._cursor.made())

    def look(self) -> Taken:
        ordinals, self._ordinals = self._ordinals, array("i")
        cursor, before = self._cursor, self._items
        self._items = len(cursor.shards)
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
