"""Named ranges in profiles of torch: read, decode, map and collate. Nothing happens without torch or without a profiler.

Samples are pulled through the stages one at a time, so ranges are nested: decode runs inside the range of map. Only the profiled process
has ranges. It runs stages itself if there are no workers, or after a loader of ours.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, ContextManager, Iterable, Iterator

from forebay_loader.identity.world import in_worker

__all__ = ["RangedStages", "is_profiled", "profiled", "ranged", "staged"]

_NOTHING: ContextManager[Any] = nullcontext()
_EVERY = 32  # number of samples between two checks for a profiler
_DECODE = ("_decode", "_xdecode", "DecodeStage", "video")
_COLLATE = ("_batched", "_unbatched", "_unlisted", "BudgetStage")
_PASSED = ("_shuffle", "detshuffle", "SampleShuffle")  # buffers: the stages before them have ranges of their own
_END = object()


def is_profiled() -> bool:
    """Whether a profiler runs, or this is not known."""
    # torch's own flag. If it is missing, a range is opened anyway: that costs some microseconds.
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", "torch" in sys.modules))


def profiled(name: str) -> ContextManager[Any]:
    """``torch.profiler.record_function(name)`` if a profiler runs. Does not import torch."""
    profiler = getattr(sys.modules.get("torch"), "profiler", None) if is_profiled() else None
    return profiler.record_function(name) if profiler is not None else _NOTHING


class RangedStages:
    """A base class, to come first, that gives a pipeline's later stages their ranges."""

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """As in webdataset."""
        made = super().invoke(f, *args, **kwargs)  # type: ignore[misc]
        return staged(f, made) if args else made


def staged(stage: Any, items: Any) -> Any:
    """The output of ``stage``, with a range for each item."""
    made = getattr(stage, "f", stage)  # webdataset's curried filters
    name = str(getattr(made, "__name__", type(made).__name__))
    if name in _PASSED:
        return items
    decodes = name in _DECODE or any(type(given).__name__ == "Decoder" for given in getattr(stage, "args", ()))
    return ranged("decode" if decodes else "collate" if name in _COLLATE else "map", items)


def ranged(name: str, items: Iterable[Any]) -> Iterable[Any]:
    """Yield ``items``, each made inside a range ``forebay.<name>`` if a profiler runs. Not in a worker, which nobody profiles."""
    return items if in_worker() else chain.from_iterable(_ranged(f"forebay.{name}", iter(items)))


def _ranged(name: str, source: Iterator[Any]) -> Iterator[Iterable[Any]]:
    """Yield runs of items: one item inside a range, then many without a Python step for each, if no profiler runs."""
    while True:
        with profiled(name):
            item = next(source, _END)
        if item is _END:
            return
        yield (item,)
        del item
        if not is_profiled():
            yield islice(source, _EVERY - 1)
