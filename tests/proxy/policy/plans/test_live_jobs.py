"""Which jobs go on, and what becomes of what the others have read: a finished job's bytes leave before what a live one reads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from support.house import FakeClock, shard_of
from support.lengths import ordinarily

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.plans import live_jobs
from forebay_proxy.policy.plans.live_jobs import QUIET_S, Bursts, LiveJobs, Presence
from forebay_proxy.policy.plans.registry import NextUseChanged, PlanRegistry, Rank
from forebay_proxy.simulate.replay import ReplayedShard, Slice
from forebay_proxy.wire.protocol.plan import ReaderName

COUNT, ROOM = 60, 36  # shards of one segment


def test_a_connection_keeps_its_job() -> None:
    """However long it is silent; and a minute more."""
    clock = FakeClock()
    jobs = LiveJobs(clock)
    presence = Presence(jobs)
    presence.asks("train")
    clock.advance(1800.0)
    assert jobs.is_live("train", clock())
    presence.end()
    presence.end()
    clock.advance(QUIET_S)
    assert jobs.is_live("train", clock())
    clock.advance(1.0)
    assert not jobs.is_live("train", clock())


def test_a_connection_is_of_the_job_that_asked_last() -> None:
    """A process is of one job; a proxy between may be of many."""
    clock = FakeClock()
    jobs = LiveJobs(clock)
    presence = Presence(jobs)
    presence.asks("one")
    presence.asks("two")
    clock.advance(QUIET_S + 1)
    assert (jobs.is_live("one", clock()), jobs.is_live("two", clock())) == (False, True)


def test_a_job_is_over_when_it_is_held_no_more() -> None:
    """At once, whatever ends last: its hold, or a worker's connection."""
    clock = FakeClock()
    jobs = LiveJobs(clock)
    for holds_first in (True, False):
        jobs.came("train", holds=True)
        jobs.came("train")
        jobs.left("train", holds=holds_first)
        assert jobs.is_live("train", clock())
        jobs.left("train", holds=not holds_first)
        assert not jobs.is_live("train", clock())


def test_names_are_not_kept_for_ever() -> None:
    """A client may make them up."""
    most = live_jobs.MOST_JOBS
    jobs = LiveJobs(FakeClock())
    for number in range(2 * most):
        jobs.heard(str(number), 0.0)
    assert [jobs.is_live(str(number), 0.0) for number in range(2 * most)] == [False] * most + [True] * most


# What it is for


class Node:
    """A cache of ``ROOM`` shards without bytes, with the sidecar's own decisions."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        events = Events()
        self.plans = PlanRegistry(self.clock, events)
        self.ledger: Ledger[Slice] = Ledger(ROOM * SEGMENT_BYTES)
        self.admission: AdmissionPolicy[ReplayedShard] = AdmissionPolicy(self.ledger, self.plans, self.clock, lambda: True, events)
        events.on(NextUseChanged, lambda fact: self.admission.candidates.next_use_changed(self.admission.candidates.entries, fact))
        self._chance = random.Random(7)

    def read(self, shard: Shard, reader: ReaderName | None) -> bool:
        """Whether it had to be fetched."""
        self.clock.advance(0.1)
        entry = self.admission.candidates.entries.setdefault(shard.name, ReplayedShard(shard, SEGMENT_BYTES))
        self.plans.opened(shard, reader)
        missing = not entry.segments.has(0)
        if missing:
            self._fetch(entry)
        self.admission.candidates.touch(entry)
        self.admission.candidates.refresh()
        return missing

    def _fetch(self, entry: ReplayedShard) -> None:
        try:
            grant = self.admission.reserve(SEGMENT_BYTES)
        except CacheFull:
            return
        for victim in grant.victims:
            left, _ = victim.subject
            left.segments.leave(0)
            self.admission.candidates.touch(left)
        self.ledger.vacated(grant)
        self.ledger.commit(grant)
        entry.segments.land(0, 1)

    def job(self, shards: Sequence[Shard], epochs: int, name: str | None, set_name: str | None = None, *, ahead: bool = False) -> list[int]:
        """How many shards it fetched in each epoch. ``ahead``: it announces all but the first, as a loader does."""
        reader = ReaderName(name, "0", "0", "1.1") if name else None
        return [self.epoch(shards, epoch, reader, set_name, ahead=ahead) for epoch in range(epochs)]

    def epoch(self, shards: Sequence[Shard], epoch: int, reader: ReaderName | None, set_name: str | None, *, ahead: bool) -> int:
        order = self._chance.sample(shards, len(shards))
        fetched = int(self.read(order[0], reader))
        if ahead and reader is not None:
            self.plans.replace(reader, order[1:17], epoch=epoch, set_name=set_name)
        for place, shard in enumerate(order[1:], 1):
            fetched += self.read(shard, reader)
            if ahead and reader is not None and place + 16 < len(order):
                self.plans.append(reader, [order[place + 16]])
        if ahead and reader is not None:
            self.plans.withdraw(reader)
        return fetched

    def rank(self, shard: Shard) -> Rank:
        return self.plans.next_use(shard.name, shard.group).rank


def set_of(folder: str, leaf: str) -> tuple[list[Shard], str]:
    return [
        shard_of(f"https://o/{folder}/{leaf}-{number:03}.tar") for number in range(COUNT)
    ], f"https://o/{folder}/{leaf}-{{000..059}}.tar"


TOLD = ("pattern", "list", "plan without a set", "reader's name", "nothing")
FINISHED = [*itertools.product((1, 2, 1.5), TOLD, ("same", "other"))]
CASES = ordinarily(10, of=len(FINISHED), what="jobs that end before another begins")  # every third has each that is told in both folders


@pytest.mark.parametrize(("epochs", "told", "folder"), FINISHED[:: len(FINISHED) // CASES])
def test_a_finished_jobs_bytes_leave_before_what_a_live_job_reads(folder: str, told: str, epochs: float) -> None:
    """From its second epoch on a lone job fetches D - C, whatever was read before, and how far. (A loader opens a shard before it announces
    any: that one may count for the epoch before, and another one stays in its place.)"""
    node = Node()
    before, pattern = set_of("same", "a")
    shards, its_pattern = set_of(folder, "b")
    names = {"pattern": (pattern, its_pattern), "list": ("100 shards aa", "100 shards bb")}.get(told, (None, None))
    named = None if told == "nothing" else "first"
    ahead = told not in ("nothing", "reader's name")
    node.job(before, int(epochs), named, names[0], ahead=ahead)
    if epochs % 1:
        reader = ReaderName(named, "0", "0", "1.1") if named else None
        for shard in random.Random(1).sample(before, COUNT // 2):
            node.read(shard, reader)
    node.clock.advance(QUIET_S + 10)
    found = node.job(shards, 5, named and "second", names[1], ahead=ahead)
    assert found[0] == COUNT
    assert max(found[1:]) <= 1.05 * (COUNT - ROOM) + ahead, found


def live_job(node: Node) -> tuple[ReaderName, Callable[[], None]]:
    presence = Presence(node.plans.jobs)
    presence.asks("train")
    return ReaderName("train", "0", "0", "1.1"), presence.end


def test_a_job_that_writes_a_checkpoint_keeps_what_it_has_not_read() -> None:
    """Its connections are open; once they are gone, and a minute over, nobody waits."""
    node = Node()
    shards, pattern = set_of("same", "a")
    reader, leave = live_job(node)
    node.plans.replace(reader, shards, epoch=1, set_name=pattern)
    for shard in shards[:30]:
        node.read(shard, reader)
    node.plans.withdraw(reader)  # after a minute of silence
    node.clock.advance(1800.0)
    assert (node.rank(shards[0]), node.rank(shards[50])) == (Rank.READ, Rank.LATER)
    leave()
    node.clock.advance(QUIET_S + 1)
    assert (node.rank(shards[0]), node.rank(shards[50])) == (Rank.DEAD, Rank.DEAD)


def test_a_live_jobs_validation_set_stays() -> None:
    """It was read an hour ago, and its loader has withdrawn its plan; the job still trains."""
    node = Node()
    validation, pattern = set_of("val", "v")
    node.job(validation[:10], 1, "train", pattern, ahead=True)
    training, its_pattern = set_of("train", "t")
    for _ in range(60):
        node.clock.advance(60.0)
        node.job(training[:5], 1, "train", its_pattern, ahead=True)
    assert {node.rank(shard) for shard in validation[:10]} <= {Rank.READ, Rank.LATER}


def test_the_anonymous_jobs_validation_set_stays_from_epoch_to_epoch() -> None:
    """Both are in folders of their own; it is let go when a whole epoch goes by without it."""
    node = Node()
    training, validation = set_of("train", "t")[0][:18], set_of("val", "v")[0][:15]
    for _ in range(5):
        node.job(training, 1, None)
        node.job(validation, 1, None)
        node.read(training[0], None)
        assert Rank.DEAD not in {node.rank(shard) for shard in validation}
    node.job(training, 3, None)
    assert {node.rank(shard) for shard in validation} == {Rank.DEAD}


def test_a_new_job_over_the_same_folder_finds_what_the_last_one_left() -> None:
    """With another name, and no set told: what it opens first says that it reads the same."""
    node = Node()
    shards, _ = set_of("same", "a")
    for name in ("first", "second", None):
        node.job(shards, 2, name)
        node.clock.advance(QUIET_S + 10)
        assert node.job(shards, 1, "third" + str(name))[0] <= COUNT - ROOM + 3


def test_two_live_jobs_over_two_sets_of_one_folder_share() -> None:
    """Neither is thrown out for the other."""
    node = Node()
    (one, _), (two, _) = set_of("same", "a"), set_of("same", "b")
    found: dict[str, list[int]] = {"one": [], "two": []}
    for _ in range(6):
        for name, shards in (("one", one), ("two", two)):
            found[name] += node.job(shards, 1, name)
    assert sum(found["one"][-3:] + found["two"][-3:]) <= 6 * COUNT - 3 * ROOM + 36, found


def test_a_restart_forgets_what_was_read_and_throws_nothing_out() -> None:
    """What an earlier process stored is of the set until the job was seen to go round."""
    node = Node()
    shards, _ = set_of("same", "a")
    node.job(shards, 2, "train")
    kept = [shard_of(entry.name) for entry in node.admission.candidates.entries.values() if entry.segments.has(0)]
    again = PlanRegistry(node.clock)
    again.opened(shards[0], ReaderName("train", "0", "0", "1.1"))
    assert all(again.next_use(shard.name, shard.group).rank in (Rank.SOON, Rank.READ) for shard in kept)


def test_folders_are_bounded() -> None:
    """The one that was read longest ago is forgotten; who leaves it does no harm."""
    reads = Bursts(FakeClock())
    with reads.inside("0"):
        for number in range(1, live_jobs.MOST_FOLDERS + 2):
            with reads.inside(str(number)):
                pass
    assert len(reads._bursts) == live_jobs.MOST_FOLDERS
