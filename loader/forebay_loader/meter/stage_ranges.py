"""What the stages of a pipeline are called in a profile of torch's: read, decode, map, collate.

Samples are pulled through a pipeline one at a time, so the ranges lie within one another: what map asks of decode is a part of map's range.
Only the process that is profiled is asked, and it has stages of its own where there are no workers, and behind a loader of ours.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, Iterable, Iterator

from forebay_loader.base.activity import is_profiled, profiled
from forebay_loader.identity.world import in_worker

__all__ = ["RangedStages", "ranged", "staged"]

_EVERY = 32  # samples, after which it is asked whether somebody profiles by now
_DECODE = ("_decode", "_xdecode", "DecodeStage", "video")
_COLLATE = ("_batched", "_unbatched", "_unlisted", "BudgetStage")
_PASSED = ("_shuffle", "detshuffle", "SampleShuffle")  # buffers: what they ask for has ranges of its own
_END = object()


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
