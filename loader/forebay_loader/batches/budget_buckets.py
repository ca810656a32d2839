"""From samples with their sizes to batches within a budget: pure arithmetic, in the order of arrival.

A sample waits in the bucket of its length for others, until no other fits in. Where it does not fit itself, those that wait leave as a
batch and it begins the next one. So each bucket gives its samples in the order in which they came, the same samples give the same batches,
and never more waits than one batch a bucket.
"""

from __future__ import annotations

from typing import Generic, Iterable, TypeVar

from forebay_loader.batches.batch_budget import BatchBudget, BatchLoad, SampleSize

__all__ = ["BudgetBuckets"]

T = TypeVar("T")


class BudgetBuckets(Generic[T]):
    """What waits for a batch. Items are anything: a sample, its key."""

    def __init__(self, budget: BatchBudget) -> None:
        self._budget = budget
        self._arrived = 0
        self._waits: dict[int, list[tuple[int, T]]] = {}  # by bucket, each with the number of its arrival
        self._loads: dict[int, BatchLoad] = {}

    def add(self, item: T, size: SampleSize) -> list[list[T]]:
        """The batches that are whole now: none, one, or two where an item that alone is over the budget follows others of its bucket."""
        bucket = self._budget.bucket_of(size)
        self._arrived += 1
        made = []
        if not self._budget.fits(self._loads.get(bucket, BatchLoad()).plus(size), bucket):
            made += self._take(bucket)
        self._waits.setdefault(bucket, []).append((self._arrived, item))
        self._loads[bucket] = load = self._loads.get(bucket, BatchLoad()).plus(size)
        if self._budget.is_full(load, bucket):
            made += self._take(bucket)
        return made

    def flush(self) -> list[list[T]]:
        """The batches that are left at the end, one of each bucket in which something waits; the longest waiting first."""
        buckets = sorted(self._waits, key=lambda bucket: self._waits[bucket][0][0])
        return [batch for bucket in buckets for batch in self._take(bucket)]

    @property
    def waiting(self) -> list[T]:
        """What waits, in the order of arrival: given to fresh buckets in this order, it waits there in the same way."""
        return [item for _, item in sorted(_chained(self._waits.values()), key=lambda each: each[0])]

    def _take(self, bucket: int) -> list[list[T]]:
        self._loads.pop(bucket, None)
        waited = self._waits.pop(bucket, [])
        return [[item for _, item in waited]] if waited else []


def _chained(lists: Iterable[list[tuple[int, T]]]) -> Iterable[tuple[int, T]]:
    return (each for one in lists for each in one)
