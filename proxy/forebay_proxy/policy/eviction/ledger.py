"""The books of the cache's bytes: what is reserved, stored and doomed, and which victims a new grant needs. Pure.

The invariant, after every call: ``stored + reserved + doomed + overhead <= capacity``, all in allocated bytes. (While a shrunk capacity
is being worked off the left side may be larger; then nothing is granted.)

Theory of operation. Bytes are reserved *before* they are asked of an origin. ``reserve`` takes what is free and, where that is not enough,
names victims: their bytes turn from stored to doomed at once, and from doomed to reserved when the caller has removed them (``vacated``).
No byte is promised twice, and no moment exists in which more is on the disk than the sum says. A grant ends in ``commit`` (bytes landed:
stored) or in ``release``. The shape is bazel-remote's Reserve/Add/Unreserve; the doomed state is ours.

The ledger hears of the disk a moment late: threads allocate and free blocks, and tell afterwards. So ``held_bytes`` is what the disk holds
of ours at least: no block counts while it is being allocated, cut or removed. Whoever compares it with the file system's free bytes, which
a thread counts too, takes the least of it over the time that took (``watch``).

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from forebay_proxy.core.errors import CacheFull

__all__ = ["OVERHEAD_STEP_BYTES", "Grant", "Ledger", "Victim", "chosen"]

OVERHEAD_STEP_BYTES = 2**20  # the index grows by pages of 4 KiB; a step keeps the figure ahead of it between two measurements

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Victim(Generic[S]):
    """Something that may leave: ``subject`` is the caller's own handle, ``bytes`` what its leaving frees."""

    subject: S
    bytes: int


@dataclass(slots=True, eq=False)
class Grant(Generic[S]):
    """A right to ``bytes`` of disk. ``owed`` of them are still held by ``victims`` that the caller must remove first."""

    bytes: int
    victims: list[Victim[S]] = field(default_factory=list)
    owed: int = 0
    on_disk: bool = False  # its blocks are allocated
    closed: bool = False


class Ledger(Generic[S]):
    """Four sums and a bound; see the module's text for the rules."""

    def __init__(self, capacity_bytes: int) -> None:
        self.configured_bytes = capacity_bytes
        self.capacity_bytes = capacity_bytes  # effective: what others on the disk leave us
        self.stored_bytes = 0
        self.reserved_bytes = 0
        self.doomed_bytes = 0
        self.overhead_bytes = 0
        self.peak_bytes = 0
        self.unallocated_bytes = 0  # of the reserved ones: promised, and the disk still counts them as free
        self.least_bytes = 0  # that the disk has held of ours since ``watch``
        self._not_yet_bytes = 0  # of the overhead: set aside for what comes, and not on the disk
        self._measured_bytes = 0  # what the overhead really was when it was last looked at, without what is being swept

    def __repr__(self) -> str:
        mib = 2**20
        return (
            f"<Ledger {self.used_bytes / mib:.1f}/{self.capacity_bytes / mib:.1f} MiB: stored {self.stored_bytes / mib:.1f}, "
            f"reserved {self.reserved_bytes / mib:.1f}, doomed {self.doomed_bytes / mib:.1f}, overhead {self.overhead_bytes / mib:.1f}>"
        )

    @property
    def used_bytes(self) -> int:
        """Stored, reserved, doomed and overhead: never above the capacity, but while a capacity that shrank is worked off."""
        return self.stored_bytes + self.reserved_bytes + self.doomed_bytes + self.overhead_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that a grant can have without a victim."""
        return max(0, self.capacity_bytes - self.used_bytes)

    def grantable_bytes(self, leased_bytes: int) -> int:
        """Room that could be made: everything but overhead, reserved, doomed and leased."""
        return max(0, self.capacity_bytes - self.overhead_bytes - self.reserved_bytes - self.doomed_bytes - leased_bytes)

    @property
    def held_bytes(self) -> int:
        """What the disk holds of ours at least."""
        return self.stored_bytes + self.reserved_bytes - self.unallocated_bytes + self._measured_bytes

    def watch(self) -> None:
        """From here on ``least_bytes`` is the least that the disk holds of ours."""
        self.least_bytes = self.held_bytes

    def allocated(self, grant: Grant[S]) -> None:
        """The disk has given the blocks of ``grant``."""
        grant.on_disk = True
        self.unallocated_bytes -= grant.bytes

    def freeing(self, grant: Grant[S]) -> None:
        """The disk begins to take blocks of ``grant`` back."""
        if grant.on_disk:
            grant.on_disk = False
            self.unallocated_bytes += grant.bytes
            self._changed()

    def reserve(self, size: int, leaving: Callable[[], Iterable[Victim[S]]]) -> Grant[S]:
        """Promise ``size`` bytes, taking victims from ``leaving()`` in its order where free room does not do.

        Raises ``CacheFull`` with the numbers, and changes nothing, when that is not enough.
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
        """The victims of ``grant`` are gone from the disk: what they owed it is reserved now, the rest of their bytes is free."""
        self.doomed_bytes -= sum(victim.bytes for victim in grant.victims)
        self.reserved_bytes += grant.owed
        self.unallocated_bytes += grant.owed
        grant.victims.clear()
        grant.owed = 0
        self._changed()

    def stayed(self, grant: Grant[S], victim: Victim[S]) -> None:
        """``victim`` could not be removed: it is stored again, and the grant must be released (it is smaller than promised)."""
        grant.victims.remove(victim)
        self.doomed_bytes -= victim.bytes
        self.stored_bytes += victim.bytes
        lost = min(grant.owed, victim.bytes)
        grant.owed -= lost
        grant.bytes -= lost
        self._changed()

    def part(self, grant: Grant[S], sizes: Sequence[int]) -> list[Grant[S]]:
        """Grants of ``sizes``, which are all of ``grant``, instead of it; its victims are gone."""
        assert sum(sizes) == grant.bytes, "nothing of it is lost"
        assert not grant.owed, "its victims are gone"
        assert not grant.on_disk, "nothing of it is allocated"
        grant.closed = True
        return [Grant(size) for size in sizes]

    def commit(self, grant: Grant[S]) -> None:
        """The bytes of ``grant`` are on the disk to stay."""
        self._close(grant)
        self.reserved_bytes -= grant.bytes
        self.stored_bytes += grant.bytes
        self._changed()

    def release(self, grant: Grant[S]) -> None:
        """Give a grant back. Only once its victims are gone, or were never needed."""
        self._close(grant)
        self.reserved_bytes -= grant.bytes
        self._changed()

    def _close(self, grant: Grant[S]) -> None:
        assert not grant.closed, "a grant ends once"
        assert not grant.owed, "a grant ends after its victims"
        grant.closed = True
        if not grant.on_disk:
            self.unallocated_bytes -= grant.bytes

    def doom(self, size: int) -> None:
        """Stored bytes are about to be removed for another reason than a grant (stale, evicted by hand, shrinking)."""
        self.stored_bytes -= size
        self.doomed_bytes += size
        self._changed()

    def gone(self, size: int) -> None:
        """Doomed bytes are off the disk."""
        self.doomed_bytes -= size
        self._changed()

    def spared(self, size: int) -> None:
        """Doomed bytes could not be removed."""
        self.doomed_bytes -= size
        self.stored_bytes += size
        self._changed()

    def found(self, size: int) -> None:
        """At start: bytes the disk already holds for shards."""
        self.stored_bytes += size
        self._changed()

    def measured_overhead(self, size: int, swept: int = 0, ahead: int = 0) -> None:
        """What index, log, lock and directories hold now, rounded up to the next step and one more for what comes before the next look;
        ``swept`` of it are being removed. ``ahead``: a single commit may add so much, of which the whole steps are set aside too.
        """
        self.overhead_bytes = (size // OVERHEAD_STEP_BYTES + 2 + ahead // OVERHEAD_STEP_BYTES) * OVERHEAD_STEP_BYTES
        self._not_yet_bytes = self.overhead_bytes - size
        self._measured_bytes = size - swept
        self._changed()

    def excess_bytes(self) -> int:
        """How far the sums stand above a capacity that shrank."""
        return max(0, self.used_bytes - self.doomed_bytes - self.capacity_bytes)

    def pop_peak(self) -> int:
        """The most that was on the disk since the last call, reserved bytes among it. What is set aside for an overhead that grows can
        take the sums above the bound until its victims have left, but nothing of it is on the disk."""
        peak, self.peak_bytes = self.peak_bytes, self.used_bytes - self._not_yet_bytes
        return peak

    def _changed(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.used_bytes - self._not_yet_bytes)
        self.least_bytes = min(self.least_bytes, self.held_bytes)


def chosen(missing: int, leaving: Callable[[], Iterable[Victim[S]]]) -> list[Victim[S]]:
    """As many of ``leaving()``, in its order, as hold ``missing`` bytes; all of them where that is not enough."""
    victims: list[Victim[S]] = []
    for victim in leaving():
        victims.append(victim)
        missing -= victim.bytes
        if missing <= 0:
            break
    return victims
