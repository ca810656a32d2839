"""What a person looks for who comes later: when a job began, ended or was killed, when an origin was down, what was announced, and what
became of the cache disk. One line in words each, the newest ``KEPT``. Pure.

A look every few seconds compares how things stand with how they stood: no other part has to tell of anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay_proxy.core.quantities import format_duration

__all__ = ["Happenings"]

KEPT = 50  # lines of some 100 bytes
OUTAGE_S = 5.0  # of nothing but errors; a shorter one is a hiccup
NAMED = 4  # ranks in one line

Row = Mapping[str, Any]


class Happenings:
    """A ring of lines. Not thread-safe: the event loop's only."""

    def __init__(self, now: Callable[[], float]) -> None:
        """``now``: seconds since the epoch, as people read times."""
        self._now = now
        self._lines: deque[tuple[float, str]] = deque(maxlen=KEPT)
        self._processes: dict[str, str] = {}  # by reader: trains, silent or ended
        self._plans = set[tuple[str, int | None]]()
        self._down: dict[str, float] = {}  # origins that are, and for how long at the last look
        self._disk = "normal"

    def __repr__(self) -> str:
        return f"<Happenings {len(self._lines)}>"

    def rows(self) -> list[dict[str, object]]:
        """``events`` of ``/v1/status``, the newest first."""
        return [{"at": at, "what": what} for at, what in reversed(self._lines)]

    def note(self, what: str) -> None:
        self._lines.append((self._now(), what))

    def look(
        self, meters: Sequence[Row], progress: Sequence[Row], failing: Mapping[str, tuple[float, str]], disk_state: str, disk_reason: str
    ) -> None:
        """``meters``: of ``MeterBoard``, those that are silent too; ``progress``: of ``/v1/status``; ``failing``: origins that have given
        nothing but errors for so many seconds, and the last one.
        """
        self._look_at_processes(meters)
        plans = {(each["job"], each["epoch"]): each["length"] for each in progress}
        for (job, epoch), length in plans.items():
            if (job, epoch) not in self._plans:
                self.note(f"job {job} announced {length:,} shards{'' if epoch is None else f' of epoch {epoch}'}")
        self._plans = set(plans)
        for origin, (seconds, error) in failing.items():
            if seconds >= OUTAGE_S and origin not in self._down:
                self.note(f"every request to {origin} has failed for {format_duration(seconds)}: {error}")
            if seconds >= OUTAGE_S:
                self._down[origin] = seconds
        for origin in self._down.keys() - failing.keys():
            self.note(f"{origin} gives bytes again, after {format_duration(self._down.pop(origin))} or more")
        if disk_state != self._disk:
            self._disk = disk_state
            back = "is well again" if disk_state == "normal" else f"is {disk_state}: {disk_reason}; shards pass through memory"
            self.note(f"the cache disk {back}")

    def _look_at_processes(self, meters: Sequence[Row]) -> None:
        """A line a job for all that became of its processes since the last look."""
        states = {each["reader"]: "ended" if each["ended"] else "silent" if each["silent"] else "trains" for each in meters}
        jobs = dict[str, list[Row]]()
        for each in meters:
            jobs.setdefault(each["job"], []).append(each)
        for job, rows in jobs.items():
            fresh = [row for row in rows if row["reader"] not in self._processes]
            if fresh:
                self.note(f"job {job} {'began' if len(fresh) == len(rows) else 'goes on'}: {_ranks(fresh)}")
            back = [row for row in rows if self._became(row, states, "trains") and self._processes.get(row["reader"]) == "silent"]
            if back:
                self.note(f"job {job}, {_ranks(back)}: heard again")
            if lost := [row for row in rows if self._became(row, states, "silent")]:
                self.note(f"job {job}, {_ranks(lost)}: silent for a minute, and did not end: killed, or hung?")
            if any(self._became(row, states, "ended") for row in rows) and all(states[row["reader"]] == "ended" for row in rows):
                self.note(f"job {job} ended")
        self._processes = states

    def _became(self, row: Row, states: Mapping[str, str], state: str) -> bool:
        return states[row["reader"]] == state != self._processes.get(row["reader"])


def _ranks(rows: Sequence[Row]) -> str:
    ranks = list(dict.fromkeys(row["rank"] for row in rows))
    more = f" and {len(ranks) - NAMED} more" if len(ranks) > NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:NAMED])}{more}"
