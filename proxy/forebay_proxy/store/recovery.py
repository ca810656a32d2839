"""What rows and files say to each other at a start: which claims hold, what must leave, and what is said of it.

Pure: it looks at nothing, and removes nothing.

Bytes are written before their claim is committed, and a claim is withdrawn before its bytes are punched. So after a kill at any instant
every claim has its bytes, and what is allocated without a claim is garbage: a row without its file is dropped, a file without its row is
removed, an allocated range without a claim is punched. Removing takes its time (half a millisecond a segment), so it is only decided here:
``garbage`` does it while the sidecar serves, and garbage counts against the bound until it is gone.

Files may also have been put back from a copy, in place, under this very boot. Then they are not those the rows speak of: times that were
set betray a copy with times, and a file that changed long after its row was committed was changed by another program. Such rows are kept
without their boot, so that each segment is verified before its first use. A fetch or an eviction that a kill interrupted may look the same,
and costs the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.directory import Scan, StoredFile
from forebay_proxy.store.index.row import Row

__all__ = ["StartReport", "describe", "recover"]

Range = tuple[int, int]  # offset and length in bytes
# A row is committed within 0.1 s of the write it tells of. A range that is written or punched later without another commit (a segment in
# the air at a kill, an eviction on a slow disk) makes a shard doubted for nothing, which costs a checksum of each segment once; a file put
# back by hand within this time of its row is trusted, which costs wrong bytes. So it is short.
_LATER_S = 2.0
_NAMES_SHOWN = 8


@dataclass(slots=True)
class StartReport:
    """What a start found: the ``rows`` that hold, with the bytes ``allocated`` for each one's file; and by key what does not hold.

    ``dropped`` rows have no file, ``doubted`` ones (which stay) a file that something else changed. ``garbage`` are files that nothing
    claims, with their allocated bytes, ``unclaimed`` ranges to punch in files that stay: counted as overhead until they are gone.
    """

    rows: list[Row] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    doubted: list[str] = field(default_factory=list)
    garbage: dict[str, int] = field(default_factory=dict)
    unclaimed: dict[str, list[Range]] = field(default_factory=dict)
    unclaimed_bytes: int = 0
    segments_without_file: int = 0  # that the dropped rows claimed
    rows_refused: int = 0
    unknown: list[str] = field(default_factory=list)  # names that are not ours: left alone, counted as overhead
    notices: list[str] = field(default_factory=list)


def recover(rows: Iterable[Row], scan: Scan, committed_at: Mapping[str, float], layout: SegmentLayout) -> StartReport:
    """Which rows hold, and what of the files must leave. Later rows of one key win. ``committed_at``: of each, by the wall clock."""
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
    """Whether the file can hold what is claimed: a file that another program cut short holds nothing that a row could name, and a file with
    a second name may be written by the user of that name.
    """
    if file.names != 1:
        return False
    if row.version.length is not None:
        return file.size == row.version.length
    return row.sums.last * layout.segment_bytes < file.size if row.sums else True


def _unclaimed(row: Row, size: int, layout: SegmentLayout) -> Iterator[Range]:
    """Each run without claims, in order."""
    first = 0
    for index, sums in row.sums.runs():
        begin, end = index * layout.segment_bytes, (index + len(sums)) * layout.segment_bytes
        if begin > first:
            yield first, begin - first
        first = end
    if first < size:
        yield first, size - first


def describe(loaded: StartReport) -> None:
    """One line for each thing a person may want to know."""
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
