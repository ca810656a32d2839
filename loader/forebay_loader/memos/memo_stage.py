"""A stage whose results are kept, and a function whose results are kept."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.memos.errors import MemberMissing
from forebay_loader.memos.memo_results import MemoResults
from forebay_loader.meter.skips.recorded_handler import Handler, Place, RecordedHandler, asked, passes_over
from forebay_loader.meter.skips.skip_pass import SkipPass, current, making
from forebay_loader.meter.skips.stock_stages import handler_of, recorded_stage
from forebay_loader.samples.open_sample import reraise

__all__ = ["MemoFunction", "MemoStage"]

_END = object()
Told = Tuple[int, int, Optional[int], int]


class MemoStage(EpochStage):
    """``stage``, one for one, is asked for what is not kept. It is a stage of the same kind."""

    state_kind = "one"

    def __init__(self, results: MemoResults, handler: Optional[Handler] = None) -> None:
        self.stage = results.transform
        self.results = results
        self._handler = handler  # the data set's
        self._began: Dict[int, Told] = {}  # by thread: what is known of its next pass

    def __repr__(self) -> str:
        return f"<MemoStage {self.stage!r}, {self.results.place}>"

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_began": {}}

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        self._began[threading.get_ident()] = epoch, turn, phase, place

    def memo_print(self, of: Callable[[Any], Any]) -> Any:
        """A memo of a memo is that of the stage."""
        return of(self.stage)

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        return self._samples(samples, self._began.pop(threading.get_ident(), None), current())

    def _samples(self, samples: Iterator[Any], told: Optional[Told], skips: Optional[SkipPass]) -> Iterator[Any]:
        """The stage reads from a slot that holds one sample at a time. Where it asks for the next before it gave a result, its handler left
        the sample out: the slot is empty, so its pass ends there, and another is begun for the next that is not kept."""
        slot = _Slot()
        made: Optional[Iterator[Any]] = None
        handler = handler_of(self.stage) or self._handler or reraise
        if skips is not None and passes_over(handler):
            handler = RecordedHandler(handler, skips)
        try:
            for sample in samples:
                try:
                    found, missed = self.results.find(sample)
                except MemberMissing as error:
                    if not asked(handler, error, Place("map", "sample", sample.get("__url__", ""), sample.get("__key__", ""), "memo")):
                        break
                    continue
                if missed is not None:
                    made = self._begun(slot, told, skips) if made is None else made
                    slot.sample = sample
                    found = next(made, _END)
                    if found is _END:
                        made = None
                        continue
                    self.results.keep(missed, found)
                yield found
        finally:
            close = getattr(made, "close", None)
            if close is not None:
                close()

    def _begun(self, slot: "_Slot", told: Optional[Told], skips: Optional[SkipPass]) -> Iterator[Any]:
        """A pass of the stage, whose handlers are recorded as those of the pipeline are."""
        if told is not None and isinstance(self.stage, EpochStage):
            self.stage.begin(*told)
        if skips is None:
            return iter(self.stage(slot))
        with making(skips):
            recorded = recorded_stage(self.stage, slot, skips)
            return iter(self.stage(slot) if recorded is None else recorded)


class _Slot:
    """An iterator over the sample that lies in it."""

    def __init__(self) -> None:
        self.sample: Any = _END

    def __iter__(self) -> "_Slot":
        return self

    def __next__(self) -> Any:
        sample, self.sample = self.sample, _END
        if sample is _END:
            raise StopIteration
        return sample


class MemoFunction:
    """``results.transform``, a function of one sample, asked for what is not kept. Pickles by its name, as a function does."""

    def __init__(self, results: MemoResults) -> None:
        functools.update_wrapper(self, results.transform)
        self._function = results.transform
        self._results = results

    def __repr__(self) -> str:
        return f"<MemoFunction {self._function!r}>"

    def __reduce__(self) -> Any:
        name = getattr(self._function, "__qualname__", "")
        module = sys.modules.get(getattr(self._function, "__module__", None) or "")
        return name if getattr(module, name, None) is self else (MemoFunction, (self._results,))

    def memo_print(self, of: Callable[[Any], Any]) -> Any:
        """A memo of what calls it is one of the function too."""
        return of(self._function)

    def __call__(self, sample: Any) -> Any:
        found, missed = self._results.find(sample)
        if missed is not None:
            found = self._function(sample)
            self._results.keep(missed, found)
        return found
