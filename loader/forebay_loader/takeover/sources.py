"""Which shard list a stock pipeline reads: the one that begins when its first item is pulled. From it plans have their set and their epoch.

An opener is handed a chain of generators, which names nothing. So webdataset's two shard lists note when they begin, in their thread; what
lies between them and the opener may leave out shards, or reorder them, but has no others.
"""

from __future__ import annotations

import functools
import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator

from forebay_loader.identity.world import World
from forebay_loader.plan.ahead import Ahead
from forebay_loader.plan.known_lists import lists_shards
from forebay_loader.plan.plan_subject import set_of

__all__ = ["ahead_of", "first_pull", "noted"]

_PULLS = threading.local()  # .begun: the lists that began within the pull that is on
_STAGES: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()  # one for each list: it counts how often that was read


def noted(stock: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """A shard list's ``__iter__``, the same but for a note at its first item."""

    @functools.wraps(stock)
    @lists_shards
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807  # it becomes that method
        begun = getattr(_PULLS, "begun", None)
        if begun is not None:
            begun.append(self)
        yield from stock(self)

    return __iter__


@contextmanager
def first_pull() -> Iterator[list[Any]]:
    """The shard lists that begin meanwhile, in this thread."""
    outer, begun = getattr(_PULLS, "begun", None), list[Any]()
    _PULLS.begun = begun
    try:
        yield begun
    finally:
        _PULLS.begun = outer


def ahead_of(begun: list[Any]) -> Ahead:
    """The ``Ahead`` that announces a pass over the one list that has begun. Where no list or several have begun, its set is not known."""
    if len(begun) != 1:
        return Ahead(world=World())
    (source,) = begun
    found = _STAGES.get(source)
    if found is None:
        found = _STAGES[source] = Ahead(set=set_of(getattr(source, "urls", None)), world=World())
    return found
