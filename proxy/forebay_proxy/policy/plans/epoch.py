"""One job's way through one set: which of its shards were read in which of the last epochs, told or guessed. Pure.

The rule. A job reads each shard of a set once an epoch, in any order, by several readers of which some begin the next epoch while others
are still in the last one. A shard counts as *read* when nobody of the job opens it again before the newest epoch that has begun is over.

- Where readers tell their epoch, an opening belongs to that epoch. The pass is in the newest epoch told; a shard that was read in it, but
  not in the one before, is unread as long as some reader of the job is still in that one.
- Where nobody tells, an opening fills the oldest epoch, of the last and the present one, in which the shard has not been opened. Only
  when both are filled, the opening begins the next epoch: someone is ahead, and the shards that others have yet to open keep their place
  in the old one. (One epoch is all that readers of a job are apart; and the order of two openings of one shard is no matter.)
- Two things keep a wrong guess from lasting. A repeat begins no epoch before a quarter of the known shards was opened in the present
  one: eight ranks that peek at the same first shard are one opening. And once seven eighths of what the last epoch had are opened in
  the present one, the last one is over: what it lacks was never seen (a sidecar that started half-way), and is not waited for.

It takes some 70 bytes a shard, however long its name: a name is kept as 64 bits of its hash. Of a million names two share one in fewer
than one of ten million runs, and then one of them is taken for read an epoch too early, which costs one fetch at worst.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["UNTOLD", "Epoch", "EpochMarks"]

UNTOLD = -1  # the epoch of plans that tell none: among readers who do, the first one, which a process begins without a number
SEEN_ROUND = 2  # epochs that have begun under our eyes: the one before the first of them may have been seen by half
MOST_EARLY = 1 << 12  # more than a node has readers
FEWEST = 4  # shards that make an epoch: fewer may be what ranks peek at
TELLING = 8  # openings after which a job shares a group with another one, or does not: a coincidence of two random orders is over by then
_NOW, _BEFORE = 1, 2  # bits of a mark: read in the present epoch, in the one before


class EpochMarks:
    """Which names were read in the present epoch and in the one before it, as two bits. Names never seen have none."""

    def __init__(self) -> None:
        self._read: dict[int, int] = {}  # hash of the name -> the count of epochs when it was last noted, and its bits then
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
        """Note that ``name`` was read ``back`` epochs ago; whether that is news of the last two."""
        before = self[name]
        mark = before | (1 << back if back < 2 else 0)
        self._read[hash(name)] = self._epochs << 2 | mark
        return mark != before

    def shift(self, epochs: int) -> None:
        """So many epochs later: what was the present one is past."""
        self._epochs += epochs


class Epoch:
    """One job's way through one set: ``epoch`` is the newest that has begun, as told or counted from 0."""

    def __init__(self, now: float) -> None:
        self.seen_at = now
        self.epoch = 0
        self.told = False
        self.marks = EpochMarks()
        self.opened = 0  # shards read in the present epoch
        self.shared = 0  # shards that another job of the same group has opened too
        self.began_at = now  # when the present epoch began
        self._last_whole = False  # whether the epoch before was seen at all
        self._last_opened = 0  # shards read in it
        self.went_round = False  # whether the last epoch was one: a few repeats among many shards may have looked like it
        self._rounds = 0  # such epochs
        self._early: list[str] = []  # opened again by who tells no epoch, in a job where others do: perhaps as the first of the next one
        self._late_at = 0  # how many shards of the present epoch had been opened when the last one of the epoch before was

    def read(self, name: str, epoch: int | None, running: Collection[int] = ()) -> None:
        """A reader opened the shard, in ``epoch`` if it told. ``running`` are the epochs that readers of the job are in."""
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
        """Whether nobody of the job opens the shard again in the epochs that have begun."""
        mark = self.marks[name]
        if not mark & _NOW:
            return False
        return bool(mark & _BEFORE) or not (self.told and self._last_whole and (self.epoch - 1 in running or UNTOLD in running))

    def waits_for(self, name: str, running: Collection[int], *, known_to_live: bool, known: bool) -> bool:
        """Whether the job may open a shard of its group again, or at all, however long that takes.

        ``known``: somebody else has opened it, ``known_to_live``: as a shard of this group, in a job that is live.
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
        if not self.told:  # what was guessed so far is the epoch before
            later, self.epoch, self.told = 1 if len(self.marks) else 0, epoch, True
        elif self.epoch - epoch > 1 and not any(other > epoch + 1 for other in running):
            later, self.epoch = 8, epoch  # the job began again from an earlier epoch: what it read before is no matter
        else:
            later = max(0, epoch - self.epoch)
            self.epoch += later
        self._shift(later)
        if later:
            early, self._early = self._early, []
            for name in early if later == 1 else ():  # a loader opens its first shard before it announces the others
                self.opened += self.marks.add(name, 0)

    def _guess(self, mark: int) -> int:
        """How many epochs ago the epoch of this opening is, by the ``mark`` of its shard."""
        if self.told:  # this reader tells nothing in a job where others do
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
