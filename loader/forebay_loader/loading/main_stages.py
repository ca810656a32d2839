"""Stages after torch's loader, in the training process, with a state: ``unbatched().shuffle(n).batched(m)``.

The rows of the batches are numbered; without ``unbatched``, the batches are. The shuffle buffer's state is the numbers of its rows. To
resume, workers read again from the oldest batch with a row in the buffer. Rows that were handed out are dropped, rows of the buffer take
their places in it, and later rows pass through. A snapshot is taken every few outputs. A resume makes the outputs since the snapshot again
and drops them.
"""

from __future__ import annotations

import random
from array import array
from itertools import chain
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.meter.profile_ranges import staged
from forebay_loader.resume.cursor import Cursor
from forebay_loader.resume.known_stages import given_to, kept_stage, kind_of, name_of
from forebay_loader.resume.pass_state import drawn_by, draws_of, packed, unpacked
from forebay_loader.resume.sample_buffer import SampleBuffer

__all__ = ["HeldRows", "MainStages", "holds_rows", "untold_main"]

_PLACES = {"rows": 1, "shuffle": 2, "batch": 3}
_NOTHING = object()
Invoke = Callable[[Any, Any], Any]
Spread = Callable[[Iterable[Any]], Iterator[Any]]


class _RowSnapshot(NamedTuple):
    """The state after an output: ``read`` rows had come, ``refs`` were in the buffer, and ``draws`` is its generator's state.

    The first ``at`` batches are no longer needed. ``row`` is the first row of the next batch; all earlier ones were handed out.
    """

    at: int
    row: int
    read: int
    refs: "array[int]"
    draws: str

    def state(self) -> dict[str, Any]:
        return {"row": self.row, "read": self.read, "refs": packed(self.refs), "rng": self.draws}


class HeldRows(NamedTuple):
    """The state after the ``skip``-th output since ``snapshot``: ``read`` rows had come, and ``refs`` were in the buffer.

    ``batches`` are the batches that may have rows left: (number in the pass, first row).
    """

    snapshot: _RowSnapshot
    skip: int
    read: int
    refs: "array[int]"
    batches: Sequence["tuple[int, int]"]
    whole: bool  # batches are not split into rows

    def state(self) -> dict[str, Any]:
        return {**self.snapshot.state(), "skip": self.skip}

    def handed(self, at: int, ordinals: "array[int]") -> "array[int]":
        """The samples of batch ``at`` that were handed out."""
        rest = [(number, first) for number, first in self.batches if number >= at]
        if not rest or rest[0][0] != at:
            return ordinals if not self.batches or at < self.batches[0][0] else array("i")
        first, stop, held = rest[0][1], min(self.read, rest[1][1] if len(rest) > 1 else self.read), set(self.refs)
        if self.whole:
            return array("i") if first in held or first >= stop else ordinals
        return array("i", [ordinal for row, ordinal in enumerate(ordinals, first) if row < stop and row not in held])


class MainStages:
    """One pass of ``stages`` of known kinds, with a snapshot every ``every`` outputs. ``start`` is a state of these stages to resume from.

    ``key()`` is the seed of the buffer. ``at()`` is how many batches have come. Both are called only after a batch has come.
    """

    def __init__(
        self, stages: Sequence[Any], key: Callable[[], str], at: Callable[[], int], every: int, start: Optional[Mapping[str, Any]] = None
    ) -> None:
        self._stages = stages
        self._key = key
        self._at = at
        self._every = every
        self._start = start
        self._read = 0 if start is None else int(start["row"])  # number of rows that have come
        self._now = -1  # the current row
        self._refs = array("i")
        self._rng: Optional[random.Random] = None
        self._batches: list[tuple[int, int]] = []
        self._last: Optional[tuple[_RowSnapshot, int]] = None  # the last snapshot, and the number of outputs since

    def __repr__(self) -> str:
        return f"<MainStages at row {self._read}, {len(self._refs)} in the buffer>"

    def outputs(self, batches: Iterable[Any], invoke: Invoke) -> Iterator[Any]:
        """The output of the stages for ``batches``, without what was handed out before."""
        data: Iterator[Any] = iter(batches)
        kinds = [kind_of(stage) for stage in self._stages]
        if "rows" not in kinds:
            data = self._rows(data, None)
        for stage, kind in zip(self._stages, kinds):  # noqa: B905  # strict= is not of 3.9
            if kind == "rows":
                data = self._rows(data, stage.f)
            elif kind == "shuffle":
                data = self._shuffled(data, **given_to(stage))
            elif kind == "batch":
                data = iter(kept_stage(stage, data, Cursor()) or ())
            else:
                data = iter(invoke(stage, data))
                continue
            data = iter(staged(stage, data))
        return data if self._start is None else self._rest(data, int(self._start["skip"]))

    def held(self) -> HeldRows:
        """What the stages hold now, just after an output."""
        snapshot, skip = self._last or (None, 0)
        if snapshot is None or skip + 1 >= self._every:
            snapshot, skip = self._snapshot(), -1
        self._last = snapshot, skip + 1
        whole = not any(kind_of(stage) == "rows" for stage in self._stages)
        return HeldRows(snapshot, skip + 1, self._read, self._refs[:], tuple(self._batches), whole)

    def _snapshot(self) -> _RowSnapshot:
        oldest = min(self._refs, default=self._read - 1)  # a complete batch may be read again needlessly, which does no harm
        while len(self._batches) > 1 and self._batches[1][1] <= oldest:
            del self._batches[0]
        number, first = self._batches[0]
        return _RowSnapshot(number - 1, first, self._read, self._refs[:], "" if self._rng is None else draws_of(self._rng))

    def _rest(self, outputs: Iterator[Any], skip: int) -> Iterator[Any]:
        for _ in range(skip):
            if next(outputs, _NOTHING) is _NOTHING:
                return
            self.held()
        yield from outputs

    def _rows(self, batches: Iterator[Any], spread: Optional[Spread]) -> Iterator[Any]:
        """Yield the rows of ``batches``, or the batches themselves, except those that were handed out before."""
        start = self._start
        below, wanted = (0, set()) if start is None else (int(start["read"]), set(unpacked(start["refs"])))
        for batch in batches:
            self._batches.append((self._at(), self._read))
            for row in [batch] if spread is None else spread(iter([batch])):
                self._now = self._read
                self._read += 1
                if self._now >= below or self._now in wanted:
                    yield row

    def _shuffled(
        self, data: Iterator[Any], bufsize: int = 1000, initial: int = 100, rng: Any = None, seed: Any = None, handler: Any = None
    ) -> Iterator[Any]:
        """Yield ``data`` in the order of ``wds.shuffle``."""
        first = next(data, _NOTHING)  # first: the key depends on the epoch, which the first batch tells
        given = iter(()) if first is _NOTHING else chain([first], data)
        del first
        self._rng = random.Random(self._key() if seed is None else seed)  # noqa: S311  # an order, no secret
        numbered = Cursor()
        numbered.made = lambda: self._now
        buffer = SampleBuffer(self._rng, numbered, bufsize, initial)
        self._refs = buffer.refs
        if self._start is not None:
            drawn_by(self._rng, self._start["rng"])
            buffer.samples += self._refilled(given)
        yield from buffer.shuffled(given)

    def _refilled(self, given: Iterator[Any]) -> list[Any]:
        """Read the rows that the buffer held."""
        assert self._start is not None
        self._refs.extend(unpacked(self._start["refs"]))
        places = {ref: place for place, ref in enumerate(self._refs)}
        rows: list[Any] = [None] * len(places)
        for came in range(len(places)):
            row = next(given, _NOTHING)
            if row is _NOTHING:
                raise ValueError(
                    f"the state that was loaded cannot be resumed: {len(places)} rows were in the shuffle buffer of the loader, and "
                    f"{came} of them come again: a stage before it gives others than it did"
                )
            rows[places[self._now]] = row
        return rows


def holds_rows(stages: Iterable[Any]) -> bool:
    """Whether any of these stages holds something between outputs."""
    return any(kind_of(stage) in _PLACES for stage in stages)


def untold_main(stages: Iterable[Any]) -> str:
    """Why the content of these stages of a loader is not known; "" if it is."""
    last = 0
    for stage in stages:
        kind, name = kind_of(stage), name_of(stage)
        if kind == "one":
            continue
        if kind == "shuffle" and (hasattr(stage, "bufsize") or given_to(stage).get("rng") is not None):
            return f"its stage {name}, in the training process, draws from a generator that is not the loader's own"
        if _PLACES.get(kind, 0) <= last:
            return (
                f"its stage {name}, in the training process, may hold rows back unseen. Known there are stages that give one for one, and "
                "unbatched(), shuffle(n) and batched(m), each at most once, in that order"
            )
        last = _PLACES[kind]
    return ""
