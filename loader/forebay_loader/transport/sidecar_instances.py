"""Which sidecar instance answers: openings report it, and listeners hear of a new one, because it does not know what they sent before."""

from __future__ import annotations

import os
import weakref
from typing import Callable, Optional

__all__ = ["INSTANCES", "Instances"]

Heard = Callable[[str], None]


class Instances:
    """Listeners by reader. They are held weakly: a reading that is simply dropped takes its own with it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._listeners: dict[str, weakref.WeakMethod[Heard]] = {}

    def listen(self, reader: str, heard: Heard) -> None:
        """Call ``heard`` (a method) with the instance that answers ``reader``, at each of its openings."""
        self._listeners[reader] = weakref.WeakMethod(heard, lambda _: self.leave(reader))

    def leave(self, reader: str) -> None:
        self._listeners.pop(reader, None)

    def heard(self, reader: str, instance: str) -> None:
        """``instance`` answered an opening of ``reader``; "" where it did not say."""
        found = self._listeners.get(reader)
        listener: Optional[Heard] = found() if found is not None and instance else None
        if listener is not None:
            listener(instance)


INSTANCES = Instances()
os.register_at_fork(after_in_child=INSTANCES.clear)  # what the parent announced, the parent opens
