"""How much of its configured size the cache may use now: what others leave of the disk, and what the disk itself refused. Pure.

Two sources. The file system's free bytes, looked at once a second: we may hold what we hold already and what is free above the floor. What
we hold at that very moment is only known within a range, since threads allocate and free meanwhile; so the figure stays as it is while the
range allows that, and else goes to its nearer end. (Taken for exact, a segment that came between the two counts was room that did not
exist, and the cache ate into the floor.)

And refusals: a quota shows in no free-space figure, and a disk may be full for us before it is full (reserved blocks, a writer between
two looks). A refusal therefore teaches a *ceiling*: what we held when it came. Below the ceiling segments replace one another, instead of
each of them failing anew. It is lifted when the file system shows more room, or after a while, which doubles as long as the disk refuses
again soon after.

The capacity only ever says what may be *granted*; what is held above it is worked off, and meanwhile nothing is granted.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Headroom"]

MARGIN_BYTES = 2 * 2**20  # below what was held at a refusal: the index must be able to say what leaves
LIFT_BYTES = 16 * 2**20  # more room than at the refusal, by two segments: less is the breathing of the index and of other programs
FIRST_WAIT_S = 30.0  # a quota is rarely raised, and trying costs a segment that passes through memory
LAST_WAIT_S = 600.0


class Headroom:
    """Gives the capacity of the moment. Not thread-safe: the event loop's only."""

    def __init__(self, configured_bytes: int, floor_bytes: int, effective_bytes: int, clock: Callable[[], float]) -> None:
        """``floor_bytes`` of the disk stay free; ``effective_bytes`` is what fitted at the start."""
        self.configured_bytes = configured_bytes
        self.floor_bytes = floor_bytes
        self._fits_bytes = effective_bytes  # by the free-space figure
        self._ours_bytes: int | None = None  # free and held together, as last seen: our own doings do not change it
        self._ours_at_refusal: int | None = None
        self._ceiling_bytes: int | None = None
        self._until = 0.0
        self._wait_s = FIRST_WAIT_S
        self._clock = clock

    def __repr__(self) -> str:
        ceiling = "" if self._ceiling_bytes is None else f", the disk refused beyond {self._ceiling_bytes}"
        return f"<Headroom {self.capacity_bytes} of {self.configured_bytes} bytes{ceiling}>"

    @property
    def capacity_bytes(self) -> int:
        """The bound of the moment, between 0 and the configured one."""
        fits = min(self.configured_bytes, self._fits_bytes)
        return max(0, fits if self._ceiling_bytes is None else min(fits, self._ceiling_bytes))

    def looked(self, free_bytes: int | None, least_bytes: int, most_bytes: int, size_bytes: int = 0) -> None:
        """What the file system says is free for us, and what it held of ours then, at least and at most.

        ``free_bytes`` None: the file system does not say (ramfs). ``size_bytes`` is its whole size, where known: the ledger may count more
        bytes than the disk has (blocks are shared or packed), and room beyond that size does not exist.
        """
        if free_bytes is None:
            self._fits_bytes = self.configured_bytes
        else:
            ours_bytes = self._fits_bytes + self.floor_bytes
            self._ours_bytes = max(free_bytes + least_bytes, min(free_bytes + most_bytes, ours_bytes))
            if size_bytes:
                self._ours_bytes = min(self._ours_bytes, size_bytes)
            self._fits_bytes = self._ours_bytes - self.floor_bytes
        if self._ceiling_bytes is not None and (self._clock() >= self._until or self._has_grown()):
            self._ceiling_bytes = None

    def _has_grown(self) -> bool:
        if self._ours_bytes is None:
            return False
        if self._ours_at_refusal is None:
            self._ours_at_refusal = self._ours_bytes  # the first look after the refusal
        self._ours_at_refusal = min(self._ours_at_refusal, self._ours_bytes)
        return self._ours_bytes >= self._ours_at_refusal + LIFT_BYTES

    def refused(self, held_bytes: int) -> None:
        """The disk refused to give more while ``held_bytes`` of ours were on it."""
        now = self._clock()
        if self._ceiling_bytes is None:
            again = now < self._until + self._wait_s
            self._wait_s = min(LAST_WAIT_S, 2 * self._wait_s) if again and self._until else FIRST_WAIT_S
            self._until = now + self._wait_s
            self._ours_at_refusal = None
        learned = max(0, held_bytes - MARGIN_BYTES)
        self._ceiling_bytes = learned if self._ceiling_bytes is None else min(self._ceiling_bytes, learned)
