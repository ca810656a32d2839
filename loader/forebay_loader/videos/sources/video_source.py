"""Room for frames: none is made that this process cannot have."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterator, Tuple

import numpy

from forebay_loader.videos.errors import UnsupportedVideo

__all__ = ["memory_bytes", "room_for"]


# How much memory this process may have: the machine's, or less where a container or a batch system gives less.
def memory_bytes(root: Path = Path("/")) -> int:
    """The smallest of the machine's memory and the limits of the control groups that this process is in, of version 2 and 1.

    ``root`` is where ``proc`` and ``sys`` lie. What is in use by others is not taken off: who frees what is not known here.
    """
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _limit_files(root):
        with suppress(OSError, ValueError):  # not there, or "max"
            found = min(found, int(path.read_text()))
    return found


def _limit_files(root: Path) -> Iterator[Path]:
    """Of each group and those around it. A container sees its own group as the root, whatever path /proc tells."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, path = [*line.split(":", 2), "", ""][:3]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        if number == "0" and not kinds:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in kinds.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        yield from (top.joinpath(*parts[:depth], name) for depth in range(len(parts) + 1))


def room_for(count: int, shape: Tuple[int, int, int]) -> Any:
    """``count`` frames of ``shape``, uint8, not filled. Raises ``UnsupportedVideo`` where they are more than the memory that this process
    may have: a size is a clip's own word, and a count may be that of all its frames."""
    wanted, there = count * shape[0] * shape[1] * shape[2], memory_bytes()
    if wanted <= there:
        try:
            return numpy.empty((count, *shape), numpy.uint8)
        except MemoryError:
            pass
    raise UnsupportedVideo(
        f"{count} frames of {shape[1]} x {shape[0]} pixels take {wanted / 1e9:.1f} GB, and there are {there / 1e9:.1f} GB here:"
        " ask for fewer, or for smaller ones (size=)"
    )
