"""What rows and files say to each other at a start: which claims hold, what must leave. Blocking; owns nothing.

Bytes are written before their claim is committed, and a claim is withdrawn before its bytes are punched. So after a kill at any instant
every claim has its bytes, and what is allocated without a claim is garbage: a row without its file is dropped, a file without its row is
removed, an allocated range without a claim is punched. A file that a passed descriptor still holds is left as it is, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forebay_proxy import fileio
from forebay_proxy.directory import Scan, StoredFile
from forebay_proxy.fallocate import Abilities
from forebay_proxy.row import Row
from forebay_proxy.segments import SEGMENT_BYTES, allocated, segment_span

__all__ = ["Recovered", "recover", "remove_stuck"]


@dataclass(slots=True)
class Recovered:
    """``stuck``: files that should be gone but are held by a passed descriptor or cannot be removed, with their allocated bytes."""

    rows: list[Row] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    removed: int = 0
    punched_bytes: int = 0
    stuck: dict[str, int] = field(default_factory=dict)


def recover(rows: Iterable[Row], scan: Scan, directory: int, abilities: Abilities) -> Recovered:
    """Make files and rows agree. ``directory``: the open folder of shard files. Later rows of one key win."""
    result = Recovered()
    files = dict(scan.files)
    for row in {row.key: row for row in rows}.values():
        file = files.get(row.key)
        if file is None or not _fits(row, file):
            result.dropped.append(row.key)
            continue
        del files[row.key]
        kept = _tidy(row, file, directory, abilities)
        result.rows.append(row)
        result.allocated[row.key] = kept
        result.punched_bytes += file.allocated - kept
    result.stuck = remove_stuck({key: file.allocated for key, file in files.items()}, directory, abilities)
    result.removed = len(files) - len(result.stuck)
    return result


def remove_stuck(files: dict[str, int], directory: int, abilities: Abilities) -> dict[str, int]:
    """Remove files by key; those that could not be, with their allocated bytes."""
    stuck = {}
    for key, size in files.items():
        try:
            fileio.unlink(key, directory, abilities)
        except FileNotFoundError:
            continue
        except (fileio.Leased, OSError):  # a disk that fails here must not keep us from starting
            stuck[key] = size
    return stuck


def _fits(row: Row, file: StoredFile) -> bool:
    """Whether the file can hold what is claimed: a file cut short by somebody else holds nothing we could name."""
    if row.length is not None:
        return file.size == row.length
    claimed = [index for index, value in enumerate(row.sums) if value]
    return not claimed or claimed[-1] * SEGMENT_BYTES < file.size


def _tidy(row: Row, file: StoredFile, directory: int, abilities: Abilities) -> int:
    """Punch what is allocated without a claim; what the file allocates then."""
    claimed = sum(allocated(segment_span(index, row.length)[1]) for index, value in enumerate(row.sums) if value)
    if not abilities.punch or file.allocated <= claimed:
        return file.allocated
    try:
        fileio.punch(row.key, directory, None, list(_unclaimed(row, file.size)), abilities)
        return os.stat(row.key, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    except (fileio.Leased, OSError):
        return file.allocated


def _unclaimed(row: Row, size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of each run without claims, in order."""
    first = 0
    for index, value in enumerate(row.sums):
        if value:
            if index * SEGMENT_BYTES > first:
                yield first, index * SEGMENT_BYTES - first
            first = (index + 1) * SEGMENT_BYTES
    if first < size:
        yield first, size - first
