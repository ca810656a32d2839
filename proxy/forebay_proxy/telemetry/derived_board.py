"""What training processes tell of their derived caches (``fb.memo``, ``fb.frames``): counts of each job, how much lies in which folder.
Pure.

Counts are what came on top (``MeterTold``), so they go on when a process or a worker ends. A folder is that of all processes that tell of
it: its size counts once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.requests import MeterTold
from forebay_proxy.telemetry.counters import heard
from forebay_proxy.wire.protocol.meter import DERIVED

__all__ = ["MOST_ROWS", "TOLD_S", "DerivedBoard"]

MOST_ROWS = 256  # jobs by kinds, those heard from last
MOST_FOLDERS = 64  # of one row: ranks may have one each
TOLD_S = 3600.0  # a folder that nobody has told of for so long may be gone


@dataclass(slots=True)
class _Derived:
    """One job's caches of one kind. ``folders``: bytes, limit and when they were told, by name."""

    counts: Counter[str] = field(default_factory=Counter)
    folders: OrderedDict[str, tuple[int, int, float]] = field(default_factory=OrderedDict)


class DerivedBoard:
    """Since the start of this sidecar, by job and kind. Not thread-safe: the event loop's only."""

    kinds = (MeterTold,)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rows: OrderedDict[tuple[str, str], _Derived] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DerivedBoard {len(self._rows)} rows>"

    def listen(self, event: Event) -> None:
        if type(event) is not MeterTold:
            return
        for kind in DERIVED:
            counts, folders = event.grown.derived.get(kind), event.grown.folders.get(kind, {})
            if counts is None and not folders:
                continue
            row = heard(self._rows, (event.reader.job, kind), _Derived, MOST_ROWS)
            row.counts.update(counts)
            for name, (held, limit) in folders.items():
                row.folders[name] = held, limit, self._clock()
                row.folders.move_to_end(name)
                if len(row.folders) > MOST_FOLDERS:
                    row.folders.popitem(last=False)

    def rows(self) -> list[dict[str, Any]]:
        """One object a job and kind: its counts, bytes on the disk and limit of all its folders, and those of each by its base name."""
        return [self._row(job, kind, row) for (job, kind), row in sorted(self._rows.items())]

    def levels(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Bytes on the disk and limit, by kind and job."""
        return {(row["kind"], row["job"]): (row["bytes"], row["limit_bytes"]) for row in self.rows()}

    def _row(self, job: str, kind: str, row: _Derived) -> dict[str, Any]:
        since = self._clock() - TOLD_S
        folders = [
            {"folder": name.rpartition("@")[0] or name, "bytes": held, "limit_bytes": limit}
            for name, (held, limit, told_at) in row.folders.items()
            if told_at >= since
        ]
        return {
            "job": job, "kind": kind, **{name: row.counts[name] for name in DERIVED[kind]},
            **{size: sum(each[size] for each in folders) for size in ("bytes", "limit_bytes")}, "folders": folders,
        }  # fmt: skip
