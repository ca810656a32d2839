"""The last quarter of an hour in a few levels, one row every 5 s: what the page draws as curves, also after it was loaded anew. Pure.

Rates are of the 5 s before a row. What training processes tell is of their last minute, as they tell it every 10 s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_proxy.telemetry.levels import SILENT_S, worst_share

__all__ = ["COLUMNS", "EVERY_S", "KEPT", "History", "Totals", "samples_rate"]

EVERY_S = 5.0
KEPT = 180  # rows: 15 minutes, some 60 kB
COLUMNS = ("at", "stall_share", "samples_s", "origin_bytes_s", "sent_bytes_s", "hit_ratio", "lead_s")

Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the sidecar started."""

    origin_bytes: int = 0
    sent_bytes: int = 0
    hit_bytes: int = 0


class History:
    """A ring of rows. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float], now: Callable[[], float]) -> None:
        """``clock``: seconds that never go back; ``now``: seconds since the epoch, as people read times."""
        self._clock = clock
        self._now = now
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._before: tuple[float, Totals] | None = None

    def __repr__(self) -> str:
        return f"<History {len(self._rows)} rows>"

    @property
    def is_due(self) -> bool:
        """Whether the last row is 5 s old; a tick that comes a little early counts."""
        return self._before is None or self._clock() - self._before[0] >= EVERY_S - 0.1

    def note(self, totals: Totals, meters: Sequence[Mapping[str, Any]], least_lead_s: float | None) -> None:
        """One row more. ``meters`` are the rows of ``MeterBoard``; ``least_lead_s``: None while nobody has a plan."""
        now = self._clock()
        before_at, before = self._before or (now, totals)
        self._before = now, totals
        seconds, sent = now - before_at, totals.sent_bytes - before.sent_bytes
        if seconds <= 0:
            return  # the first look: a rate needs two
        self._rows.append((
            round(self._now(), 1), worst_share(meters), samples_rate(meters), (totals.origin_bytes - before.origin_bytes) / seconds,
            sent / seconds, min(1.0, (totals.hit_bytes - before.hit_bytes) / sent) if sent > 0 else None, least_lead_s,
        ))  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """``GET /v1/history``, the oldest row first; null: nobody told, or nothing was sent."""
        return {"every_s": EVERY_S, "columns": list(COLUMNS), "rows": [list(row) for row in self._rows]}

    def last(self) -> list[float | None] | None:
        """The newest row."""
        return list(self._rows[-1]) if self._rows else None


def samples_rate(meters: Sequence[Mapping[str, Any]]) -> float | None:
    """Samples a second of all processes that train now, over their last minute; None while none tells."""
    told = [row["lately"] for row in meters if not row.get("ended") and row.get("silent_s", 0.0) <= SILENT_S and row["lately"]["wall_s"]]
    return sum(lately["samples"] / lately["wall_s"] for lately in told) if told else None
