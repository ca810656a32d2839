"""What becomes of the samples of an epoch, by the way in which ranks and workers share them out. Pure.

Webdataset deals shards out: rank r of R reads ``shards[r::R]``, its worker w of W ``[w::W]`` of those. So ranks have different numbers of
samples unless shards are equal and divide evenly, and somebody must decide what happens at the end of the shortest one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["EpochShare", "Readers", "epoch_shares", "samples_taken", "split_by_shards"]


@dataclass(frozen=True, slots=True)
class Readers:
    """``ranks`` of ``workers`` each; with 0 workers the rank reads itself. A batch has ``batch`` samples and is made in a worker."""

    ranks: int
    workers: int
    batch: int = 1

    @property
    def a_rank(self) -> int:
        return max(1, self.workers)

    @property
    def count(self) -> int:
        return self.ranks * self.a_rank

    def batches(self, samples: int) -> int:
        """That one worker makes of so many samples, a last partial one included."""
        return -(-samples // self.batch)


@dataclass(frozen=True, slots=True)
class EpochShare:
    """An epoch in one ``way``: steps of the rank with the fewest and the most, samples that nobody trains on or that come twice."""

    way: str
    least_steps: int
    most_steps: int
    lost: int
    repeated: int
    note: str


def split_by_shards(counts: Sequence[int], readers: Readers) -> list[list[int]]:
    """Samples of each worker of each rank, for shards in the order in which they are listed."""
    of_ranks = [counts[rank :: readers.ranks] for rank in range(readers.ranks)]
    return [[sum(shards[worker :: readers.a_rank]) for worker in range(readers.a_rank)] for shards in of_ranks]


def samples_taken(shares: Sequence[int], steps: int, batch: int) -> int:
    """What the first ``steps`` batches of a rank hold: a DataLoader takes one of each worker in turn, past those that have ended."""
    batches = [-(-share // batch) for share in shares]

    def by_round(turn: int) -> int:
        return sum(min(count, turn) for count in batches)

    rounds = bisect_right(range(max(batches, default=0) + 1), steps, key=by_round) - 1
    rest, taken = steps - by_round(rounds), 0
    for share, count in zip(shares, batches, strict=True):
        more = rest > 0 and count > rounds
        rest -= more
        taken += min(share, (min(count, rounds) + more) * batch)
    return taken


def epoch_shares(counts: Sequence[int], readers: Readers) -> list[EpochShare]:
    """Each way, the plainest first. ``counts``: samples of each shard, at least one."""
    split = split_by_shards(counts, readers)
    return [_as_is(split, readers), _voted(split, readers), *_by_samples(sum(counts), readers), _resampled(counts, readers)]


def _steps(split: Sequence[Sequence[int]], readers: Readers) -> list[int]:
    return [sum(map(readers.batches, shares)) for shares in split]


def _as_is(split: Sequence[Sequence[int]], readers: Readers) -> EpochShare:
    steps = _steps(split, readers)
    least, most = min(steps), max(steps)
    note = "all ranks end together"
    if least < most:
        longer, shorter = steps.index(most), steps.index(least)
        note = f"rank {longer} takes {most - least} more than rank {shorter}, and waits for it in the gradient all-reduce"
    return EpochShare("shards, as webdataset splits", least, most, 0, 0, note)


def _voted(split: Sequence[Sequence[int]], readers: Readers) -> EpochShare:
    steps = min(_steps(split, readers))
    lost = sum(map(sum, split)) - sum(samples_taken(shares, steps, readers.batch) for shares in split)
    return EpochShare("shards, equal steps by a vote", steps, steps, lost, 0, "fb.WebLoader where samples are not counted")


def _by_samples(total: int, readers: Readers) -> list[EpochShare]:
    more, fewer = -(-total // readers.count), total // readers.count
    made = []
    for each, tail in ((more, "repeat"), (fewer, "drop")):
        steps = readers.a_rank * readers.batches(each)
        read = each * readers.count
        lost, repeated = max(0, total - read), max(0, read - total)
        note = "fb.WebLoader where forebay index has counted"
        made.append(EpochShare(f"samples, tail='{tail}'", steps, steps, lost, repeated, note))
    return made


def _resampled(counts: Sequence[int], readers: Readers) -> EpochShare:
    """As many draws as there are shards, each of any shard: (1 - 1/n)^n of them are never drawn."""
    shards, total = len(counts), sum(counts)
    missed = round(total * (1 - 1 / shards) ** shards)
    steps = -(-total // (readers.ranks * readers.batch))
    note = f"expected of an epoch of with_epoch({steps}) on the loader; other samples in each"
    return EpochShare("resampled", steps, steps, missed, missed, note)
