"""The last errors that clients were given, in words and with their times. Pure; a listener of events.

A number of errors tells nobody which; the log has them all, but who asks ``forebay status`` at night wants the last few here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from forebay_proxy.core.events import Aborted, Event, NotTar, RequestDone
from forebay_proxy.telemetry.counters import ORDINARY

__all__ = ["RecentErrors"]

KEPT = 10  # a screen
LATELY_S = 60.0
LEFT = "client_gone"
NOT_TAR = "no tar"


class RecentErrors:
    """The last ``KEPT`` of them. The same one over and over is one row with a count. Not thread-safe: the event loop's only."""

    kinds = (RequestDone, Aborted, NotTar)

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: seconds since the epoch, as people read times."""
        self._now = now
        self._rows: deque[dict[str, object]] = deque(maxlen=KEPT)

    def __repr__(self) -> str:
        return f"<RecentErrors {len(self._rows)}>"

    def listen(self, event: Event) -> None:
        if type(event) is RequestDone and event.code >= 400 and event.code not in ORDINARY:
            self._note(str(event.code), event.error or "no reason was given", event.job)
        elif type(event) is Aborted and event.reason != LEFT:
            self._note("cut", event.cause or event.reason, event.job)
        elif type(event) is NotTar:
            self._note(NOT_TAR, f"shard {event.shard}: {event.why}", event.job)

    def rows(self) -> list[dict[str, object]]:
        """``recent_errors`` of ``/v1/status``, the newest first: ``at`` (the last time), ``what`` (a status, "cut", "no tar"), and more."""
        return [dict(row) for row in reversed(self._rows)]

    def lately(self) -> tuple[str, float] | None:
        """The last error, if it came within a minute, and how many seconds ago."""
        ago = self._now() - float(str(self._rows[-1]["at"])) if self._rows else LATELY_S
        return (str(self._rows[-1]["error"]), max(0.0, ago)) if ago < LATELY_S else None

    def _note(self, what: str, error: str, job: str) -> None:
        for row in self._rows:
            if (row["what"], row["error"], row["job"]) == (what, error, job):
                self._rows.remove(row)
                self._rows.append({**row, "at": self._now(), "count": int(str(row["count"])) + 1})
                return
        self._rows.append({"at": self._now(), "what": what, "error": error, "job": job, "count": 1})
