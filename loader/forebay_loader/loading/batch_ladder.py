"""``fb.WebLoader(batch_ladder=…)``: joins batches of the user's size to larger ones, of the size that the controller chooses.

Workers still make batches of the user's size, and the training process joins them. So the order of samples does not depend on the batch
size, workers need not be told, and the next step already has the new size. This module also measures each step for the controller: the
trainer waits until a batch is ready, and works after that.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping as MappingABC
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.batches.ladder_controller import LadderController, StepsWindow
from forebay_loader.batches.pad import Field, PadCollation, common_dtype
from forebay_loader.loading.step_vote import StepVote
from forebay_loader.meter.profile_ranges import profiled

__all__ = ["BatchJoin", "BatchLadder"]

FORMAT = 1
EARLY = 2  # after so many steps, an error would lose training
MOST_DECISIONS = 100  # kept in the state
_NO_WORD = 1 << 40  # the vote of all ranks but 0: the least counts, so rank 0 decides
_ALIKE = (
    "Batches must be alike but for their first axis: where each is padded to its longest sample, let fb.padded do it (collate=, "
    "collation_fn= or collate_fn=), which pads on; or pad all to one length, or leave batch_ladder out"
)
_SAMPLES = "samples"  # layout of a column with one entry for each sample; columns by position are a list of layouts, by name a dict


class BatchLadder:
    """``sizes`` ascend and are multiples of the first, which is the size of the incoming batches. A decision is made every ``every`` steps.

    ``on_batch_size`` gets each new size on every rank, before the first batch of that size. ``clock`` returns seconds.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        on_batch_size: Optional[Callable[[int], Any]] = None,
        every: int = 50,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.decisions: list[dict[str, Any]] = []
        self._controller = LadderController(sizes)
        self._on_batch_size = on_batch_size
        self._every = every
        self._clock = clock
        self._told = self.size  # the size last passed to on_batch_size
        self._steps = 0
        self._given = 0  # batches of the user's size in this iteration
        self._window = StepsWindow()
        self._ballot: Optional[StepVote] = None
        self.waiting = 0  # batches of the user's size that could not be joined, and are yielded next, one by one
        self._first: Any = None  # a copy of the very first batch, until the second one comes

    def __repr__(self) -> str:
        return f"<BatchLadder {self.size} of {self._controller.ladder}, {self._steps} steps>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ballot": None, "_first": None}

    @property
    def size(self) -> int:
        """The present number of samples in a batch."""
        return self._controller.size

    def out_of_memory(self) -> int:
        """Report that a step of this size ran out of memory. That size and larger ones are not used again. Returns the next size.

        With several ranks, the next decision makes it the size of all ranks. Raises ``RuntimeError`` at the user's own size.
        """
        controller = self._controller
        if controller.rung == 0:
            raise RuntimeError(f"a step ran out of memory at {self.size} samples, the first size of batch_ladder: make that one smaller")
        controller.limit(controller.rung - 1)
        if self._ballot is None:
            self._adopt(controller.ceiling, "a step ran out of memory")
        return controller.ladder[controller.ceiling]

    def state_dict(self) -> dict[str, Any]:
        """The size, the measured steps and all decisions, as plain values. ``batches`` counts batches of the user's
        size in this iteration.
        """
        return {
            "format": FORMAT,
            "steps": self._steps,
            "batches": self._given,
            "decisions": list(self.decisions),
            "controller": self._controller.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with the size in the state; with several ranks, rank 0's size. Raises ``ValueError`` for the state of another ladder."""
        if state_dict.get("format") != FORMAT:
            raise ValueError(f"the state of this ladder is of format {state_dict.get('format')!r}, and this version knows {FORMAT}")
        self._controller.load_state_dict(state_dict["controller"])
        self._steps, self._window = int(state_dict["steps"]), StepsWindow()
        self.decisions = [dict(one) for one in state_dict["decisions"]]

    def climb(self, batches: Iterable[Any], ballot: Optional[StepVote] = None, padding: Optional[PadCollation] = None) -> Iterator[Any]:
        """Yield the samples of ``batches`` in batches of the chosen size. The last may be smaller.

        ``ballot``: the vote of the ranks on each of ``batches``; None for one rank. ``padding``: the collation that padded them. Raises
        ``ValueError`` for batches that cannot be joined, ``StepsError`` if ranks have different ladders.
        """
        source = iter(batches)
        try:
            first = list(islice(source, 1))  # first: with it, the ranks meet in the vote
            self._ballot, self._given = ballot, 0
            if ballot is not None:
                self._begin(ballot)
            again = chain(first, source)
            del first  # free the batch after its step
            yield from self._climb(again, BatchJoin(self._controller.ladder[0], padding))
        finally:
            if hasattr(source, "close"):
                source.close()  # now: this tells the other ranks

    def _climb(self, source: Iterator[Any], join: BatchJoin) -> Iterator[Any]:
        first = True  # the first wait is for workers to start, which no batch size changes
        while True:
            if self._steps and self._steps % self._every == 0:
                self._decide()
            self._tell()
            parts_wanted = self.size // self._controller.ladder[0]
            asked_s = self._clock()
            parts = list(islice(source, parts_wanted))
            stall_s = self._clock() - asked_s
            if not parts:
                return
            self._given += len(parts)
            whole = len(parts) == parts_wanted and not first
            made = self._together(join, parts)
            whole = whole and len(made) == 1
            del parts
            while made:
                self._steps += 1
                self.waiting = len(made) - 1
                yield made.pop(0)
            if whole:
                steps, busy_s, stalls_s = self._window
                working_s = self._clock() - asked_s - stall_s  # includes joining, which is a cost of the size
                self._window = StepsWindow(steps + 1, busy_s + working_s, stalls_s + stall_s)
            first = False

    def _together(self, join: BatchJoin, parts: list[Any]) -> list[Any]:
        """Return one joined batch. If ``parts`` do not fit together and there is one rank, return ``parts`` and keep the user's size from
        now on.
        """
        join.look(parts[0])
        if len(parts) == 1:
            self._try_early(join, parts[0])
            return parts[:]
        try:
            with profiled("forebay.collate"):
                return [join(parts)]
        except ValueError as error:
            if self._ballot is not None or self._steps < EARLY:
                raise
            self._controller.limit(0)
            log.warning("batch size stays at %d from step %d on: %s", self._controller.ladder[0], self._steps, error)
            self._adopt(0, "batches do not fit together")
            self._tell()
            return parts[:]

    def _try_early(self, join: BatchJoin, batch: Any) -> None:
        """Join the first two batches as a trial. If that fails, the error comes before any training was done."""
        if self._steps == 0 and join.known:
            self._first = join([batch])
        elif self._first is not None:
            first, self._first = self._first, None
            join([first, batch])

    def _begin(self, ballot: StepVote) -> None:
        """Start an iteration on all ranks with rank 0's size."""
        ladder = (self._controller.ladder, self._every)
        digest = int.from_bytes(blake2b(repr(ladder).encode(), digest_size=7).digest(), "big") + 1
        said = ballot.cast(self._rank_0s(ballot), self._given, common=self._steps + 1, digest=digest)
        if said is None:
            return
        if not said.same:
            raise StepsError(
                f"ranks differ in batch_ladder or batch_ladder_steps; this one has {ladder[0]} and {ladder[1]}. Give all ranks the same"
            )
        if not said.alike:
            self._steps, self._window = 0, StepsWindow()
        self._adopt(said.least, "rank 0 is there")

    def _decide(self) -> None:
        window, self._window = self._window, StepsWindow()
        if self._ballot is None:
            self._note(self._controller.decide(window))
        else:
            self._decide_together(self._ballot, window)

    def _decide_together(self, ballot: StepVote, window: StepsWindow) -> None:
        """Rank 0 decides by its own measurements: in each vote it has waited for the slowest rank. Any rank can lower the largest size."""
        controller, why = self._controller, "rank 0 decided"
        before, top = controller.rung, len(controller.ladder) - 1
        if ballot.rank == 0:
            why = controller.decide(window) or why
        said = ballot.cast(self._rank_0s(ballot), self._given, number=top - controller.ceiling)
        if said is None:  # a rank has left the iteration
            controller.adopt(before)
            return
        controller.limit(top - said.number)
        self._adopt(min(said.least, controller.ceiling), why)

    def _rank_0s(self, ballot: StepVote) -> int:
        return self._controller.rung if ballot.rank == 0 else _NO_WORD

    def _adopt(self, rung: int, why: str) -> None:
        self._controller.adopt(rung)
        self._note(why)

    def _note(self, why: str) -> None:
        """Remember why the size changed. Rank 0 logs it."""
        before = self.decisions[-1]["size"] if self.decisions else self._controller.ladder[0]
        if self.size == before:
            return
        self.decisions = [*self.decisions, {"step": self._steps, "size": self.size, "why": why}][-MOST_DECISIONS:]
        if self._ballot is None or self._ballot.rank == 0:
            log.warning("batch size %d -> %d at step %d: %s", before, self.size, self._steps, why)

    def _tell(self) -> None:
        if self.size != self._told:
            self._told = self.size
            if self._on_batch_size is not None:
                self._on_batch_size(self.size)


class BatchJoin:
    """Joins batches of ``size`` samples each. A worker's last batch may be smaller. ``padding``: the collation that padded them."""

    def __init__(self, size: int, padding: Optional[PadCollation] = None) -> None:
        self._size = size
        self._padding = padding
        self._layout: Any = None

    @property
    def known(self) -> bool:
        """Whether a batch of ``size`` samples was seen."""
        return self._layout is not None

    def look(self, batch: Any) -> None:
        """Learn the layout of batches from one. Raises ``ValueError`` if the layout is not clear, or if it has more
        than ``size`` samples.
        """
        if self._layout is not None:
            return
        try:
            self._layout = self._laid_out(batch, top=True)
        except ValueError:
            samples = _first_axis(batch)
            if samples is None or samples >= self._size:
                raise
            # else it is a worker's last batch; the next batch shows the layout

    def __call__(self, parts: Sequence[Any]) -> Any:
        """Join ``parts``. Raises ``ValueError`` if they do not fit together."""
        for part in parts:
            self.look(part)
        if self._layout is None:
            raise ValueError(f"no batch had {self._size} samples, the first size of batch_ladder: what they are like cannot be told")
        try:
            return _joined(parts, self._layout, self._fills(parts))
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"batch_ladder puts batches together, and these {len(parts)} do not fit: {str(error).rstrip('.')}. {_ALIKE}"
            ) from error

    def _fills(self, parts: Sequence[Any]) -> dict[Field, tuple[Any, int]]:
        """The columns that are padded in all ``parts``: with which value, and along how many axes."""
        if self._padding is None:
            return {}
        fills = [self._padding.fills(part) for part in parts]
        return fills[0] if all(each.keys() == fills[0].keys() for each in fills) else {}

    def _laid_out(self, part: Any, *, top: bool = False) -> Any:
        if isinstance(part, MappingABC):
            return {name: self._laid_out(each) for name, each in part.items()}
        if not isinstance(part, (list, tuple)):
            if _first_axis(part) == self._size and getattr(part, "shape", None) is not None:
                return _SAMPLES
            raise ValueError(self._unlike(part))
        columns = bool(part) and all(_entries(each) == self._size for each in part)
        if len(part) != self._size:
            return [self._laid_out(each) for each in part] if part else _SAMPLES
        if top and columns:
            raise ValueError(f"a batch of {len(part)} with {self._size} entries each: samples or columns? Give batch_ladder other sizes")
        return _SAMPLES

    def _unlike(self, part: Any) -> str:
        shape = getattr(part, "shape", None)
        found = f"a {type(part).__name__}" if shape is None else f"a {type(part).__name__} of shape {tuple(shape)}"
        return (
            f"batch_ladder begins with {self._size}, the size of the loader's own batches, and one of them has {found}: batches must be "
            f"tensors, arrays or lists with {self._size} entries, or tuples, lists or dicts of these"
        )


def _joined(parts: Sequence[Any], layout: Any, fills: Mapping[Field, tuple[Any, int]]) -> Any:
    """``fills``: the columns at this level that may need more padding."""
    first = parts[0]
    if isinstance(layout, dict):
        return {name: _column([part[name] for part in parts], each, name, fills) for name, each in layout.items()}
    if isinstance(layout, list):
        columns = [_column([part[place] for part in parts], each, place, fills) for place, each in enumerate(layout)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if isinstance(first, (list, tuple)):
        return type(first)(sample for part in parts for sample in part)
    if hasattr(first, "new_full"):
        return _joined_tensors(parts)
    return importlib.import_module("numpy").concatenate(parts)


def _column(parts: Sequence[Any], layout: Any, name: Field, fills: Mapping[Field, tuple[Any, int]]) -> Any:
    if name in fills and len({tuple(part.shape[1:]) for part in parts}) > 1:
        return _padded_on(parts, *fills[name])
    return _joined(parts, layout, {})


def _padded_on(parts: Sequence[Any], fill: Any, axes: int) -> Any:
    """Join tensors or arrays, each padded to the longest along ``axes`` axes after the first. Raises ``ValueError``
    if other axes differ.
    """
    first = parts[0]
    rests = {tuple(part.shape[1 + axes :]) for part in parts}
    if len(rests) > 1:
        raise ValueError(f"what fb.padded pads differs in other axes: {sorted(rests)}")
    longest = (max(part.shape[axis] for part in parts) for axis in range(1, 1 + axes))
    shape = (sum(part.shape[0] for part in parts), *longest, *rests.pop())
    if hasattr(first, "new_full"):
        made = importlib.import_module("torch").full(
            shape, fill, dtype=common_dtype(parts), device=first.device, pin_memory=first.is_pinned()
        )
    else:
        numpy = importlib.import_module("numpy")
        made = numpy.full(shape, fill, dtype=numpy.result_type(*parts))
    row = 0
    for part in parts:
        made[(slice(row, row + part.shape[0]), *map(slice, part.shape[1 : 1 + axes]))] = part
        row += part.shape[0]
    return made


def _joined_tensors(parts: Sequence[Any]) -> Any:
    torch, kind = importlib.import_module("torch"), common_dtype(parts)
    alike = [part.to(kind) for part in parts]
    if not parts[0].is_pinned():
        return torch.cat(alike)
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return torch.cat(alike, out=torch.empty(shape, dtype=kind, pin_memory=True))  # as its parts: copied in the background


def _entries(part: Any) -> Optional[int]:
    """The length of an array, a list or a tuple, or of the first column of a dict."""
    if isinstance(part, MappingABC):
        return _entries(next(iter(part.values()), None))
    if isinstance(part, (list, tuple)):
        return len(part)
    return _first_axis(part)


def _first_axis(batch: Any) -> Optional[int]:
    """The length of the first array in a batch; None if there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    inner = batch.values() if isinstance(batch, MappingABC) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for found in map(_first_axis, inner) if found is not None), None)
