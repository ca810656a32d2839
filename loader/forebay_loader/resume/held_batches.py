"""Stages that batch, unbatch, slice or draw like webdataset's, with a state of a few numbers.

``FullBatches`` yields a batch as soon as it is full. webdataset's stage first waits for the next sample, which is then in no batch and in
no state.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from itertools import count
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.resume.cursor import Cursor, Made, note
from forebay_loader.resume.pass_state import refs_of

__all__ = ["BatchRows", "FullBatches", "SeededPart", "StreamSlice"]

Spread = Callable[[Iterable[Any]], Iterator[Any]]


class FullBatches:
    """``wds.batched``: the same batches. It holds no samples between outputs.

    It records the end of its input. If a handler ended the reading early, a resumed pass must not read on.
    """

    def __init__(self, batchsize: int, collate: Optional[Callable[[list[Any]], Any]], cursor: Cursor, *, partial: bool) -> None:
        self._size = batchsize
        self._collate = collate
        self._partial = partial
        self._upstream = cursor.made
        self._made = array("i")
        held = cursor.hold("batch", self.state, self._of_last, self._held)
        self._ended = held is not None and bool(held["ended"])

    def __repr__(self) -> str:
        return f"<FullBatches of {self._size}>"

    def state(self) -> dict[str, Any]:
        return {"kind": "batch", "refs": array("i"), "ended": self._ended}

    def _of_last(self) -> Made:
        return self._made

    def _held(self) -> int:
        return -1 if self._ended else 0

    def batches(self, data: Iterable[Any]) -> Iterator[Any]:
        batch: list[Any] = []
        made = array("i")
        for sample in () if self._ended else data:
            batch.append(sample)
            note(made, self._upstream())
            if len(batch) >= self._size:
                self._made, made = made, array("i")
                yield batch if self._collate is None else self._collate(batch)
                batch = []
        self._ended = True
        if batch and self._partial:
            self._made = made
            yield batch if self._collate is None else self._collate(batch)


class BatchRows:
    """``wds.unbatched`` and ``wds.unlisted``: the rows of each batch."""

    def __init__(self, spread: Spread, cursor: Cursor) -> None:
        self._spread = spread
        self._upstream = cursor.made
        self._again = cursor.again
        held = cursor.hold("rows", self.state, self._of_last)
        self._refs = array("i") if held is None else refs_of(held)
        self._given = 0 if held is None else int(held["rows"])
        self._rows = self._given + 1 if self._refs else 0  # a resumed batch has rows left

    def __repr__(self) -> str:
        return f"<BatchRows {self._given} of {self._rows}>"

    def state(self) -> dict[str, Any]:
        if self._given >= self._rows:
            return {"kind": "rows", "given": array("i"), "refs": array("i"), "rows": 0}
        given = self._behind(self._given)
        return {"kind": "rows", "given": self._refs[:given], "refs": self._refs[given:], "rows": self._given}

    def _behind(self, rows: int) -> int:
        """How many samples of the batch are in its first ``rows`` rows. A function in ``.map`` may make several
        rows of a sample, or fewer.
        """
        return -(-rows * len(self._refs) // max(1, self._rows))

    def _of_last(self) -> Made:
        return self._refs[max(0, self._behind(self._given) - 1)]

    def rows(self, data: Iterable[Any]) -> Iterator[Any]:
        if self._refs and self._again is not None:
            yield from self._of_batch(self._again.batch(self._refs), self._given)
        for batch in data:
            made = self._upstream()
            self._refs = made if isinstance(made, array) else array("i", [made])
            yield from self._of_batch(batch, 0)

    def _of_batch(self, batch: Any, gone: int) -> Iterator[Any]:
        rows = list(self._spread(iter([batch])))  # all at once: the state must know whether rows are left
        self._rows = len(rows)
        for self._given in range(gone + 1, len(rows) + 1):  # self._given, for state()
            yield rows[self._given - 1]


class StreamSlice:
    """``wds.slice``: the same as ``itertools.islice`` on ``data``."""

    def __init__(self, args: tuple[Any, ...], cursor: Cursor) -> None:
        place = slice(*args)
        self._start = place.start or 0
        self._stop = place.stop
        self._step = place.step or 1
        held = cursor.hold("slice", self.state)
        self._taken = 0 if held is None else int(held["taken"])

    def __repr__(self) -> str:
        return f"<StreamSlice at {self._taken}>"

    def state(self) -> dict[str, Any]:
        return {"kind": "slice", "refs": array("i"), "taken": self._taken}

    def part(self, data: Iterable[Any]) -> Iterator[Any]:
        given = iter(data)
        for at in count(self._taken):
            if self._stop is not None and at >= self._stop:
                return
            try:
                sample = next(given)
            except StopIteration:
                return
            self._taken = at + 1
            if at >= self._start and (at - self._start) % self._step == 0:
                yield sample


class SeededPart:
    """``wds.rsample``: a share of the samples, drawn by ``key`` and the sample's number in the pass instead of by the clock.

    So if a pass with resampled shards reads a sample again, that is a new draw.
    """

    def __init__(self, share: float, key: str, cursor: Cursor) -> None:
        self._below = int(share * (1 << 64))
        self._key = key
        self._upstream = cursor.made

    def __repr__(self) -> str:
        return f"<SeededPart {self._below / (1 << 64):.3g}>"

    def part(self, data: Iterable[Any]) -> Iterator[Any]:
        last, row = -1, 0
        for sample in data:
            made = self._upstream()
            ordinal = made if isinstance(made, int) else made[0]
            last, row = ordinal, row + 1 if ordinal == last else 0  # an earlier stage may yield several outputs for one sample
            told = f"{self._key}/{ordinal}/{row}".encode()
            if int.from_bytes(blake2b(told, digest_size=8).digest(), "big") < self._below:
                yield sample
