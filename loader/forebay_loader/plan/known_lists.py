"""Which sources of shards are lists that are known in full: reading one to its end takes nothing from anybody.

What a stage is handed is a chain of generators, which names nothing. But each generator knows whose code it runs, and what the first
argument of that code is: what it reads from. A chain that leads through code known here to a list is a known list. Everything else may
hand out work, or delete it, as it is pulled: a queue, a folder that is emptied, a function of the user's own, ``map``, ``islice``.
"""

from __future__ import annotations

import random
import sys
from inspect import getgeneratorlocals, unwrap
from types import CodeType, GeneratorType
from typing import Any, Callable, Iterator, Mapping, TypeVar

__all__ = ["STOCK_LISTS", "STOCK_STAGES", "is_known_list", "lists_shards", "passes_shards_on"]

Made = TypeVar("Made", bound=Callable[..., Iterator[Any]])

_LISTING: set[CodeType] = set()  # generators of ours that begin with a list
_PASSING: set[CodeType] = set()  # generators of ours that yield what their first argument does, or some of it

# Webdataset's, by module. What a script has put in their place is known no more: it is of another module.
STOCK_LISTS = {"webdataset.shardlists": ("SimpleShardList", "ResampledShards", "MultiShardSample", "resampled_")}
STOCK_STAGES = {
    "webdataset.shardlists": ("split_by_node", "split_by_worker", "single_node_only", "non_empty"),
    "webdataset.filters": ("_shuffle",),  # of ``shuffle`` and ``detshuffle``, and of OpenCLIP's own
}
_STAGES = 32  # more are no pipeline
_LISTS: tuple[type[Any], ...] = (list, tuple, type(iter([])), type(iter(())))


def lists_shards(made: Made) -> Made:
    """Decorate a generator function that yields from a list, whoever else may be reading."""
    _LISTING.add(made.__code__)
    return made


def passes_shards_on(made: Made) -> Made:
    """Decorate a generator function that yields some of what its first argument, an iterator, yields, and changes nothing elsewhere."""
    _PASSING.add(made.__code__)
    return made


def is_known_list(items: Any) -> bool:
    """Whether pulling from the iterator ``items`` early can be noticed by nobody but who asked for it."""
    listing, passing = _LISTING | _stock_codes(STOCK_LISTS), _PASSING | _stock_codes(STOCK_STAGES)
    for _ in range(_STAGES):
        if type(items) in _LISTS:
            return True
        if not isinstance(items, GeneratorType):
            return False
        if items.gi_code in listing:
            return True
        if items.gi_code not in passing or not _draws_alone(items):
            return False
        items = getgeneratorlocals(items).get(items.gi_code.co_varnames[0])  # none of one that has ended
    return False


def _stock_codes(names: Mapping[str, tuple[str, ...]]) -> set[CodeType]:
    """The code of those that are there, in this version of webdataset; none before a pipeline has imported it."""
    codes = set()
    for module_name, known in names.items():
        module = sys.modules.get(module_name)
        for name in known:
            found: Any = getattr(module, name, None)
            function = unwrap(getattr(found, "__iter__", found))
            if getattr(function, "__module__", None) == module_name:
                codes.add(function.__code__)
    return codes


def _draws_alone(stage: GeneratorType[Any, Any, Any]) -> bool:
    """Whether nobody else draws from the ``rng`` of this stage: two that share one would draw in another order when one is pulled early."""
    return getgeneratorlocals(stage).get("rng") is None or _holders(stage) == _ALONE


def _holders(stage: GeneratorType[Any, Any, Any]) -> int:
    return sys.getrefcount(getgeneratorlocals(stage)["rng"])


def _drawing(data: Any, rng: random.Random) -> Iterator[Any]:
    yield from data


_ALONE = _holders(_drawing((), random.Random()))  # type: ignore[arg-type]  # noqa: S311  # how often one counts that only its stage holds
