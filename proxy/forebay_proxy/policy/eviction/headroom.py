"""How much of its configured size the cache may use now: what others leave of the disk, and what the disk itself refused. Pure.

The file system's free bytes are looked at once a second: the cache may hold what it holds already and what is free above the floor.

A quota shows in no free-space figure, and a disk may be full for us before it is full (reserved blocks, a writer between two looks). So a
refusal teaches a *ceiling*: what we held when it came. Below it segments replace one another, instead of each of them failing. It is lifted
after a while, and at once where the file system shows more room.

The capacity only ever says what may be *granted*; what is held above it is worked off, and meanwhile nothing is granted.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Headroom"]

MARGIN_BYTES = 2 * 2**20  # below what was held at a refusal: the index must be able to say what leaves
LIFT_BYTES = 8 * 2**20  # more room than at the refusal, by a segment: less is the breathing of the index and of other programs
CEILING_S = 300.0  # a quota is rarely raised, and each try stops storing for a minute


class Headroom:
    """Gives the capacity of the moment. Not thread-safe: the event loop's only."""

    def __init__(self, configured_bytes: int, floor_bytes: int, effective_bytes: int, clock: Callable[[], float]) -> None:
        """``floor_bytes`` of the disk stay free; ``effective_bytes`` is what fitted at the start."""
        self.configured_bytes = configured_bytes
        self.floor_bytes = floor_bytes
        self._fits_bytes = effective_bytes  # by the free-space figure
        self._ceiling_bytes: int | None = None
        self._ours_at_refusal: int | None = None  # free and held together, which our own doings do not change: the least seen since
        self._until = 0.0
        self._clock = clock

    def __repr__(self) -> str:
        ceiling = "" if self._ceiling_bytes is None else f", the disk refused beyond {self._ceiling_bytes}"
        return f"<Headroom {self.capacity_bytes} of {self.configured_bytes} bytes{ceiling}>"

    @property
    def capacity_bytes(self) -> int:
        """The bound of the moment, between 0 and the configured one."""
        fits = min(self.configured_bytes, self._fits_bytes)
        return max(0, fits if self._ceiling_bytes is None else min(fits, self._ceiling_bytes))

    def looked(self, free_bytes: int | None, held_bytes: int, size_bytes: int = 0) -> None:
        """What the file system says is free for us, and what it held of ours then, at least.

        ``free_bytes`` None: the file system does not say (ramfs). ``size_bytes`` is its whole size, where known: the ledger may count more
        bytes than the disk has (blocks are shared or packed), and room beyond that size does not exist.
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
        """The disk refused to give more while ``held_bytes`` of ours were on it."""
        self._until = self._clock() + CEILING_S
        if self._ceiling_bytes is None:
            self._ours_at_refusal = None
        learned = max(0, held_bytes - MARGIN_BYTES)
        self._ceiling_bytes = learned if self._ceiling_bytes is None else min(self._ceiling_bytes, learned)
