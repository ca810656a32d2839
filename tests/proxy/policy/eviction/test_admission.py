"""What leaves for whom, with entries that hold no bytes."""

from __future__ import annotations

import pytest
from support.house import need_at
from support.replays import name_of, shards

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.simulate.replay import ReplayedShard, Slice
from forebay_proxy.wire.protocol.plan import ReaderName

READER = ReaderName("job", "0", "0", "0.0")


class FullCache:
    """Room for ``room`` segments, all taken: shard n holds ``held[n]`` of them."""

    def __init__(self, room: int, held: dict[int, int]) -> None:
        self.now = 0.0
        self.plans = PlanRegistry(lambda: self.now)
        ledger: Ledger[Slice] = Ledger(room * SEGMENT_BYTES)
        self.admission: AdmissionPolicy[ReplayedShard] = AdmissionPolicy(ledger, self.plans, lambda: self.now, lambda: True)
        self.shards = shards(10)
        for number, count in held.items():
            entry = ReplayedShard(self.shards[number], count * SEGMENT_BYTES)
            self.admission.candidates.entries[entry.key] = entry
            for index in range(count):
                entry.segments.land(index, 1)
                ledger.found(SEGMENT_BYTES)
            self.admission.candidates.touch(entry)

    def entry(self, number: int) -> ReplayedShard:
        return self.admission.candidates.entries[name_of(number)]

    def opens(self, number: int, at: int) -> None:
        """The reader is in segment ``at`` of a shard."""
        self.now += 1.0
        self.plans.opened(self.shards[number], READER)
        entry = self.entry(number)
        entry.in_use.readers += 1
        entry.segments.lease(at)
        self.admission.candidates.touch(entry)

    def reads(self, number: int) -> None:
        """A reader has read the whole shard."""
        self.now += 1.0
        self.plans.opened(self.shards[number], None)
        self.admission.candidates.touch(self.entry(number))

    def leaves(self) -> tuple[int, int]:
        """(shard, segment) that leaves for a segment more, which does not stay."""
        grant = self.admission.reserve(SEGMENT_BYTES)
        ((entry, (index,)),) = (victim.subject for victim in grant.victims)
        entry.segments.leave(index)
        self.admission.candidates.touch(entry)
        self.admission.ledger.vacated(grant)
        self.admission.ledger.commit(grant)
        return next(number for number, shard in enumerate(self.shards) if shard.name == entry.name), index

    def leaving(self, count: int) -> list[tuple[str, int]]:
        """Whom a demand for ``count`` segments would push out."""
        grant = self.admission.reserve(count * SEGMENT_BYTES)
        return [(victim.subject[0].name, index) for victim in grant.victims for index in victim.subject[1]]


def test_what_lies_before_a_reader_leaves_last() -> None:
    """Once nothing else is left; never what is leased."""
    cache = FullCache(6, {0: 4, 1: 2})
    cache.plans.replace(READER, [cache.shards[0], cache.shards[1]])
    cache.opens(0, at=2)
    with pytest.raises(CacheFull):
        cache.leaving(6)
    assert cache.leaving(5) == [(name_of(0), 1), (name_of(0), 0), (name_of(1), 1), (name_of(1), 0), (name_of(0), 3)]


def test_tails_leave_across_shards_before_heads() -> None:
    """By how far back in its shard a segment lies, one by one: each shard that was read keeps about as much as the others."""
    cache = FullCache(9, {0: 4, 1: 3, 2: 2})
    for number in range(3):
        cache.reads(number)
    left = [cache.leaves() for _ in range(9)]
    assert left == [(0, 3), (1, 2), (2, 1), (0, 2), (1, 1), (0, 1), (2, 0), (1, 0), (0, 0)]


def test_of_equal_tails_the_latest_opening_leaves_first() -> None:
    """A fixed part is kept of a set that is read in the same order again and again."""
    cache = FullCache(6, {0: 2, 1: 2, 2: 2})
    for number in (1, 0, 2):
        cache.reads(number)
    assert [cache.leaves() for _ in range(3)] == [(2, 1), (0, 1), (1, 1)]


def test_what_leaves_only_whole_leaves_after_the_tails_of_others() -> None:
    """Its head would go with it."""
    cache = FullCache(4, {0: 2, 1: 2})
    cache.entry(0).ranged = False
    for number in (1, 0):
        cache.reads(number)
    assert cache.leaves() == (1, 1)


def test_what_another_job_still_needs_does_not_leave_early() -> None:
    """The shard is announced by a second reader: what the first one has behind it is needed again."""
    cache = FullCache(6, {0: 4, 1: 2})
    cache.plans.replace(READER, [cache.shards[0]])
    cache.plans.replace(ReaderName("other", "0", "0", "0.0"), [cache.shards[0]])
    cache.opens(0, at=2)
    assert name_of(0) not in {name for name, _ in cache.leaving(2)}


def test_a_prefetch_takes_what_was_passed_without_displacing() -> None:
    """It is nobody's room any more: no reader's budget is spent on it."""
    cache = FullCache(4, {0: 4})
    cache.plans.replace(READER, [cache.shards[0], cache.shards[1]])
    cache.opens(0, at=3)
    grant = cache.admission.reserve_ahead(SEGMENT_BYTES, 5.0, READER)
    assert [victim.subject[1] for victim in grant.victims] == [(2,)]


def test_the_farthest_need_leaves_first() -> None:
    """Of what is announced; tails before heads. This matters where a plan holds a shard more than once, or jobs share one."""
    cache = FullCache(6, {0: 2, 1: 2, 2: 2})
    cache.plans.replace(READER, [cache.shards[number] for number in (1, 2, 0, 3)])
    assert cache.leaving(4) == [(name_of(0), 1), (name_of(0), 0), (name_of(2), 1), (name_of(2), 0)]


def test_a_prefetch_displaces_only_what_is_needed_later() -> None:
    """Never a segment that is needed before the one it fetches."""
    cache = FullCache(2, {0: 2})
    cache.plans.replace(READER, [cache.shards[0], cache.shards[1]])
    need = need_at(cache.plans, name_of(0))
    assert need is not None
    with pytest.raises(CacheFull):
        cache.admission.reserve_ahead(SEGMENT_BYTES, need + 1.0, READER)
    assert cache.admission.reserve_ahead(SEGMENT_BYTES, need - 1.0, READER).victims


def test_two_segments_a_reader_displace() -> None:
    """What is needed again leaves for them, and for no third one while they are unread; what a reader asks for inside its shard is one."""
    cache = FullCache(8, {0: 4, 1: 4})
    cache.plans.replace(READER, [cache.shards[number] for number in (2, 0, 1)])
    need = need_at(cache.plans, name_of(0))
    assert need is not None
    for index, inside in enumerate((True, False)):
        assert cache.admission.reserve_ahead(SEGMENT_BYTES, need - 1.0, READER, (name_of(2), index), inside=inside).victims
    with pytest.raises(CacheFull):
        cache.admission.reserve_ahead(SEGMENT_BYTES, need - 1.0, READER, (name_of(2), 2))
    assert cache.admission.read_ahead.unread_bytes == SEGMENT_BYTES
    cache.admission.read_ahead.end(name_of(2), 0)
    assert cache.admission.reserve_ahead(SEGMENT_BYTES, need - 1.0, READER, (name_of(2), 2)).victims


def test_half_of_the_cache_is_unread_and_two_segments_of_each_reader_beyond_it() -> None:
    """Who stands still with half of the cache ahead of it keeps nobody from reading ahead."""
    cache, other = FullCache(8, {}), ReaderName("other", "0", "0", "0.0")
    for index in range(4):
        cache.admission.reserve_ahead(SEGMENT_BYTES, None, READER, ("stands", index))
    with pytest.raises(CacheFull, match="unread"):
        cache.admission.reserve_ahead(SEGMENT_BYTES, None, READER, ("stands", 4))
    for index in range(2):
        cache.admission.reserve_ahead(SEGMENT_BYTES, None, other, ("comes", index))
    with pytest.raises(CacheFull, match="unread"):
        cache.admission.reserve_ahead(SEGMENT_BYTES, None, other, ("comes", 2))
