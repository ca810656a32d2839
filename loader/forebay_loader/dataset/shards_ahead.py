"""Shards opened before their turn, by threads: after a resume the samples of a buffer lie in many, each of which is a wait of its own."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Callable, Dict, Generic, Iterable, Iterator, Protocol, Set, TypeVar

__all__ = ["ShardsAhead"]

AHEAD = 24  # shards that are open, or being opened, and not taken yet: a first batch draws from some 20; eight were 1.4 times as slow


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class ShardsAhead(Generic[T]):
    """``enter`` of each of ``items``, which will be taken in about this order. A thread lives as long as one is being opened."""

    def __init__(self, items: Iterable[int], enter: Callable[[int], T]) -> None:
        self._left = _once(items)
        self._enter = enter
        self._ready: Dict[int, "Future[T]"] = {}
        self._fill()

    def __repr__(self) -> str:
        return f"<ShardsAhead {len(self._ready)} of {AHEAD}>"

    def take(self, item: int) -> T:
        """What ``enter`` gave for ``item``, or gives now. Raises what it raised."""
        future = self._ready.pop(item, None)
        self._fill()
        return self._enter(item) if future is None else future.result()

    def close(self) -> None:
        """Let go of what nobody has taken."""
        ready, self._ready, self._left = self._ready, {}, iter(())
        for future in ready.values():
            future.add_done_callback(_let_go)

    def _fill(self) -> None:
        while len(self._ready) < AHEAD:
            item = next(self._left, None)
            if item is None:
                return
            future: "Future[T]" = Future()
            threading.Thread(target=_enter_into, args=(future, self._enter, item), name=f"forebay-again-{item}", daemon=True).start()
            self._ready[item] = future


def _once(items: Iterable[int]) -> Iterator[int]:
    """Each where it comes first; no further than they are asked for."""
    seen: Set[int] = set()
    for item in items:
        if item not in seen:
            seen.add(item)
            yield item


def _enter_into(future: "Future[T]", enter: Callable[[int], T], item: int) -> None:
    try:
        future.set_result(enter(item))
    except BaseException as error:
        future.set_exception(error)


def _let_go(future: "Future[T]") -> None:
    with suppress(Exception):  # nobody asks any more
        future.result().close()
