"""Counts the cache's bytes (reserved, stored, doomed) and names the victims that a new grant needs. Pure.

The invariant after every call: ``stored + reserved + doomed + overhead <= capacity``, all in allocated bytes. If the capacity shrank, the
left side may be larger until enough has left; meanwhile nothing is granted.

Bytes are reserved *before* they are requested from an origin. ``reserve`` takes free bytes and, if they are not enough, names victims. The
victims' bytes turn from stored to doomed at once, and from doomed to reserved when the caller has removed them (``vacated``). So no byte is
promised twice, and the disk never holds more than the sum. A grant ends in ``commit`` (its bytes are stored) or ``release``.

Threads allocate and free blocks, and report afterwards. So ``held_bytes`` is a lower bound: blocks count neither while they are being
allocated nor while they are being removed. To compare it with the file system's free bytes, call ``watch`` first and use ``least_bytes``.

Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from forebay_proxy.core.errors import CacheFull

__all__ = ["OVERHEAD_STEP_BYTES", "Grant", "Ledger", "Victim", "chosen"]

OVERHEAD_STEP_BYTES = 2**20  # the index grows by pages of 4 KiB; the figure stays ahead of it between two measurements

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Victim(Generic[S]):
    """Something that may leave: ``subject`` is the caller's own handle, ``bytes`` is what its removal frees."""

    subject: S
    bytes: int


@dataclass(slots=True, eq=False)
class Grant(Generic[S]):
    """A right to ``bytes`` of disk. ``victims`` still hold ``owed`` of them; the caller must remove the victims first."""

    bytes: int
    victims: list[Victim[S]] = field(default_factory=list)
    owed: int = 0
    on_disk: bool = False  # its blocks are allocated
    closed: bool = False


class Ledger(Generic[S]):
    """Four sums and a bound; the module's docstring has the rules."""

    def __init__(self, capacity_bytes: int) -> None:
        self.configured_bytes = capacity_bytes
        self.capacity_bytes = capacity_bytes  # effective: what other programs leave us
        self.stored_bytes = 0
        self.reserved_bytes = 0
        self.doomed_bytes = 0
        self.overhead_bytes = 0
        self.peak_bytes = 0
        self.unallocated_bytes = 0  # the part of the reserved bytes that the disk still counts as free
        self.least_bytes = 0  # the smallest ``held_bytes`` since ``watch``
        self._not_yet_bytes = 0  # the part of the overhead that is set aside and not on the disk yet
        self._measured_bytes = 0  # the overhead as last measured, without files that are being removed

    def __repr__(self) -> str:
        mib = 2**20
        return (
            f"<Ledger {self.used_bytes / mib:.1f}/{self.capacity_bytes / mib:.1f} MiB: stored {self.stored_bytes / mib:.1f}, "
            f"reserved {self.reserved_bytes / mib:.1f}, doomed {self.doomed_bytes / mib:.1f}, overhead {self.overhead_bytes / mib:.1f}>"
        )

    @property
    def used_bytes(self) -> int:
        """Stored, reserved, doomed and overhead. Above the capacity only while a capacity that shrank is being worked off."""
        return self.stored_bytes + self.reserved_bytes + self.doomed_bytes + self.overhead_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that a grant can have without a victim."""
        return max(0, self.capacity_bytes - self.used_bytes)

    def grantable_bytes(self, leased_bytes: int) -> int:
        """Room that could be made: everything but overhead, reserved, doomed and leased bytes."""
        return max(0, self.capacity_bytes - self.overhead_bytes - self.reserved_bytes - self.doomed_bytes - leased_bytes)

    @property
    def held_bytes(self) -> int:
        """At least so many bytes of the disk are ours."""
        return self.stored_bytes + self.reserved_bytes - self.unallocated_bytes + self._measured_bytes

    def watch(self) -> None:
        """Start a new minimum: from now on ``least_bytes`` is the smallest ``held_bytes``."""
        self.least_bytes = self.held_bytes

    def allocated(self, grant: Grant[S]) -> None:
        """The disk has allocated the blocks of ``grant``."""
        grant.on_disk = True
        self.unallocated_bytes -= grant.bytes

    def freeing(self, grant: Grant[S]) -> None:
        """The disk begins to free the blocks of ``grant``."""
        if grant.on_disk:
            grant.on_disk = False
            self.unallocated_bytes += grant.bytes
            self._changed()

    def reserve(self, size: int, leaving: Callable[[], Iterable[Victim[S]]]) -> Grant[S]:
        """Promise ``size`` bytes. If the free bytes are not enough, victims are taken from ``leaving()`` in its order.

        Raises ``CacheFull``, with the numbers, if the victims are not enough either; nothing changes then.
        """
        missing = size - (self.capacity_bytes - self.used_bytes)
        victims = chosen(missing, leaving) if missing > 0 else []
        freed = sum(victim.bytes for victim in victims)
        if missing > freed:
            leaving_now = f"{freed} of them" if freed else "nothing of that"
            raise CacheFull(
                f"{size} bytes do not fit: {self.used_bytes} of {self.capacity_bytes} bytes are in use, and {leaving_now} may leave now"
            )
        self.stored_bytes -= freed
        self.doomed_bytes += freed
        owed = max(0, missing)
        self.reserved_bytes += size - owed
        self.unallocated_bytes += size - owed
        self._changed()
        return Grant(size, victims, owed)

    def vacated(self, grant: Grant[S]) -> None:
        """The victims of ``grant`` are removed: the bytes it needed are reserved now, the rest is free."""
        self.doomed_bytes -= sum(victim.bytes for victim in grant.victims)
        self.reserved_bytes += grant.owed
        self.unallocated_bytes += grant.owed
        grant.victims.clear()
        grant.owed = 0
        self._changed()

    def stayed(self, grant: Grant[S], victim: Victim[S]) -> None:
        """``victim`` could not be removed: it counts as stored again. The grant is smaller than promised and must be released."""
        grant.victims.remove(victim)
        self.doomed_bytes -= victim.bytes
        self.stored_bytes += victim.bytes
        lost = min(grant.owed, victim.bytes)
        grant.owed -= lost
        grant.bytes -= lost
        self._changed()

    def part(self, grant: Grant[S], sizes: Sequence[int]) -> list[Grant[S]]:
        """Split ``grant``, whose victims are removed, into grants of ``sizes``, which must add up to it."""
        assert sum(sizes) == grant.bytes, "the sizes must add up to the grant"
        assert not grant.owed, "the victims must be removed first"
        assert not grant.on_disk, "no block may be allocated yet"
        grant.closed = True
        return [Grant(size) for size in sizes]

    def commit(self, grant: Grant[S]) -> None:
        """The bytes of ``grant`` are on the disk and stay."""
        self._close(grant)
        self.reserved_bytes -= grant.bytes
        self.stored_bytes += grant.bytes
        self._changed()

    def release(self, grant: Grant[S]) -> None:
        """Give a grant back. Its victims must be removed first, unless it had none."""
        self._close(grant)
        self.reserved_bytes -= grant.bytes
        self._changed()

    def _close(self, grant: Grant[S]) -> None:
        assert not grant.closed, "a grant ends once"
        assert not grant.owed, "the victims must be removed first"
        grant.closed = True
        if not grant.on_disk:
            self.unallocated_bytes -= grant.bytes

    def doom(self, size: int) -> None:
        """Stored bytes are about to be removed for another reason than a grant: stale, evicted by a command, or a smaller capacity."""
        self.stored_bytes -= size
        self.doomed_bytes += size
        self._changed()

    def gone(self, size: int) -> None:
        """Doomed bytes are off the disk."""
        self.doomed_bytes -= size
        self._changed()

    def spared(self, size: int) -> None:
        """Doomed bytes could not be removed: they count as stored again."""
        self.doomed_bytes -= size
        self.stored_bytes += size
        self._changed()

    def found(self, size: int) -> None:
        """At the start: the disk already holds ``size`` bytes of shards."""
        self.stored_bytes += size
        self._changed()

    def measured_overhead(self, size: int, swept: int = 0, ahead: int = 0) -> None:
        """Set the overhead (index, log, lock, directories) from a measurement of ``size`` bytes.

        It is rounded up to the next step, plus one step for growth until the next measurement. ``swept`` bytes of it are being removed. A
        single commit may add ``ahead`` bytes; whole steps of it are set aside too.
        """
        self.overhead_bytes = (size // OVERHEAD_STEP_BYTES + 2 + ahead // OVERHEAD_STEP_BYTES) * OVERHEAD_STEP_BYTES
        self._not_yet_bytes = self.overhead_bytes - size
        self._measured_bytes = size - swept
        self._changed()

    def excess_bytes(self) -> int:
        """By how many bytes the sums exceed a capacity that shrank, without those that are leaving already."""
        return max(0, self.used_bytes - self.doomed_bytes - self.capacity_bytes)

    def pop_peak(self) -> int:
        """The most bytes on the disk since the last call, reserved bytes included.

        Bytes set aside for a growing overhead are left out: they may push the sums above the bound until victims have left, but are not on
        the disk.
        """
        peak, self.peak_bytes = self.peak_bytes, self.used_bytes - self._not_yet_bytes
        return peak

    def _changed(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes - self._not_yet_bytes)
        self.least_bytes = min(self.least_bytes, self.held_bytes)


def chosen(missing: int, leaving: Callable[[], Iterable[Victim[S]]]) -> list[Victim[S]]:
    """Victims from ``leaving()``, in its order, until they hold ``missing`` bytes; all of them if that is not enough."""
    victims: list[Victim[S]] = []
    for victim in leaving():
        victims.append(victim)
        missing -= victim.bytes
        if missing <= 0:
            break
    return victims
