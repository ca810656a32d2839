"""Tells once, in the log and where people look, that others take the cache's disk, and that shards pass by the cache.

Pure but for its logger. Both cost speed and no byte, so nothing fails, and nobody would learn of either. A look each second; each trouble
has one line when it begins, one when it is over, and a sentence for ``/v1/status`` while it lasts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from forebay_proxy.core.events import Event, RequestDone, RequestOutcome
from forebay_proxy.core.quantities import format_size
from forebay_proxy.core.segments import SEGMENT_BYTES

__all__ = ["Troubles"]

log = logging.getLogger("forebay")

SQUEEZED, EASED = 0.9, 0.95  # of the most there was: between them it stays as it was told, so that a disk that breathes is no news
QUIET_S = 60.0  # without a request that passed by
MOST_COUNTED = 1000  # of a minute's requests: beyond, the number is as good as that
NORMAL = "normal"


class Troubles:
    """Not thread-safe: the event loop's only."""

    kinds = (RequestDone,)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most_bytes = 0  # the cache could use; while it is squeezed: before that
        self._squeezed = ""
        self._passed: deque[float] = deque(maxlen=MOST_COUNTED)  # when requests passed by
        self._passing = False
        self._why = ""

    def __repr__(self) -> str:
        return f"<Troubles {self.rows()}>"

    def listen(self, event: Event) -> None:
        if type(event) is RequestDone and event.outcome is RequestOutcome.BYPASS:
            self._passed.append(self._clock())

    def look(self, effective_bytes: int, disk_state: str, disk_reason: str) -> None:
        """Once a second: what the cache may use now, and how its disk is."""
        self._look_at_room(effective_bytes)
        self._look_at_passing(disk_state, disk_reason)

    def rows(self) -> list[str]:
        """``troubles`` of ``/v1/status``: a sentence each, none where all is well."""
        found = [self._squeezed] if self._squeezed else []
        if self._passing and self._passed:
            more = " or more" if len(self._passed) == MOST_COUNTED else ""
            found.append(f"{len(self._passed)}{more} requests of the last minute were not stored: {self._why}")
        return found

    def _look_at_room(self, effective_bytes: int) -> None:
        was = bool(self._squeezed)
        if effective_bytes >= (EASED if was else SQUEEZED) * self._most_bytes:
            self._most_bytes, self._squeezed = max(effective_bytes, 0 if was else self._most_bytes), ""
            if was:
                log.info("the cache's disk has room again: the cache may use %s", format_size(effective_bytes))
            return
        self._squeezed = (
            f"other programs fill the cache's disk: of {format_size(self._most_bytes)} the cache may use {format_size(effective_bytes)} now"
            f"{'; hardly anything is stored' if effective_bytes < SEGMENT_BYTES else ''}; make room there, or move the cache (--cache-dir)"
        )
        if not was:
            log.warning("%s", self._squeezed)

    def _look_at_passing(self, disk_state: str, disk_reason: str) -> None:
        now = self._clock()
        while self._passed and now - self._passed[0] > QUIET_S:
            self._passed.popleft()
        if not self._passed:
            if self._passing:
                self._passing = False
                log.info("no request has passed by the cache for %.0f s", QUIET_S)
            return
        if disk_state != NORMAL:
            self._why = f"the cache disk is {disk_state} ({disk_reason})"
        elif self._squeezed:
            self._why = "other programs fill the cache's disk"
        else:
            self._why = "the cache has no room for them: all of it is in use (a larger --cache-size, or fewer readers)"
        if not self._passing:
            self._passing = True
            if disk_state == NORMAL:  # else the log says so already
                log.warning("requests pass through memory and are not stored: %s", self._why)
