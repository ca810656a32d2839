"""What each job has read of a set in its present epoch, told or guessed. Pure.

A *set* is what a plan or a person named (``ShardSets``); where nobody did, a shard's *group* stands for it: the shards of one URL up to the
last ``/``. A *pass* is one job's present way through one set. Requests without a reader belong to one anonymous job.

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
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.epoch_marks import EpochMarks
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS, LiveJobs
from forebay_proxy.policy.plans.sets.shard_sets import ShardSets

__all__ = ["GROUP_LIFE_S", "Epoch", "EpochTracker"]

GROUP_LIFE_S = 6 * 3600.0  # longer than a night's checkpoint-and-restart, shorter than a day of other work
MOST_JOBS = 64  # passes kept of one set: a node runs a handful of jobs, and a client may make names up
MOST_GROUPS = 1 << 16  # sets and groups; some data sets have a folder for every hundred shards
MOST_SEEN = 1 << 23  # shards over all passes: 75 MB
ANONYMOUS_AGAIN = "/"  # and a number: anonymous jobs after the first; no reader's name has a slash
WARM = "\0warm"  # the pass of shards that were asked for ahead; no job has this name

UNTOLD = -1  # the epoch of plans that tell none: among readers who do, the first one, which a process begins without a number

SEEN_ROUND = 2  # epochs that have begun under our eyes: the one before the first of them may have been seen by half
MOST_EARLY = 1 << 12  # more than a node has readers
FEWEST = 4  # shards that make an epoch: fewer may be what ranks peek at
TELLING = 8  # openings after which a job shares a group with another one, or does not: a coincidence of two random orders is over by then
_NOW, _BEFORE = 1, 2  # bits of a mark: read in the present epoch, in the one before
_OLDEST = 7  # the last bit: that many epochs ago, or more


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
        self._opened_before = 0  # in the last one, when the present one began
        self._whole = False  # whether the last epoch was seen at all
        self.went_round = False  # whether the last epoch was one: a few repeats among many shards may have looked like it
        self._rounds = 0  # such epochs
        self._early: list[str] = []  # opened again by who tells no epoch, in a job where others do: perhaps as the first of the next one
        self._late_at = 0  # how many shards of the present epoch had been opened when the last one of the epoch before was

    def __repr__(self) -> str:
        return f"<Epoch epoch {self.epoch}{'' if self.told else ' (guessed)'}, {self.opened} of {len(self.marks)} known shards read>"

    def read(self, name: str, epoch: int | None, running: Collection[int] = ()) -> None:
        """A reader opened the shard, in ``epoch`` if it told. ``running`` are the epochs that readers of the job are in."""
        if epoch is not None:
            if epoch != self.epoch or not self.told:
                self.begin(epoch, running)
            back = self.epoch - epoch
            marks, place = self.marks.slot(name)
        else:
            marks, place = self.marks.slot(name)
            back = self._guess(marks[place])
            if self.told and marks[place] & _NOW and len(self._early) < MOST_EARLY:
                self._early.append(name)
        mark, bit = marks[place], 1 << min(back, _OLDEST)
        if back:
            self._late_at = self.opened
        if not mark & bit:
            marks[place] = mark | bit
            self.opened += not back

    def has_read(self, name: str, running: Collection[int] = ()) -> bool:
        """Whether nobody of the job opens the shard again in the epochs that have begun."""
        mark = self.marks[name]
        if not mark & _NOW:
            return False
        return bool(mark & _BEFORE) or not (self.told and self._whole and (self.epoch - 1 in running or UNTOLD in running))

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
        return self.opened - self._late_at < max(4, self._opened_before // 8)

    def begin(self, epoch: int, running: Collection[int] = ()) -> None:
        """A reader of the job told that it is in ``epoch``."""
        if not self.told:  # what was guessed so far is the epoch before
            later, self.epoch, self.told = 1 if len(self.marks) else 0, epoch, True
        elif self.epoch - epoch > 1 and not any(other > epoch + 1 for other in running):
            later, self.epoch = 8, epoch  # the job began again from an earlier epoch: what it read before is no matter
        else:
            later = max(0, epoch - self.epoch)
            self.epoch += later
        self._pass_by(later)
        if later:
            early, self._early = self._early, []
            for name in early if later == 1 else ():  # a loader opens its first shard before it announces the others
                self.opened += self.marks.add(name, 0)

    def _guess(self, mark: int) -> int:
        """How many epochs ago the one is that this opening belongs to, by what is known of its shard."""
        if self.told:  # this reader tells nothing in a job where others do
            return 1 if self._whole and not mark & _BEFORE else 0
        if mark & _NOW:
            if self.opened * 4 >= len(self.marks):
                self.epoch += 1
                self._pass_by(1)
            return 0
        is_late = self._whole and not mark & _BEFORE and self.opened * 8 < self._opened_before * 7
        return 1 if is_late else 0

    def _pass_by(self, epochs: int) -> None:
        if epochs:
            self._whole = epochs == 1
            self.went_round = self._whole and (self.told or (self.opened >= FEWEST and self.opened * 2 >= len(self.marks)))
            self._rounds += self.went_round
            self._late_at = 0
            self.marks.pass_by(epochs)
            self._opened_before, self.opened = self.opened if self._whole else 0, 0


@dataclass(slots=True)
class Group:
    """A set or a group: when it was last opened, and each job's present pass over it."""

    opened_at: float
    passes: dict[str, Epoch] = field(default_factory=dict)


class EpochTracker:
    """All sets and groups. Moments are on the caller's clock. Not thread-safe: the event loop's only."""

    def __init__(self, jobs: LiveJobs | None = None) -> None:
        self.sets = ShardSets(self._lose)
        self.jobs = LiveJobs(lambda: 0.0) if jobs is None else jobs
        self._groups: OrderedDict[str, Group] = OrderedDict()  # longest unopened first
        self._opened_at: dict[str, float] = {}  # shard name -> when last opened
        self._seen = 0  # shards in all passes
        self._running: dict[str, Counter[int]] = {}  # by job: how many of its plans are of which epoch
        self._anonymous = ANONYMOUS  # the present anonymous job
        self._sessions = 0  # anonymous jobs after the first
        self._anonymous_since = float("-inf")  # what it has not opened since then it has left

    def __repr__(self) -> str:
        return f"<EpochTracker over {len(self)} groups>"

    def __len__(self) -> int:
        return len(self._groups)

    # What is told

    def opened(self, shard: Shard, job: str, now: float, set_name: str | None = None, epoch: int | None = None) -> list[tuple[str, int]]:
        """A reader of ``job`` opened ``shard``; ``set_name`` and ``epoch`` as its plan has them.

        Returns the keys of the sets it is of, each with the epoch of the job's pass.
        """
        name = shard.name
        self._opened_at[name] = now
        self.jobs.heard(job, now)
        key = self.sets.learn(set_name) if set_name else ""
        keys = self.sets.holding(name)
        if not keys:  # whatever is opened under a name that nobody can list belongs to it
            keys = (key,) if key in self.sets.unlisted else self._unlisted(name, job) or (shard.group,)
        elif key in keys and len(keys) > 1:  # a larger set that holds it too may be one that this job does not read
            keys = (key, *(other for other in keys if other != key and other in self.sets.kept))
        if job == ANONYMOUS:
            job = self._anonymous_job(name, keys)
        running = self._running.get(job, ())
        passes = []
        for key in keys:
            found = self._pass(key, job, now)
            passes.append((key, self._read(found, shard, job, now, epoch, running)))
        if self._seen > MOST_SEEN or len(self._groups) > MOST_GROUPS:
            self._keep_bounds()
        return passes

    def _read(self, found: Epoch, shard: Shard, job: str, now: float, epoch: int | None, running: Collection[int]) -> int:
        """``job`` opened ``shard`` in the pass ``found``; returns the epoch of that."""
        known, before = len(found.marks), found.epoch
        found.read(shard.name, epoch, running)
        self._seen += len(found.marks) - known
        if len(found.marks) > known:
            group = self._groups.get(shard.group)
            others = [other for other in group.passes.values() if other is not found and shard.name in other.marks] if group else []
            for other in others:
                other.shared += 1
            found.shared += bool(others)
        if found.epoch != before:
            if job == self._anonymous and found.went_round:
                self._anonymous_since = max(self._anonymous_since, found.began_at)
            found.began_at = now
        return found.epoch

    def _anonymous_job(self, name: str, keys: Collection[str]) -> str:
        """Under which name the anonymous job counts that opens the shard of this name now."""
        if self.jobs.resumed:
            self.jobs.resumed = False
            known = (self._groups[key].passes.get(self._anonymous) for key in keys if key in self._groups)
            if not any(found is not None and name in found.marks for found in known):
                self._sessions += 1
                self._anonymous = f"{ANONYMOUS_AGAIN}{self._sessions}"
        return self._anonymous

    def declare(self, shard: Shard, now: float) -> None:
        """Somebody asked for ``shard`` ahead of any job: until a job reads its set, it counts as unread."""
        for key in self.sets.holding(shard.name) or (shard.group,):
            self._pass(key, WARM, now)

    def declare_set(self, text: str, now: float, *, for_good: bool = True) -> str:
        """Somebody declared the set ``text``: until a job reads it, it counts as unread. Returns its key."""
        key = self.sets.keep(text) if for_good else self.sets.learn(text)
        self._pass(key, WARM, now)
        return key

    def undeclare_set(self, key: str) -> None:
        """It is no longer kept for whoever may come: only the jobs that read it count."""
        self.sets.kept.pop(key, None)
        group = self._groups.get(key)
        if group is not None:
            group.passes.pop(WARM, None)

    def began(self, set_name: str | None, job: str, epoch: int | None, now: float) -> None:
        """A reader of ``job`` has announced shards, of the set and in ``epoch`` if it told."""
        self.jobs.heard(job, now)
        self._running.setdefault(job, Counter())[UNTOLD if epoch is None else epoch] += 1
        if set_name:
            found = self._pass(self.sets.learn(set_name), job, now)
            if epoch is not None:
                found.begin(epoch, self._running[job])

    def ended(self, job: str, epoch: int | None) -> None:
        """Such a plan is over: withdrawn, replaced or expired."""
        running = self._running.get(job)
        if running is None:
            return
        epoch = UNTOLD if epoch is None else epoch
        running[epoch] -= 1
        if running[epoch] <= 0:
            del running[epoch]
        if not running:
            del self._running[job]

    # What follows

    def unread_by(self, name: str, group_name: str, now: float) -> dict[str, float] | None:
        """The live jobs that know the shard's sets and have not read it in their present pass, and when each was last heard of there.

        None where nobody waits for anything of them: all of its sets are dead, or all their jobs are over.
        """
        unread: dict[str, float] = {}
        alive = False
        for key in self.sets.holding(name) or (*self._unlisted(name), group_name):
            group = self._groups.get(key)
            if group is None or (now - group.opened_at > GROUP_LIFE_S and key not in self.sets.kept):
                continue
            for job in self._waiting(key, group, now):
                if key == group_name and job != WARM and not self._waits_for(group, job, name, now):
                    continue
                alive = True
                if not self._has_read(group, job, name):
                    unread[job] = max(group.passes[job].seen_at, unread.get(job, 0.0))
        return unread if alive else None

    def _waiting(self, key: str, group: Group, now: float) -> list[str]:
        """The jobs that count: live ones; else a set's that a person declared for good, or declared once more after they were over."""
        passes = group.passes
        live = [job for job, found in passes.items() if self._is_live(job, found, now)]
        if live or not passes:
            return live
        if key in self.sets.kept:
            return [job for job in passes if now - passes[job].seen_at < GROUP_LIFE_S and job != WARM] or list(passes)
        newest = max(passes, key=lambda job: passes[job].seen_at)
        return [WARM] if newest == WARM else []

    def _is_live(self, job: str, found: Epoch, now: float) -> bool:
        if job == WARM or now - found.seen_at >= GROUP_LIFE_S:
            return False
        if job == self._anonymous:
            return found.seen_at >= self._anonymous_since and self.jobs.is_live(ANONYMOUS, now)
        if _is_anonymous(job):
            return False
        return job in self._running or self.jobs.is_live(job, now)

    def _waits_for(self, group: Group, job: str, name: str, now: float) -> bool:
        """Whether the shard is one of those in the group that the job reads."""
        found, running = group.passes[job], self._running.get(job, ())
        if name in found.marks:
            return found.waits_for(name, running, known=False, known_to_live=False)
        others = (its for other, its in group.passes.items() if other != job and self._is_live(other, its, now))
        live = any(name in its.marks for its in others)
        return found.waits_for(name, running, known=name in self._opened_at, known_to_live=live)

    def has_read(self, key: str, name: str, now: float) -> bool:
        """Whether every job that reads the set ``key`` has read the shard; False while none does."""
        group = self._groups.get(key)
        if group is None:
            return False
        jobs = [job for job in group.passes if job != WARM]
        live = [job for job in jobs if self._is_live(job, group.passes[job], now)]
        return bool(jobs) and all(self._has_read(group, job, name) for job in live or jobs)

    def _has_read(self, group: Group, job: str, name: str) -> bool:
        return group.passes[job].has_read(name, self._running.get(job, ()))

    def of(self, key: str) -> dict[str, Epoch]:
        """Each job's pass over the set or group ``key``; of anonymous jobs only the last one's."""
        group = self._groups.get(key)
        if group is None:
            return {}
        found = {job: known for job, known in group.passes.items() if job != WARM and (job == self._anonymous or not _is_anonymous(job))}
        if self._anonymous in found:
            found[ANONYMOUS] = found.pop(self._anonymous)
        return found

    def live(self, key: str, now: float) -> dict[str, Epoch]:
        """``of``, of jobs that go on."""
        group = self._groups.get(key)
        if group is None:
            return {}
        names = {ANONYMOUS: self._anonymous}
        return {job: found for job, found in self.of(key).items() if self._is_live(names.get(job, job), found, now)}

    def last_opened(self, name: str) -> float | None:
        return self._opened_at.get(name)

    # What is forgotten

    def expire(self, now: float) -> None:
        """Forget the groups nobody opens any more."""
        for key in [key for key, group in self._groups.items() if now - group.opened_at > GROUP_LIFE_S and key not in self.sets.kept]:
            self._drop(key)

    def forget(self, name: str) -> None:
        """The shard left the cache for good: its last opening is of no more use."""
        self._opened_at.pop(name, None)
        self.sets.uncache(name)

    def _pass(self, key: str, job: str, now: float) -> Epoch:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(now)
        else:
            self._groups.move_to_end(key)
        group.opened_at = now
        found = group.passes.get(job)
        if found is None:
            if len(group.passes) >= MOST_JOBS:
                longest_silent = group.passes.pop(min(group.passes, key=lambda known: group.passes[known].seen_at))
                self._seen -= len(longest_silent.marks)
            found = group.passes[job] = Epoch(now)
        found.seen_at = now
        return found

    def _unlisted(self, name: str, job: str | None = None) -> tuple[str, ...]:
        """The sets known by name alone under which the shard was opened, by ``job`` or by anybody."""
        groups = ((key, self._groups[key].passes) for key in self.sets.unlisted if key in self._groups)
        return tuple(key for key, passes in groups if any(name in known.marks for of, known in passes.items() if job is None or of == job))

    def _keep_bounds(self) -> None:
        while len(self._groups) > 1 and (len(self._groups) > MOST_GROUPS or self._seen > MOST_SEEN):
            self._drop(next(iter(self._groups)))

    def _drop(self, key: str) -> None:
        self.sets.forget(key)
        self._lose(key)

    def _lose(self, key: str) -> None:
        """Nobody knows the set of this key any more, and a name may be long: what was read of it is forgotten too."""
        group = self._groups.pop(key, None)
        if group is not None:
            self._seen -= sum(len(known.marks) for known in group.passes.values())


def _is_anonymous(job: str) -> bool:
    return job == ANONYMOUS or job.startswith(ANONYMOUS_AGAIN)
