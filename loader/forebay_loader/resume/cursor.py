"""The position of one pass in one worker: the shards it began, the samples it read, and the samples that stages still hold.

A pipeline is pulled in one thread. When it has yielded an output, every stage is suspended after its own last output. So samples need no
tags. The tar reader numbers its samples in the order in which it yields them, before stripes are taken: these numbers are *ordinals*. Each
stage that holds or combines samples says which ordinals its last output was made of. Stages between those yield one output for one input,
or leave inputs out, which does not change the numbers. The numbers cost no Python step for a sample, except in stages that hold it.
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


Made = Union[int, "array[int]"]  # the ordinals of the samples in an output
_PIPELINE = threading.local()  # .cursor: of the pipeline that this thread is building
os.register_at_fork(after_in_child=lambda: vars(_PIPELINE).clear())  # a child reads for itself


class Again(Protocol):
    """Makes the inputs again that a stage held when the state was taken."""

    def expect(self, ordinals: Iterable[int]) -> None:
        """The stage will ask for these, in about this order."""

    def one(self, ordinal: int) -> Any: ...

    def batch(self, ordinals: Iterable[int]) -> Any: ...


class Cursor:
    """One pass over shards of the list ``urls``.

    ``key`` is the seed of its draws. ``began`` is the state that it resumes. ``done`` are the samples of each shard to leave out; an empty
    list of ranges means all of them. ``etags`` are the versions of such shards.
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
        self.holders: list[tuple[Callable[[], dict[str, Any]], Callable[[], int]]] = []  # (state, count) of each holding stage
        before, tally = 0 if began is None else began.read, Tally()
        self._before, self._tally = before, tally
        self.made: Callable[[], Made] = lambda: (
            before + tally.now() - 1
        )  # the ordinals of the last output of the stages so far; it must not refer to self
        self.reads = False  # whether one of the stages so far reads shards; earlier stages pass shards on
        self.waits: Callable[[], bool] = lambda: False  # whether the reader holds a sample back while it opens the next shard
        self.again: Optional[Again] = None  # for the stage that is being built

    def __repr__(self) -> str:
        return f"<Cursor at sample {self.read}, {len(self.shards)} shards begun>"

    @property
    def read(self) -> int:
        """The next ordinal."""
        return self._before + self._tally.now()

    @property
    def own(self) -> int:
        """How many of the samples read belong to this worker's stripe."""
        stripe, stripes = self.stripe
        return len(range(stripe, self.read, stripes))

    def counting(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield ``samples``, which must be all samples of the reader in its order, and count them."""
        self.reads = True
        return self._tally.counting(samples)

    def left(self, items: Iterable[Any]) -> Iterator[Any]:
        """Those ``items`` of the whole pass that are still to be read. The next stage announces them to the sidecar."""
        given = iter(items)
        return given if self.began is None else left(given, self.shards, len(self.began.shards))

    def taking(self, items: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yield ``items``, and record each just before it is opened."""
        begun = len(self.shards) > 0  # the first shard of a resumed pass is already recorded
        for item in items:
            if self.shards.are_all_empty() and not self.read and not self.waits():
                return  # draws with replacement would never end
            if not begun:
                self.shards.begin(item, self.read + self.waits())
            begun = False
            made, number = dict(item) if isinstance(item, dict) else {"url": item}, len(self.shards) - 1
            if "url" in made:
                made["url"] = self.shards.visited(number, made["url"])
            yield {**made, ITEM: number}

    def entered(self, item: int) -> int:
        """The number of the sample at which reading of ``item``, which is opened now, continues; 0 for its start."""
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
        """Register the next stage that holds or counts samples, a ``kind``, and return what it held in the resumed state.

        ``state`` returns plain values and arrays of ordinals: "refs" of samples that were not yielded yet, "given" of other samples that
        the stage needs. ``made`` returns the ordinals of its last output. ``count`` returns how many samples it holds, or a negative number
        after the end of its input. Raises ``ValueError`` if the state is of another stage.
        """
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
        """How many samples wait in stages; -1 if a stage has seen the end of its input or does not know."""
        counts = [count() for _, count in self.holders]
        return -1 if min(counts, default=0) < 0 else sum(counts)

    def place(self, ordinal: int) -> tuple[int, int]:
        """Return (number of the shard in the list, number of the sample in the shard)."""
        item, number = self.shards.place(ordinal)
        return self.shards.items.shards[item], number

    def state(self) -> dict[str, Any]:
        """The position as plain values, which ``PassState`` reads."""
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
    """Append ``made`` to ``ordinals``."""
    if isinstance(made, int):
        ordinals.append(made)
    else:
        ordinals.extend(made)


@contextmanager
def putting_together(cursor: Optional[Cursor]) -> Iterator[None]:
    """Stages that this thread builds inside the ``with`` block belong to the pass of ``cursor``."""
    outer = cursor_here()
    _PIPELINE.cursor = cursor
    try:
        yield
    finally:
        _PIPELINE.cursor = outer


def cursor_here() -> Optional[Cursor]:
    """The cursor of the pass whose pipeline this thread is building; None outside of that."""
    found: Optional[Cursor] = getattr(_PIPELINE, "cursor", None)
    return found


class TakenSamples:
    """Records which samples the outputs since the last ``look`` were made of, and which shards were begun.

    A batch may hold the last samples of one pass and the first of the next. So samples of the pass ``before`` that nobody has asked for are
    recorded as -1.
    """

    def __init__(self, cursor: Cursor, before: Optional[TakenSamples] = None) -> None:
        self._cursor = cursor
        self._ordinals: array[int] = array("i", [-1]) * (0 if before is None else len(before._ordinals))
        self._items = len(cursor.shards)

    def note(self) -> None:
        """Record one output."""
        note(self._ordinals, self._cursor.made())

    def look(self) -> Taken:
        ordinals, self._ordinals = self._ordinals, array("i")
        cursor, before = self._cursor, self._items
        self._items = len(cursor.shards)
        begun = tuple(zip(*cursor.shards.items.since(before)))  # noqa: B905  # strict= is not of 3.9
        return Taken(ordinals.tobytes(), begun, cursor.shards.etags_since(before), cursor.read, cursor.held())


class Taken(NamedTuple):
    """What a worker yielded since the last ``look``. One ``Taken`` travels with each batch.

    ``ordinals`` are those of the samples, as int32 bytes: an ``array`` costs four times as much to pickle. ``begun`` are the shards that
    were begun: (number in the list, number of the first sample, its ordinal). ``etags`` are the known versions of these, by their number in
    the pass. ``read`` is the ordinal of the next sample. ``held`` samples wait in stages; -1 if a stage has seen the end or does not know.
    """

    ordinals: bytes
    begun: "tuple[tuple[int, int, int], ...]"
    etags: "dict[int, str]"
    read: int = -1
    held: int = -1

    @classmethod
    def nothing(cls) -> Taken:
        return cls(b"", (), {})
