"""Whether the cache directory can be written now. A failing disk means bypass, never a failed client. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable

from forebay_proxy import events
from forebay_proxy.errors import DiskFailed
from forebay_proxy.events import Events

__all__ = ["DiskHealth"]

log = logging.getLogger("forebay")

PAUSE_S = 10.0  # how long to leave a failing disk alone before the next segment tries it


class DiskHealth:
    """Normal until an operation fails; then down, and tried again every ``PAUSE_S``. One log line a change."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self._clock = clock
        self._events = events
        self._until = 0.0
        self.state = "normal"

    @property
    def usable(self) -> bool:
        """Whether the disk may be tried now."""
        return self.state == "normal" or self._clock() >= self._until

    def failed(self, error: DiskFailed) -> None:
        """An operation failed: bypass for a while."""
        self._events.emit(events.DiskFailed(error.operation, error.errno_name))
        if self.state == "normal":
            log.error("%s; shards are passed through memory until the directory works again", error)
        self.state = "down"
        self._until = self._clock() + PAUSE_S

    def worked(self) -> None:
        """A segment was stored."""
        if self.state != "normal":
            log.warning("the cache disk works again")
            self.state = "normal"
