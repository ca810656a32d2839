"""What each job has read of a set in its present epoch, told or guessed."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import shard_of
from support.lengths import examples

from forebay_proxy.policy.plans.epoch import Epoch
from forebay_proxy.policy.plans.epochs import GROUP_LIFE_S, EpochTracker

GROUP = "https://o/set/"
PATTERN = "https://o/{set,more}/{a,b,c,d}.tar"
A, B, C, D = (shard_of(f"{GROUP}{leaf}.tar") for leaf in "abcd")


def unread(passes: EpochTracker, name: str, group_name: str, now: float) -> list[str] | None:
    """By whom, without when each was heard of."""
    found = passes.unread_by(name, group_name, now)
    return None if found is None else list(found)


def test_a_shard_is_unread_by_the_jobs_that_have_not_opened_it() -> None:
    """In their present pass, which begins again with the first repeat."""
    passes = EpochTracker()
    passes.opened(A, "one", 1.0)
    passes.opened(B, "two", 2.0)
    assert (unread(passes, A.name, GROUP, 2.0), unread(passes, B.name, GROUP, 2.0)) == (["two"], ["one"])
    passes.opened(B, "one", 3.0)
    passes.opened(A, "one", 4.0)
    assert unread(passes, B.name, GROUP, 4.0) == ["one"]


def test_how_many_shards_are_read() -> None:
    """Of the sets that somebody opens lately, by the job that has read most; a further pass adds none."""
    passes = EpochTracker()
    for shard in (A, B, C, A):
        passes.opened(shard, "one", 10.0)
    passes.opened(D, "two", 20.0)
    passes.opened(shard_of("https://o/other/x.tar"), "two", 30.0)
    assert [passes.groups.shards_read(since) for since in (0.0, 25.0, 40.0)] == [4, 1, 0]


def test_what_was_asked_for_ahead_waits_for_the_first_job() -> None:
    """From then on only jobs count."""
    passes = EpochTracker()
    passes.declare(A, 1.0)
    assert unread(passes, A.name, GROUP, 1.0) != []
    passes.opened(A, "one", 2.0)
    assert unread(passes, A.name, GROUP, 2.0) == []


def test_a_group_nobody_opens_is_dead_and_forgotten() -> None:
    """Dead at once, forgotten with the next look."""
    passes = EpochTracker()
    passes.opened(A, "one", 0.0)
    assert unread(passes, A.name, GROUP, GROUP_LIFE_S + 1) is None
    assert len(passes.groups) == 1
    passes.groups.expire(GROUP_LIFE_S + 1)
    assert len(passes.groups) == 0


# Readers of one job that are not in the same epoch


class Job:
    """Readers that share a set anew in each epoch, no two of them more than ``spread`` of an epoch apart."""

    def __init__(self, shards: int, readers: int, spread: float, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = [f"s3://b/{number}.tar" for number in range(shards)]
        self.epochs = [0] * readers
        self._spread = spread
        self._shares: dict[int, list[list[str]]] = {}
        self._read = [0] * readers

    def _share(self, reader: int) -> list[str]:
        epoch = self.epochs[reader]
        if epoch not in self._shares:
            order = self.random.sample(self.names, len(self.names))
            self._shares[epoch] = [order[number :: len(self.epochs)] for number in range(len(self.epochs))]
        return self._shares[epoch][reader]

    def _place(self, reader: int) -> float:
        return self.epochs[reader] + self._read[reader] / len(self._share(reader))

    def step(self) -> tuple[int, int, str]:
        """(reader, its epoch, the shard it opens)."""
        last = min(self._place(reader) for reader in range(len(self.epochs)))
        reader = self.random.choice([number for number in range(len(self.epochs)) if self._place(number) <= last + self._spread])
        name = self._share(reader)[self._read[reader]]
        epoch = self.epochs[reader]
        self._read[reader] += 1
        if self._read[reader] == len(self._share(reader)):
            self.epochs[reader] += 1
            self._read[reader] = 0
        return reader, epoch, name


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(8, 64), st.integers(1, 8), st.floats(0.0, 0.5), st.integers(0, 1 << 30))
def test_guessed_epochs_are_the_true_ones(shards: int, readers: int, spread: float, seed: int) -> None:
    """However far apart up to half an epoch: a shard is read when as many openings of it were seen as epochs have shown themselves."""
    job, found, opened = Job(shards, readers, spread, seed), Epoch(0.0), Counter[str]()
    for _ in range(5 * shards):
        _, _, name = job.step()
        found.read(name, None)
        opened[name] += 1
        newest = max(opened.values())
        wrong = [name for name in job.names if found.has_read(name) != (opened[name] == newest)]
        assert not wrong, (found, newest, {name: opened[name] for name in wrong})
        assert found.epoch == newest - 1


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(8, 64), st.integers(1, 8), st.floats(0.0, 0.9), st.integers(0, 1 << 30))
def test_told_epochs_end_for_each_reader_at_its_own_moment(shards: int, readers: int, spread: float, seed: int) -> None:
    """Read is what nobody opens again in the newest epoch, nor in the one before while a reader is still in it."""
    job, found = Job(shards, readers, spread, seed), Epoch(0.0)
    told = [0] * readers
    found.begin(0, told)
    read = set[tuple[str, int]]()
    for _ in range(4 * shards):
        reader, epoch, name = job.step()
        told[reader] = epoch
        found.read(name, epoch, told)
        read.add((name, epoch))
        newest = max(told)
        behind = newest > 0 and newest - 1 in told
        truth = {name for name in job.names if (name, newest) in read and (not behind or (name, newest - 1) in read)}
        assert {name for name in job.names if found.has_read(name, told)} == truth
        assert found.epoch == newest


def test_ranks_that_peek_at_the_first_shard_begin_no_epoch() -> None:
    """Once something is known of the set, one shard opened over and over is one shard."""
    found = Epoch(0.0)
    for number in range(20):
        found.read(f"{number}", None)
    for _ in range(8):
        found.read("0", None)
    assert found.epoch == 1
    assert found.opened == 1


def test_a_sidecar_that_started_half_way_learns_the_rest() -> None:
    """Shards of which the first reading was not seen are one epoch behind, but not for ever."""
    names, chance, found = [f"{number}" for number in range(400)], random.Random(1), Epoch(0.0)
    for name in names[200:]:
        found.read(name, None)
    behind = []
    for _ in range(12):
        for name in chance.sample(names, len(names)):
            found.read(name, None)
        behind.append(sum(not found.has_read(name) for name in names))
    assert behind[-1] < 0.5 * behind[0], behind


def test_the_epoch_before_counts_while_a_plan_is_of_it() -> None:
    """One reader of a job has opened a shard in epoch 3, another, still in 2, has yet to: unread, until that one's plan is over."""
    passes = EpochTracker()
    for epoch in (2, 2):
        passes.began(None, "job", epoch, 0.0)
    passes.opened(A, "job", 1.0, None, 2)
    passes.ended("job", 2)
    passes.began(None, "job", 3, 2.0)
    for shard in (A, B):
        passes.opened(shard, "job", 3.0, None, 3)
    assert [unread(passes, shard.name, GROUP, 3.0) for shard in (A, B)] == [[], ["job"]]
    passes.ended("job", 2)
    assert unread(passes, B.name, GROUP, 3.0) == []


# Sets that were named


def test_a_named_pattern_is_the_set() -> None:
    """A shard of it in another folder, never opened by anybody, is unread and not dead."""
    passes = EpochTracker()
    passes.began(PATTERN, "one", 3, 0.0)
    other = shard_of("https://o/more/a.tar")
    assert unread(passes, other.name, other.group, 0.0) == ["one"]
    passes.opened(other, "one", 1.0, PATTERN, 3)
    assert unread(passes, other.name, other.group, 1.0) == []
    assert unread(passes, "https://o/more/z.tar", other.group, 1.0) is None


def test_a_set_known_by_name_alone_is_what_was_opened_under_it() -> None:
    """Two sets in one folder then have passes of their own."""
    passes = EpochTracker()
    for shard in (A, B):
        passes.opened(shard, "job", 1.0, "train", 0)
    passes.opened(C, "job", 1.0, "held-out", 0)
    passes.began("train", "job", 1, 2.0)
    assert [unread(passes, shard.name, GROUP, 2.0) for shard in (A, B, C)] == [["job"], ["job"], []]


def test_a_declared_set_is_unread_before_any_job() -> None:
    """From its first opening on only what jobs read counts."""
    passes = EpochTracker()
    passes.declare_set(PATTERN, 0.0)
    assert unread(passes, A.name, GROUP, 0.0) != []
    passes.opened(A, "", 1.0)
    assert (unread(passes, A.name, GROUP, 1.0), unread(passes, B.name, GROUP, 1.0)) == ([], [""])


def test_a_larger_set_is_read_by_those_who_say_so() -> None:
    """A job that reads a half of another's set never reads the rest: that is read when the other has read it."""
    passes = EpochTracker()
    half, whole = "https://o/set/{a,b}.tar", "https://o/set/{a,b,c,d}.tar"
    passes.began(half, "small", 0, 0.0)
    passes.began(whole, "large", 0, 0.0)
    for shard in (A, B):
        passes.opened(shard, "small", 1.0, half, 0)
    for shard in (A, B, C, D):
        passes.opened(shard, "large", 2.0, whole, 0)
    assert [unread(passes, shard.name, GROUP, 3.0) for shard in (A, C)] == [[], []]
    passes.began(half, "small", 1, 4.0)
    assert [unread(passes, shard.name, GROUP, 5.0) for shard in (A, C)] == [["small"], []]


def test_a_first_epoch_without_a_number_is_the_one_before() -> None:
    """A worker counts its epochs from the second on: what a fast one reads in that, a slow one may have yet to read in its first."""
    passes = EpochTracker()
    for _ in ("fast", "slow"):
        passes.began(PATTERN, "job", None, 0.0)
    passes.opened(A, "job", 1.0, PATTERN, None)
    passes.opened(C, "job", 1.0, PATTERN, None)
    passes.ended("job", None)
    passes.began(PATTERN, "job", 1, 2.0)  # the fast one is done with A, the slow one with C
    passes.opened(B, "job", 3.0, PATTERN, 1)  # which is the slow one's in its first epoch
    assert unread(passes, B.name, GROUP, 3.0) == ["job"]
    passes.opened(B, "job", 4.0, PATTERN, None)
    assert unread(passes, B.name, GROUP, 4.0) == []
    passes.ended("job", None)
    passes.opened(D, "job", 5.0, PATTERN, 1)
    assert unread(passes, D.name, GROUP, 5.0) == []
    passes.ended("job", 1)
    assert passes._running == {}
