"""How much of its configured size the cache may use now, given what other programs leave free and what the disk refused. Pure.

The sidecar reads the file system's free bytes once a second. The cache may hold what it holds already, plus the free bytes above the floor.

The free-space figure does not show a quota. A disk may also be full for us before it is full (reserved blocks, or another program that
writes between two measurements). So after a refusal the cache keeps a *ceiling*: the bytes that it held at the refusal. Below it,
segments replace one another instead of failing. The ceiling ends after ``CEILING_S``, or as soon as the file system shows more room.

The capacity only limits new grants. Bytes held above it are removed step by step, and meanwhile nothing is granted.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Headroom"]

MARGIN_BYTES = 2 * 2**20  # below the bytes held at a refusal: the index needs room to record what leaves
LIFT_BYTES = 8 * 2**20  # a segment more room than at the refusal; smaller changes come from the index and from other programs
CEILING_S = 300.0  # a quota is rarely raised, and each try stops storing for a minute


class Headroom:
    """The capacity at each moment. Not thread-safe: used on the event loop alone."""

    def __init__(self, configured_bytes: int, floor_bytes: int, effective_bytes: int, clock: Callable[[], float]) -> None:
        """``floor_bytes`` of the disk stay free; ``effective_bytes`` is what fitted at the start."""
        self.configured_bytes = configured_bytes
        self.floor_bytes = floor_bytes
        self._fits_bytes = effective_bytes  # according to the free-space figure
        self._ceiling_bytes: int | None = None
        self._ours_at_refusal: int | None = None  # free and held bytes together, which our own actions do not change: the least since then
        self._until = 0.0
        self._clock = clock

    def __repr__(self) -> str:
        ceiling = "" if self._ceiling_bytes is None else f", the disk refused beyond {self._ceiling_bytes}"
        return f"<Headroom {self.capacity_bytes} of {self.configured_bytes} bytes{ceiling}>"

    @property
    def capacity_bytes(self) -> int:
        """The present bound, between 0 and the configured size."""
        fits = min(self.configured_bytes, self._fits_bytes)
        return max(0, fits if self._ceiling_bytes is None else min(fits, self._ceiling_bytes))

    def looked(self, free_bytes: int | None, held_bytes: int, size_bytes: int = 0) -> None:
        """Take a measurement of the file system.

        Args:
            free_bytes: Bytes that are free for us; None if the file system does not say (ramfs).
            held_bytes: At least so many bytes of the disk were ours then.
            size_bytes: The size of the file system, if known. The ledger may count more bytes than the disk has (shared or packed
                blocks); room beyond this size does not exist.
        """
        if free_bytes is None:
            self._fits_bytes = self.configured_bytes
        else:
            ours_bytes = free_bytes + held_bytes
            self._fits_bytes = (min(ours_bytes, size_bytes) if size_bytes else ours_bytes) - self.floor_bytes
            if self._ours_at_refusal is None:
                self._ours_at_refusal = ours_bytes
            self._ours_at_refusal = min(self._ours_at_refusal, ours_bytes)
            if ours_bytes >= self._ours_at_refusal + LIFT_BYTES:
                self._ceiling_bytes = None
        if self._clock() >= self._until:
            self._ceiling_bytes = None

    def refused(self, held_bytes: int) -> None:
        """Note that the disk refused to give more while it held ``held_bytes`` of ours."""
        self._until = self._clock() + CEILING_S
        if self._ceiling_bytes is None:
            self._ours_at_refusal = None
        learned = max(0, held_bytes - MARGIN_BYTES)
        self._ceiling_bytes = learned if self._ceiling_bytes is None else min(self._ceiling_bytes, learned)
