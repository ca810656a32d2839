"""What people are told that something is amiss. Pure but for a logger.

``Troubles``: that others take the cache's disk, and that shards pass by the cache. Both cost speed and no byte, so nothing fails, and
nobody would learn of either. A look each second; each trouble has one line in the log when it begins, one when it is over, and a sentence
for ``/v1/status`` while it lasts.

``RecentErrors``: the last errors that clients were given, in words and with their times. A number of errors tells nobody which; the log has
them all, but who asks ``forebay status`` at night wants the last few here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from forebay_proxy.core.events import RequestFailed
from forebay_proxy.core.facts.requests import Aborted, NotTar
from forebay_proxy.core.quantities import format_size
from forebay_proxy.telemetry.counters import ORDINARY

__all__ = ["RecentErrors", "Troubles"]

log = logging.getLogger("forebay")

SQUEEZED, EASED = 0.9, 0.95  # of the most there was: between them it stays as it was told, so that a disk that breathes is no news
QUIET_S = 60.0  # without a request that passed by
NORMAL = "normal"


class Troubles:
    """Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float], segment_bytes: int, bypassed: Callable[[], int]) -> None:
        """``segment_bytes``: what must fit for anything to be stored. ``bypassed``: how many requests passed by since the start."""
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._bypassed = bypassed
        self._most_bytes = 0  # the cache could use; while it is squeezed: before that
        self._squeezed = ""
        self._passed: deque[tuple[float, int]] = deque()  # looks of the last minute that found some: when, how many
        self._counted = 0  # that had passed by at the last look
        self._passing = False
        self._why = ""

    def __repr__(self) -> str:
        return f"<Troubles {self.rows()}>"

    def look(self, effective_bytes: int, disk_state: str, disk_reason: str) -> None:
        """Once a second: what the cache may use now, and how its disk is."""
        self._look_at_room(effective_bytes)
        self._look_at_passing(disk_state, disk_reason)

    def rows(self) -> list[str]:
        """``troubles`` of ``/v1/status``: a sentence each, none where all is well."""
        found = [self._squeezed] if self._squeezed else []
        if self._passing and self._passed:
            found.append(f"{sum(count for _, count in self._passed)} requests of the last minute were not stored: {self._why}")
        return found

    def _look_at_room(self, effective_bytes: int) -> None:
        was = bool(self._squeezed)
        if effective_bytes >= (EASED if was else SQUEEZED) * self._most_bytes:
            self._most_bytes, self._squeezed = max(effective_bytes, 0 if was else self._most_bytes), ""
            if was:
                log.info("the cache's disk has room again: the cache may use %s", format_size(effective_bytes))
            return
        hardly = "; hardly anything is stored" if effective_bytes < self._segment_bytes else ""
        self._squeezed = (
            f"other programs fill the cache's disk: of {format_size(self._most_bytes)} the cache may use {format_size(effective_bytes)} now"
            f"{hardly}; make room there, or move the cache (--cache-dir)"
        )
        if not was:
            log.warning("%s", self._squeezed)

    def _look_at_passing(self, disk_state: str, disk_reason: str) -> None:
        now, bypassed = self._clock(), self._bypassed()
        if bypassed > self._counted:
            self._passed.append((now, bypassed - self._counted))
            self._counted = bypassed
        while self._passed and now - self._passed[0][0] > QUIET_S:
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


KEPT = 10  # a screen
LATELY_S = 60.0
LEFT = "client_gone"
NOT_TAR = "no tar"


class RecentErrors:
    """The last ``KEPT`` of them. The same one over and over is one row with a count. Not thread-safe: the event loop's only."""

    kinds = (RequestFailed, Aborted, NotTar)

    def __init__(self, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """``clock``: seconds that never go back; ``now``: seconds since the epoch, as people read times."""
        self._clock = clock
        self._now = now
        self._last_of_shard = float("-inf"), ""  # on the clock
        self._rows: deque[dict[str, object]] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"<RecentErrors {len(self._rows)}>"

    def listen(self, event: RequestFailed | Aborted | NotTar) -> None:
        if isinstance(event, RequestFailed):
            if event.code not in ORDINARY:
                self._note(str(event.code), event.error or "no reason was given", event.job)
        elif isinstance(event, Aborted):
            if event.reason != LEFT:
                self._note("cut", event.cause or event.reason, event.job)
        else:
            self._note(NOT_TAR, f"shard {event.shard}: {event.why}", event.job)

    def rows(self) -> list[dict[str, object]]:
        """``recent_errors`` of ``/v1/status``, the newest first: ``at`` (the last time), ``what`` (a status, "cut", "no tar"), and more."""
        return [dict(row) for row in reversed(self._rows)]

    def lately(self) -> tuple[str, float] | None:
        """The last error of a shard, if it came within a minute, and how many seconds ago. A mistyped path is none: nobody read by it."""
        at, error = self._last_of_shard
        return (error, self._clock() - at) if self._clock() - at < LATELY_S else None

    def _note(self, what: str, error: str, job: str) -> None:
        if error.startswith("shard "):
            self._last_of_shard = self._clock(), error
        for row in self._rows:
            if (row["what"], row["error"], row["job"]) == (what, error, job):
                self._rows.remove(row)
                self._rows.append({**row, "at": self._now(), "count": int(str(row["count"])) + 1})
                return
        self._rows.append({"at": self._now(), "what": what, "error": error, "job": job, "count": 1})
