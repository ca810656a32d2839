"""What becomes of the samples of an epoch: against plain counting, batch by batch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.cli.doctor.epoch_shares import EpochShare, Readers, epoch_shares, samples_taken, split_by_shards

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)
READERS = st.builds(Readers, st.integers(1, 4), st.integers(0, 4), st.integers(1, 7))


def batches_of(shares: list[int], batch: int) -> list[int]:
    """The batches of a rank in the order in which a DataLoader hands them over: one of each worker in turn."""
    queues = [[min(batch, share - at) for at in range(0, share, batch)] for share in shares]
    return [queue[turn] for turn in range(max(map(len, queues), default=0)) for queue in queues if turn < len(queue)]


def by_way(counts: list[int], readers: Readers) -> dict[str, EpochShare]:
    return {share.way: share for share in epoch_shares(counts, readers)}


@given(st.lists(st.integers(0, 30), max_size=5), st.integers(0, 60), st.integers(1, 7))
def test_taken_in_turn(shares: list[int], steps: int, batch: int) -> None:
    """The first batches of a rank, whichever worker they are of."""
    assert samples_taken(shares, steps, batch) == sum(batches_of(shares, batch)[:steps])


@given(COUNTS, READERS)
def test_every_shard_is_somebodys(counts: list[int], readers: Readers) -> None:
    """Split as webdataset splits, each sample has one reader."""
    split = split_by_shards(counts, readers)
    assert (len(split), {len(shares) for shares in split}) == (readers.ranks, {readers.a_rank})
    assert sum(map(sum, split)) == sum(counts)


@given(COUNTS, READERS)
def test_the_vote_loses_what_is_behind_the_shortest(counts: list[int], readers: Readers) -> None:
    """All that ranks have behind the step at which the first of them ends."""
    split = split_by_shards(counts, readers)
    of_ranks = [batches_of(shares, readers.batch) for shares in split]
    voted = by_way(counts, readers)["shards, equal steps by a vote"]
    steps = min(map(len, of_ranks))
    assert (voted.least_steps, voted.most_steps, voted.lost) == (steps, steps, sum(sum(batches[steps:]) for batches in of_ranks))


@given(COUNTS, READERS)
def test_samples_are_shared_to_fewer_than_readers(counts: list[int], readers: Readers) -> None:
    """What does not divide is less than one sample a reader, and either comes twice or is lost."""
    repeat, drop = (by_way(counts, readers)[f"samples, tail='{tail}'"] for tail in ("repeat", "drop"))
    assert (repeat.lost, drop.repeated) == (0, 0)
    assert max(repeat.repeated, drop.lost) < readers.count
    assert (sum(counts) + repeat.repeated) % readers.count == (sum(counts) - drop.lost) % readers.count == 0


def test_equal_shards_that_divide_lose_nothing() -> None:
    """But a resampled epoch, which draws."""
    shares = by_way([64] * 32, Readers(4, 2, 16))
    assert {way for way, share in shares.items() if share.lost or share.repeated} == {"resampled"}
    assert {(share.least_steps, share.most_steps) for share in shares.values()} == {(32, 32)}


def test_who_waits_is_named() -> None:
    """The rank with most steps, and how many more it has."""
    plain = by_way([10, 10, 30], Readers(2, 1, 10))["shards, as webdataset splits"]
    assert (plain.least_steps, plain.most_steps) == (1, 4)
    assert plain.note == "rank 0 takes 3 more than rank 1, and waits for it in the gradient all-reduce"


@pytest.mark.parametrize("shards", [1, 2, 100])
def test_a_resampled_epoch_misses_a_third(shards: int) -> None:
    """(1 - 1/n)^n, against drawing."""
    chance = random.Random(1)
    drawn = [shards - len({chance.randrange(shards) for _ in range(shards)}) for _ in range(3000)]
    missed = by_way([1000] * shards, Readers(1, 1))["resampled"].lost
    assert missed == pytest.approx(1000 * sum(drawn) / len(drawn), rel=0.05)
