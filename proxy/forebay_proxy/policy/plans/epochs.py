"""What each job has read of each set in its present epoch, as told or guessed. Pure.

A *set* is what a plan or a person named (``ShardSets``). Shards without a set belong to a *group*: the shards whose URLs are equal up to
the last ``/``. A *pass* is one job's present epoch over one set. Requests without a reader belong to one anonymous job.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.epoch import UNTOLD, Epoch
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS, LiveJobs
from forebay_proxy.policy.plans.shard_sets import ShardSets

__all__ = ["GROUP_LIFE_S", "EpochTracker", "Groups"]

GROUP_LIFE_S = 6 * 3600.0  # longer than a restart from a checkpoint at night, shorter than a day of other work
MOST_JOBS = 64  # passes per set: a node runs a handful of jobs, and a client may invent names
MOST_GROUPS = 1 << 16  # sets and groups; some data sets have a folder for every hundred shards
MOST_SEEN = 1 << 21  # shards in all passes: 150 MB; the largest public set has 585,270
ANONYMOUS_AGAIN = "/"  # and a number: the anonymous jobs after the first; no reader's name has a slash
WARM = "\0warm"  # the pass of shards that were requested before any job; no job has this name


@dataclass(slots=True)
class Group:
    """A set or a group: when it was last opened, and each job's present pass over it."""

    opened_at: float
    passes: dict[str, Epoch] = field(default_factory=dict)


class Groups:
    """Every set and group that somebody opened, bounded in number and in shards. Not thread-safe: used on the event loop alone."""

    def __init__(self) -> None:
        self.sets = ShardSets(self._lose)
        self._groups: OrderedDict[str, Group] = OrderedDict()  # the longest unopened first
        self._seen = 0  # shards in all passes

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, key: str) -> Group | None:
        """The set or group; None if nobody has opened or declared a shard of it."""
        return self._groups.get(key)

    def enter(self, key: str, job: str, now: float) -> Epoch:
        """The present pass of ``job`` over the set or group ``key``."""
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

    def unlisted(self, name: str, job: str | None = None) -> tuple[str, ...]:
        """The sets known by name alone under which the shard was opened, by ``job`` or, with None, by anybody."""
        groups = ((key, self._groups[key].passes) for key in self.sets.unlisted if key in self._groups)
        return tuple(key for key, passes in groups if any(name in known.marks for of, known in passes.items() if job is None or of == job))

    def count(self, shards: int) -> None:
        """Add ``shards`` to the number of shards seen in all passes."""
        self._seen += shards

    def shards_read(self, since: float) -> int:
        """How many shards were read of the sets and groups opened since then. Of each it counts the job that has read most."""
        lately = (group for group in self._groups.values() if group.opened_at >= since)
        return sum(max((len(known.marks) for known in group.passes.values()), default=0) for group in lately)

    def expire(self, now: float) -> None:
        """Forget the groups that nobody has opened for ``GROUP_LIFE_S``."""
        for key in [key for key, group in self._groups.items() if now - group.opened_at > GROUP_LIFE_S and key not in self.sets.kept]:
            self._drop(key)

    def keep_bounds(self) -> None:
        """If there are too many groups, or too many shards in them, forget those that were not opened for longest."""
        while len(self._groups) > 1 and (len(self._groups) > MOST_GROUPS or self._seen > MOST_SEEN):
            self._drop(next(iter(self._groups)))

    def _drop(self, key: str) -> None:
        self.sets.forget(key)
        self._lose(key)

    def _lose(self, key: str) -> None:
        """Forget what was read of the set ``key``: the set itself is no longer known."""
        group = self._groups.pop(key, None)
        if group is not None:
            self._seen -= sum(len(known.marks) for known in group.passes.values())


class EpochTracker:
    """All sets and groups. Moments are on the caller's clock. Not thread-safe: used on the event loop alone."""

    def __init__(self, jobs: LiveJobs | None = None) -> None:
        self.groups = Groups()
        self.sets = self.groups.sets
        self.jobs = LiveJobs(lambda: 0.0) if jobs is None else jobs
        self._opened_at: dict[str, float] = {}  # shard name -> when it was last opened
        self._running: dict[str, Counter[int]] = {}  # job -> how many of its plans are in each epoch
        self._anonymous = ANONYMOUS  # the name of the present anonymous job
        self._sessions = 0  # the number of anonymous jobs after the first
        self._anonymous_since = float("-inf")  # the anonymous job has left sets that it has not opened since then

    # Events

    def opened(self, shard: Shard, job: str, now: float, set_name: str | None = None, epoch: int | None = None) -> tuple[str, ...]:
        """A reader of ``job`` opened ``shard``; ``set_name`` and ``epoch`` come from its plan.

        Returns the keys of the sets that the shard belongs to; empty if its group stands for them.
        """
        name = shard.name
        self._opened_at[name] = now
        self.jobs.heard(job, now)
        sets = self._sets_of(name, job, self.sets.learn(set_name) if set_name else "")
        keys = sets or (shard.group,)
        if job == ANONYMOUS:
            job = self._anonymous_job(name, keys)
        for key in keys:
            self._read(self.groups.enter(key, job, now), shard, job, now, epoch)
        self.groups.keep_bounds()
        return sets

    def _sets_of(self, name: str, job: str, told: str) -> tuple[str, ...]:
        """The sets under which ``job`` opened the shard ``name``. ``told`` is the set that its plan names, or ""."""
        sets = self.sets.containing(name) if self.sets.listed else ()
        if not sets:  # a set that cannot be listed owns every shard opened under its name
            return (told,) if told in self.sets.unlisted else self.groups.unlisted(name, job)
        if told in sets:  # this job may not read a larger set that also holds the shard
            return (told, *(other for other in sets if other != told and other in self.sets.kept))
        return sets

    def _read(self, its: Epoch, shard: Shard, job: str, now: float, epoch: int | None) -> None:
        """``job`` opened ``shard`` in its present pass, ``its``."""
        known, before = len(its.marks), its.epoch
        its.read(shard.name, epoch, self._running.get(job, ()))
        if len(its.marks) > known:
            self.groups.count(len(its.marks) - known)
            group = self.groups.get(shard.group)
            others = [other for other in group.passes.values() if other is not its and shard.name in other.marks] if group else []
            for other in others:
                other.shared += 1
            its.shared += bool(others)
        if its.epoch != before:
            if job == self._anonymous and its.went_round:
                self._anonymous_since = max(self._anonymous_since, its.began_at)
            its.began_at = now

    def _anonymous_job(self, name: str, keys: Collection[str]) -> str:
        """The name under which the anonymous job counts that opens the shard ``name`` now."""
        if self.jobs.resumed:
            self.jobs.resumed = False
            known = (group.passes.get(self._anonymous) for key in keys if (group := self.groups.get(key)) is not None)
            if not any(found is not None and name in found.marks for found in known):
                self._sessions += 1
                self._anonymous = f"{ANONYMOUS_AGAIN}{self._sessions}"
        return self._anonymous

    def declare(self, shard: Shard, now: float) -> None:
        """Somebody asked for ``shard`` before any job did: it counts as unread until a job reads its set."""
        for key in self.sets.containing(shard.name) or (shard.group,):
            self.groups.enter(key, WARM, now)

    def declare_set(self, text: str, now: float) -> str:
        """Somebody declared the set ``text``: it counts as unread until a job reads it. Returns its key."""
        key = self.sets.keep(text)
        self.groups.enter(key, WARM, now)
        return key

    def began(self, set_name: str | None, job: str, epoch: int | None, now: float) -> None:
        """A reader of ``job`` has announced shards, with their set and epoch if it told them."""
        self.jobs.heard(job, now)
        self._running.setdefault(job, Counter())[UNTOLD if epoch is None else epoch] += 1
        if set_name:
            found = self.groups.enter(self.sets.learn(set_name), job, now)
            if epoch is not None and (epoch != found.epoch or not found.told):
                found.begin(epoch, self._running[job])

    def ended(self, job: str, epoch: int | None) -> None:
        """A plan with this epoch is over: withdrawn, replaced or expired."""
        running = self._running.get(job)
        if running is None:
            return
        epoch = UNTOLD if epoch is None else epoch
        running[epoch] -= 1
        if running[epoch] <= 0:
            del running[epoch]
        if not running:
            del self._running[job]

    # Questions

    def unread_by(self, name: str, group_name: str, now: float) -> dict[str, float] | None:
        """The live jobs that know the shard's sets and have not read it in their present pass, with the time each was last heard of there.

        None if no job waits for shards of these sets: all sets or all their jobs are over.
        """
        unread: dict[str, float] = {}
        alive = False
        keys = self.sets.containing(name) if self.sets.listed else ()
        for key in keys or (*self.groups.unlisted(name), group_name):
            group = self.groups.get(key)
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
        """The jobs that count: the live ones. For a set declared for good, or declared again after its jobs were over, others count too."""
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
        """Whether the job reads this shard of the group."""
        found, running = group.passes[job], self._running.get(job, ())
        if name in found.marks:
            return found.waits_for(name, running, known=False, known_to_live=False)
        others = (its for other, its in group.passes.items() if other != job and self._is_live(other, its, now))
        live = any(name in its.marks for its in others)
        return found.waits_for(name, running, known=name in self._opened_at, known_to_live=live)

    def has_read(self, key: str, name: str, now: float) -> bool:
        """Whether every job that reads the set ``key`` has read the shard; False if no job reads the set."""
        group = self.groups.get(key)
        if group is None:
            return False
        jobs = [job for job in group.passes if job != WARM]
        live = [job for job in jobs if self._is_live(job, group.passes[job], now)]
        return bool(jobs) and all(self._has_read(group, job, name) for job in live or jobs)

    def _has_read(self, group: Group, job: str, name: str) -> bool:
        return group.passes[job].has_read(name, self._running.get(job, ()))

    def of(self, key: str) -> dict[str, Epoch]:
        """Each job's pass over the set or group ``key``; of the anonymous jobs only the last one's."""
        group = self.groups.get(key)
        if group is None:
            return {}
        found = {job: known for job, known in group.passes.items() if job != WARM and (job == self._anonymous or not _is_anonymous(job))}
        if self._anonymous in found:
            found[ANONYMOUS] = found.pop(self._anonymous)
        return found

    def live(self, key: str, now: float) -> dict[str, Epoch]:
        """``of`` for live jobs only."""
        group = self.groups.get(key)
        if group is None:
            return {}
        names = {ANONYMOUS: self._anonymous}
        return {job: found for job, found in self.of(key).items() if self._is_live(names.get(job, job), found, now)}

    def last_opened(self, name: str) -> float | None:
        return self._opened_at.get(name)

    # Forgetting

    def forget(self, name: str) -> None:
        """The shard left the cache for good: forget its last opening."""
        self._opened_at.pop(name, None)
        self.sets.uncache(name)


def _is_anonymous(job: str) -> bool:
    return job == ANONYMOUS or job.startswith(ANONYMOUS_AGAIN)
