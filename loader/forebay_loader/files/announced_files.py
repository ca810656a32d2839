"""Files that will be opened, in their order: the sidecar fetches them ahead, until the last of them has been read."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Iterable

from forebay_loader.identity.reader_name import CLAIMS, next_opener, reader_name
from forebay_loader.plan.plan_client import Coming, PlanClient
from forebay_proxy.wire.commands.sources import Source

__all__ = ["AnnouncedFiles"]


class AnnouncedFiles:
    """What was announced, until the last of it has been read."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._name = reader_name(next_opener())
        self._waiting = waiting = deque(sources)
        count = len(waiting)
        for source in waiting:
            CLAIMS.announce(source.text, self._name)

        def coming() -> Coming:
            return Coming(count - len(waiting), list(waiting))

        announcer = PlanClient(self._name, coming)
        self._end = weakref.finalize(self, announcer.withdraw)
        announcer.announce(coming())

    def opened(self, source: Source) -> bool:
        """``source`` has been read; whether that was the last."""
        if source in self._waiting:
            self._waiting.remove(source)
        if not self._waiting:
            self.leave()
        return not self._waiting

    def leave(self) -> None:
        """Withdraw what is unread."""
        for source in self._waiting:
            CLAIMS.forget(source.text, self._name)
        self._end()
