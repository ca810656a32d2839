"""Named ranges in a profile of torch's; without torch, and where nobody profiles, nothing.

The stages of a pipeline are called read, decode, map and collate there. Samples are pulled through it one at a time, so the ranges lie
within one another: what map asks of decode is a part of map's range. Only the process that is profiled is asked, and it has stages of its
own where there are no workers, and behind a loader of ours.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any, ContextManager, Iterable, Iterator

from forebay_loader.identity.world import in_worker

__all__ = ["RangedStages", "is_profiled", "profiled", "ranged", "staged"]

_NOTHING: ContextManager[Any] = nullcontext()
_EVERY = 32  # samples, after which it is asked whether somebody profiles by now
_DECODE = ("_decode", "_xdecode", "DecodeStage", "video")
_COLLATE = ("_batched", "_unbatched", "_unlisted", "BudgetStage")
_PASSED = ("_shuffle", "detshuffle", "SampleShuffle")  # buffers: what they ask for has ranges of its own
_END = object()


def is_profiled() -> bool:
    """Whether somebody profiles, or nobody can tell."""
    # Torch's own flag, which its functions of modules look at too; where there is none, a range is begun: it costs some microseconds.
    return bool(getattr(sys.modules.get("torch.autograd.profiler"), "_is_profiler_enabled", "torch" in sys.modules))


def profiled(name: str) -> ContextManager[Any]:
    """``torch.profiler.record_function(name)`` where somebody profiles; torch is not imported for this."""
    profiler = getattr(sys.modules.get("torch"), "profiler", None) if is_profiled() else None
    return profiler.record_function(name) if profiler is not None else _NOTHING


class RangedStages:
    """A pipeline of webdataset's that derives from this first has ranges of its later stages."""

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """As in webdataset."""
        made = super().invoke(f, *args, **kwargs)  # type: ignore[misc]
        return staged(f, made) if args else made


def staged(stage: Any, items: Any) -> Any:
    """What a later ``stage`` gives, with its ranges."""
    made = getattr(stage, "f", stage)  # webdataset's curried filters
    name = str(getattr(made, "__name__", type(made).__name__))
    if name in _PASSED:
        return items
    decodes = name in _DECODE or any(type(given).__name__ == "Decoder" for given in getattr(stage, "args", ()))
    return ranged("decode" if decodes else "collate" if name in _COLLATE else "map", items)


def ranged(name: str, items: Iterable[Any]) -> Iterable[Any]:
    """``items``, the making of each in a range ``forebay.<name>`` where somebody profiles. Nobody does so in a worker."""
    return items if in_worker() else chain.from_iterable(_ranged(f"forebay.{name}", iter(items)))


def _ranged(name: str, source: Iterator[Any]) -> Iterator[Iterable[Any]]:
    """Runs of items: of one, which is looked at, and of many that pass without a step of Python for each."""
    while True:
        with profiled(name):
            item = next(source, _END)
        if item is _END:
            return
        yield (item,)
        del item
        if not is_profiled():
            yield islice(source, _EVERY - 1)
