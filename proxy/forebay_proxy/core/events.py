"""What rooms report. Rooms emit frozen facts and know no listener; metrics, log and page listen, tests record. Pure.

What is counted is named in ``facts/``, by what it is about. A fact that one room has and another acts on (a segment left, the index was
begun anew) is a ``Fact`` too, and lives beside the room that emits it; ``app/composition.py`` says who hears it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay_proxy.core.facts.cache import CacheEvent
from forebay_proxy.core.facts.origins import OriginEvent
from forebay_proxy.core.facts.requests import RequestEvent

__all__ = ["Event", "Events", "Fact", "RequestFailed"]

Event = CacheEvent | OriginEvent | RequestEvent


class Fact:
    """Something that happened in one room and that others act on at once: a frozen dataclass beside the room that emits it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RequestFailed(Fact):
    """A client was answered with an error, beside its ``RequestDone``. ``code``: 400 or above; ``error``: why, for people and logs."""

    code: int
    error: str
    job: str = ""  # of the reader that asked; "" for an anonymous one


F = TypeVar("F")


class Events:
    """The board on which rooms pin their facts; a listener is called with those it named, in the order in which listeners came.

    Not thread-safe: the event loop's only.
    """

    def __init__(self) -> None:
        self._of_all: tuple[Callable[[Any], object], ...] = ()
        self._of_kind: dict[type, list[Callable[[Any], object]]] = {}

    def on(self, kind: type[F], listener: Callable[[F], object]) -> None:
        """Call ``listener`` with every fact of ``kind`` from now on, before ``emit`` returns. It must be quick and must not raise."""
        self._of_kind.setdefault(kind, list(self._of_all)).append(listener)

    def listen(self, listener: Callable[[Any], object], kinds: Iterable[type] | None = None) -> None:
        """As ``on``, for each of ``kinds``; None: for every fact."""
        if kinds is not None:
            for kind in kinds:
                self.on(kind, listener)
            return
        self._of_all += (listener,)
        for listeners in self._of_kind.values():
            listeners.append(listener)

    def emit(self, event: Event | Fact) -> None:
        for listener in self._of_kind.get(type(event), self._of_all):
            listener(event)
