"""What can be guessed of a shard that nobody announced: groups of shards, and each job's present pass over them. Pure.

A *group* is the shards of one URL up to the last ``/``; it stands for the set. A *pass* is what one job has opened of a group since it last
began again; it begins again when a shard of the pass is opened a second time. Requests without a reader belong to one anonymous job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forebay_proxy.shard import Shard

__all__ = ["GROUP_LIFE_S", "Passes"]

GROUP_LIFE_S = 6 * 3600.0  # longer than a night's checkpoint-and-restart, shorter than a day of other work
MOST_JOBS = 64  # passes kept of one group: a node runs a handful of jobs, and a client may make names up
ANONYMOUS = ""
WARM = "\0warm"  # the pass of shards that were asked for ahead; no job has this name


@dataclass(slots=True)
class Group:
    """When a group was last opened, and each job's present pass over it."""

    opened_at: float
    passes: dict[str, set[str]] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)  # per job


class Passes:
    """All groups. Moments are on the caller's clock. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        self._opened_at: dict[str, float] = {}  # shard name -> when last opened

    def __repr__(self) -> str:
        return f"<Passes over {len(self)} groups>"

    def __len__(self) -> int:
        return len(self._groups)

    def opened(self, shard: Shard, job: str, now: float) -> None:
        """``job`` opened ``shard``."""
        self._opened_at[shard.name] = now
        read = self._pass(shard, job, now)
        if shard.name in read:
            read.clear()
        read.add(shard.name)

    def declare(self, shard: Shard, now: float) -> None:
        """Somebody asked for ``shard`` ahead of any job: until a job reads its group, it counts as unread."""
        self._pass(shard, WARM, now)

    def _pass(self, shard: Shard, job: str, now: float) -> set[str]:
        group = self._groups.setdefault(shard.group, Group(now))
        group.opened_at = group.seen_at[job] = now
        if job not in group.passes and len(group.passes) >= MOST_JOBS:
            longest_silent = min(group.passes, key=lambda known: group.seen_at[known])
            del group.passes[longest_silent], group.seen_at[longest_silent]
        return group.passes.setdefault(job, set())

    def unread_by(self, name: str, group_name: str, now: float) -> list[str] | None:
        """The live jobs that know the group and have not read the shard in their present pass; None where the group is dead."""
        group = self._groups.get(group_name)
        if group is None or now - group.opened_at > GROUP_LIFE_S:
            return None
        jobs = [job for job in group.passes if job != WARM and now - group.seen_at[job] < GROUP_LIFE_S] or list(group.passes)
        return [job for job in jobs if name not in group.passes[job]]

    def last_opened(self, name: str) -> float | None:
        return self._opened_at.get(name)

    def expire(self, now: float) -> None:
        """Forget the groups nobody opens any more."""
        for name in [name for name, group in self._groups.items() if now - group.opened_at > GROUP_LIFE_S]:
            del self._groups[name]

    def forget(self, name: str) -> None:
        """The shard left the cache for good: its last opening is of no more use."""
        self._opened_at.pop(name, None)
