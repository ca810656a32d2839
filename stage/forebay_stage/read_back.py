"""Compares what a destination holds with the file that was written there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forebay_stage.errors import DestinationFailed

__all__ = ["check_same"]

PIECE_BYTES = 8 << 20  # in memory twice


def check_same(place: str, path: Path, size: int | None, read: Callable[[int, int], bytes]) -> int:
    """Compare byte by byte; returns the size. ``size`` and ``read(offset, length)`` are the destination's. Raises ``DestinationFailed``."""
    step = "run the same command again: this shard is written once more; if the error comes back, the storage loses or changes bytes"
    expected = path.stat().st_size
    if size != expected:
        raise DestinationFailed(f"{place}: {expected} bytes were written, and the destination has {size}", next_step=step)
    with path.open("rb") as file:
        offset = 0
        while piece := file.read(PIECE_BYTES):
            if read(offset, len(piece)) != piece:
                last = offset + len(piece) - 1
                raise DestinationFailed(f"{place}: bytes {offset} to {last} are not those that were written", next_step=step)
            offset += len(piece)
    return expected
