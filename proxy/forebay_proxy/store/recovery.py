"""Compares index rows with files at a start: which claims hold, what must be removed, and what to report. Pure: no I/O.

Bytes are written before their claim is committed, and a claim is withdrawn before its bytes are punched. So after a kill every claim has
its bytes, and allocated space without a claim is garbage. A row without its file is dropped, a file without its row is removed, and an
allocated range without a claim is punched. Removing takes half a millisecond per segment, so ``garbage`` does it while the sidecar serves.
Until then garbage counts against the bound.

Files may also have been restored from a copy, in place, during the same boot; then the rows do not describe them. A file whose times were
set, or that changed long after its row was committed, is doubted: its row is kept without the boot, so each segment is verified before
its first use. A fetch or an eviction that a kill interrupted may look the same, and costs the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.directory import Scan, StoredFile
from forebay_proxy.store.index.row import Row

__all__ = ["StartReport", "describe", "recover"]

Range = tuple[int, int]  # offset and length in bytes
# A row is committed within 0.1 s of its write. If a range is written or punched later without a commit (a segment being fetched at a kill,
# an eviction on a slow disk), its shard is doubted for nothing: one checksum per segment. If a file is restored by hand within this time of
# its row, it is trusted: wrong bytes. So the time is short.
_LATER_S = 2.0
_NAMES_SHOWN = 8


@dataclass(slots=True)
class StartReport:
    """What a start found.

    ``rows`` are those that hold, with the bytes ``allocated`` for each one's file. ``dropped`` rows have no file. ``doubted`` rows stay,
    but another program changed their file. ``garbage`` are files without a row, with their allocated bytes. ``unclaimed`` are ranges to
    punch in files that stay. Garbage and unclaimed bytes count as overhead until they are gone.
    """

    rows: list[Row] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    doubted: list[str] = field(default_factory=list)
    garbage: dict[str, int] = field(default_factory=dict)
    unclaimed: dict[str, list[Range]] = field(default_factory=dict)
    unclaimed_bytes: int = 0
    segments_without_file: int = 0  # claimed by the dropped rows
    rows_refused: int = 0
    unknown: list[str] = field(default_factory=list)  # names that are not ours: left alone, counted as overhead
    notices: list[str] = field(default_factory=list)


def recover(rows: Iterable[Row], scan: Scan, committed_at: Mapping[str, float], layout: SegmentLayout) -> StartReport:
    """Decide which rows hold and what must be removed. Later rows of a key win. ``committed_at``: wall-clock seconds by key."""
    result = StartReport(unknown=scan.unknown)
    files = dict(scan.files)
    for row in {row.key: row for row in rows}.values():
        file = files.get(row.key)
        if file is None or not _fits(row, file, layout):
            result.dropped.append(row.key)
            result.segments_without_file += row.claimed
            continue
        del files[row.key]
        if file.retouched or file.changed_at > committed_at.get(row.key, 0.0) + _LATER_S:
            result.doubted.append(row.key)
            result.rows.append(replace(row, boot=""))
        else:
            result.rows.append(row)
        result.allocated[row.key] = file.allocated
        surplus = file.allocated - layout.stored_bytes(row.sums, row.version.length)
        if surplus > 0:
            result.unclaimed[row.key] = list(_unclaimed(row, file.size, layout))
            result.unclaimed_bytes += surplus
    result.garbage = {key: file.allocated for key, file in files.items()}
    return result


def _fits(row: Row, file: StoredFile, layout: SegmentLayout) -> bool:
    """Whether the file can hold what the row claims.

    A file that another program cut does not fit. Nor does a file with a second name: its other user may write to it.
    """
    if file.names != 1:
        return False
    if row.version.length is not None:
        return file.size == row.version.length
    return row.sums.last * layout.segment_bytes < file.size if row.sums else True


def _unclaimed(row: Row, size: int, layout: SegmentLayout) -> Iterator[Range]:
    """Each run of bytes without claims, in order."""
    first = 0
    for index, sums in row.sums.runs():
        begin, end = index * layout.segment_bytes, (index + len(sums)) * layout.segment_bytes
        if begin > first:
            yield first, begin - first
        first = end
    if first < size:
        yield first, size - first


def describe(loaded: StartReport) -> None:
    """Add one notice for each finding that a person may want to know."""
    counts = {
        "index rows refused as not ours": loaded.rows_refused,
        "index rows dropped, their file is gone or cut": len(loaded.dropped),
        "shard files changed by something else: what they hold is verified before its first use": len(loaded.doubted),
        "shard files that nothing claims: they are being removed": len(loaded.garbage),
        "unclaimed bytes in shard files: they are being freed": loaded.unclaimed_bytes,
    }
    loaded.notices += [f"cache directory: {count} {what}" for what, count in counts.items() if count]
    if loaded.unknown:
        names = ", ".join(ascii(name) for name in loaded.unknown[:_NAMES_SHOWN])
        more = f" and {len(loaded.unknown) - _NAMES_SHOWN} more" if len(loaded.unknown) > _NAMES_SHOWN else ""
        loaded.notices.append(f"cache directory: not ours, left alone, counted against the cache size: {names}{more}")
