"""What a start found in the cache directory, and what is said of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay_proxy.store.index.row import Row

__all__ = ["StartReport", "describe"]

_NAMES_SHOWN = 8


@dataclass(slots=True)
class StartReport:
    """What a start found. ``allocated_bytes`` counts everything in the directory, ``allocated`` each kept shard's file."""

    rows: list[Row] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)  # names that are not ours: left alone, counted as overhead
    rows_refused: int = 0
    rows_without_file: int = 0
    segments_without_file: int = 0  # that those rows claimed
    rows_doubted: int = 0
    files_without_row: int = 0  # to be removed: counted as overhead until then
    unclaimed_bytes: int = 0  # in files that stay, to be freed: in ``allocated`` until then
    allocated_bytes: int = 0
    notices: list[str] = field(default_factory=list)


def describe(loaded: StartReport) -> None:
    """One line for each thing a person may want to know."""
    counts = {
        "index rows refused as not ours": loaded.rows_refused,
        "index rows dropped, their file is gone or cut": loaded.rows_without_file,
        "shard files changed by something else: what they hold is verified before its first use": loaded.rows_doubted,
        "shard files that nothing claims: they are being removed": loaded.files_without_row,
        "unclaimed bytes in shard files: they are being freed": loaded.unclaimed_bytes,
    }
    loaded.notices += [f"cache directory: {count} {what}" for what, count in counts.items() if count]
    if loaded.unknown:
        names = ", ".join(ascii(name) for name in loaded.unknown[:_NAMES_SHOWN])
        more = f" and {len(loaded.unknown) - _NAMES_SHOWN} more" if len(loaded.unknown) > _NAMES_SHOWN else ""
        loaded.notices.append(f"cache directory: not ours, left alone, counted against the cache size: {names}{more}")
