"""One job's pass over one set: which shards it has read in the present and in the last epoch, told by readers or guessed. Pure.

The rule: a job reads each shard of a set once per epoch, in any order, and its readers are at most one epoch apart. A shard counts as
*read* if no reader of the job opens it again before the newest epoch is over.

- If readers tell their epoch, an opening belongs to that epoch. A shard read in the newest epoch but not in the one before counts as unread
  while some reader of the job is still in the older one.
- Otherwise an opening fills the older of the two epochs in which the shard was not opened. If both are filled, the next epoch begins.
- Two bounds end a wrong guess. A repeat begins no epoch until a quarter of the known shards is opened (eight ranks may all open the
  first shard). And when seven eighths of the last epoch's count are opened in the present one, the last one is over.

A shard takes some 70 bytes: its name is kept as a 64-bit hash. A collision is very unlikely, and costs one fetch at worst.
Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["UNTOLD", "Epoch", "EpochMarks"]

UNTOLD = -1  # the epoch of plans without one; if others tell theirs, it means the first epoch, which a process begins without a number
SEEN_ROUND = 2  # epochs that began while the sidecar watched: it may have seen only half of the one before
MOST_EARLY = 1 << 12  # more than a node has readers
FEWEST = 4  # shards that make an epoch; fewer may be ranks that all open the first shards
TELLING = 8  # openings after which it is clear whether two jobs share a group: by then two random orders have met
_NOW, _BEFORE = 1, 2  # bits of a mark: read in the present epoch, read in the one before


class EpochMarks:
    """Two bits per name: read in the present epoch, and read in the one before. Names never seen have none."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}  # hash of the name -> the number of the epoch when it was last noted, and its bits then
        self._epochs = 0

    def __len__(self) -> int:
        """How many names have been seen."""
        return len(self._read)

    def __contains__(self, name: str) -> bool:
        return hash(name) in self._read

    def __getitem__(self, name: str) -> int:
        noted = self._read.get(hash(name), 0)
        later = self._epochs - (noted >> 2)
        return 0 if later > 1 else (noted & 3) << later & 3

    def add(self, name: str, back: int) -> bool:
        """Note that ``name`` was read ``back`` epochs ago. Returns whether that changes its two bits."""
        before = self[name]
        mark = before | (1 << back if back < 2 else 0)
        self._read[hash(name)] = self._epochs << 2 | mark
        return mark != before

    def shift(self, epochs: int) -> None:
        """Begin a new epoch, ``epochs`` later than the present one."""
        self._epochs += epochs


class Epoch:
    """One job's pass over one set. ``epoch`` is the newest that has begun, as told or counted from 0."""

    def __init__(self, now: float) -> None:
        self.seen_at = now
        self.epoch = 0
        self.told = False
        self.marks = EpochMarks()
        self.opened = 0  # shards read in the present epoch
        self.shared = 0  # shards that another job of the same group has opened too
        self.began_at = now  # when the present epoch began
        self._last_whole = False  # whether the sidecar saw the epoch before
        self._last_opened = 0  # shards read in it
        self.went_round = False  # whether the last epoch was a real one; a few repeats among many shards may look like one
        self._rounds = 0  # the number of real epochs
        self._early: list[str] = []  # opened again by readers without an epoch, where others tell theirs: perhaps in the next epoch
        self._late_at = 0  # how many shards of the present epoch were opened when the last late opening of the epoch before came

    def read(self, name: str, epoch: int | None, running: Collection[int] = ()) -> None:
        """A reader opened the shard, in ``epoch`` if it told one. ``running`` are the epochs that readers of the job are in."""
        if epoch is not None:
            if epoch != self.epoch or not self.told:
                self.begin(epoch, running)
            back = self.epoch - epoch
        else:
            mark = self.marks[name]
            back = self._guess(mark)
            if self.told and mark & _NOW and len(self._early) < MOST_EARLY:
                self._early.append(name)
        if back:
            self._late_at = self.opened
        self.opened += self.marks.add(name, back) and not back

    def has_read(self, name: str, running: Collection[int] = ()) -> bool:
        """Whether no reader of the job opens the shard again in the epochs that have begun."""
        mark = self.marks[name]
        if not mark & _NOW:
            return False
        return bool(mark & _BEFORE) or not (self.told and self._last_whole and (self.epoch - 1 in running or UNTOLD in running))

    def waits_for(self, name: str, running: Collection[int], *, known_to_live: bool, known: bool) -> bool:
        """Whether the job may open a shard of its group again, or for the first time, at any later time.

        ``known``: another job has opened it. ``known_to_live``: a live job has opened it as a shard of this group.
        """
        if name in self.marks:
            return bool(self.marks[name] & (_NOW | _BEFORE)) or not self.went_round or self._has_late(running)
        if self._rounds >= SEEN_ROUND:
            return False
        return not known or self.shared > 0 or (known_to_live and self.opened < TELLING and not self._rounds)

    def _has_late(self, running: Collection[int]) -> bool:
        """Whether readers of the job may still be in the epoch before."""
        if self.told:
            return self.epoch - 1 in running or UNTOLD in running
        return self.opened - self._late_at < max(4, self._last_opened // 8)

    def begin(self, epoch: int, running: Collection[int] = ()) -> None:
        """A reader of the job told that it is in ``epoch``."""
        if not self.told:  # what was guessed so far becomes the epoch before
            later, self.epoch, self.told = 1 if len(self.marks) else 0, epoch, True
        elif self.epoch - epoch > 1 and not any(other > epoch + 1 for other in running):
            later, self.epoch = 8, epoch  # the job began again from an earlier epoch; what it read before does not count
        else:
            later = max(0, epoch - self.epoch)
            self.epoch += later
        self._shift(later)
        if later:
            early, self._early = self._early, []
            for name in early if later == 1 else ():  # a loader opens its first shard before it announces the others
                self.opened += self.marks.add(name, 0)

    def _guess(self, mark: int) -> int:
        """How many epochs ago this opening belongs, from the ``mark`` of its shard."""
        if self.told:  # this reader tells no epoch in a job where others do
            return 1 if self._last_whole and not mark & _BEFORE else 0
        if mark & _NOW:
            if self.opened * 4 >= len(self.marks):
                self.epoch += 1
                self._shift(1)
            return 0
        is_late = self._last_whole and not mark & _BEFORE and self.opened * 8 < self._last_opened * 7
        return 1 if is_late else 0

    def _shift(self, epochs: int) -> None:
        if epochs:
            self._last_whole = epochs == 1
            self.went_round = self._last_whole and (self.told or (self.opened >= FEWEST and self.opened * 2 >= len(self.marks)))
            self._rounds += self.went_round
            self._late_at = 0
            self.marks.shift(epochs)
            self._last_opened, self.opened = self.opened if self._last_whole else 0, 0
