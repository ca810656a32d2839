"""What a batch may hold, in numbers: samples, bytes, frames, tokens, and the lengths that share a bucket. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Generic, Hashable, Iterator, Literal, NamedTuple, Optional, TypeVar

from forebay_loader.base.argument_types import whole

__all__ = ["BatchBudget", "BatchLoad", "BudgetBuckets", "SampleSize"]

T = TypeVar("T")


class SampleSize(NamedTuple):
    """Of one sample; what no budget asks for is 0. ``shape``: samples of a batch have the same."""

    tokens: int = 0
    frames: int = 0
    size_bytes: int = 0
    shape: Hashable = None


class BatchLoad(NamedTuple):
    """What is in a batch: sums, and the longest."""

    samples: int = 0
    size_bytes: int = 0
    tokens: int = 0
    frames: int = 0
    longest_tokens: int = 0
    longest_frames: int = 0

    def plus(self, one: SampleSize) -> BatchLoad:
        return BatchLoad(
            self.samples + 1,
            self.size_bytes + one.size_bytes,
            self.tokens + one.tokens,
            self.frames + one.frames,
            max(self.longest_tokens, one.tokens),
            max(self.longest_frames, one.frames),
        )


@dataclass(frozen=True)
class BatchBudget:
    """``max_…``: of one batch, None for no limit. ``buckets``: the greatest lengths of all buckets but the last, ascending.

    ``pad_to``: how tokens and frames are counted. "longest": as many for each sample as the longest in its batch has, because padding takes
    room too; "edge": as many as the bucket's greatest length; None: as they are. ``max_waiting``: how many batches wait for more samples,
    None for one a bucket and shape. Raises ``TypeError`` and ``ValueError``.
    """

    max_samples: Optional[int] = None
    max_bytes: Optional[int] = None
    max_frames: Optional[int] = None
    max_tokens: Optional[int] = None
    buckets: tuple[int, ...] = ()
    pad_to: Optional[Literal["longest", "edge"]] = "longest"
    oversize: Literal["alone", "raise"] = "alone"
    max_waiting: Optional[int] = field(default=None, repr=False)  # states of before it have it not

    def __post_init__(self) -> None:
        limits = ("max_samples", "max_bytes", "max_frames", "max_tokens")
        for name in limits:
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), "a whole number from 1, or None for no limit", least=1)
        if all(getattr(self, name) is None for name in limits):
            raise ValueError(f"a batch without a limit would be the whole epoch: give one of {', '.join(limits)}")
        if self.max_waiting is not None:
            whole("max_waiting", self.max_waiting, "a whole number from 1, or None for no limit", least=1)
        for edge in self.buckets:
            whole("buckets", edge, "lengths from 1", least=1)
        if list(self.buckets) != sorted(set(self.buckets)):
            raise ValueError(f"buckets takes lengths that ascend, each once; got {self.buckets!r}")
        if self.pad_to not in ("longest", "edge", None):
            raise ValueError(f"pad_to is {self.pad_to!r}; it can be 'longest', 'edge' or None")
        if self.pad_to == "edge" and not self.buckets:
            raise ValueError("pad_to='edge' counts each sample with the greatest length of its bucket, and there are no buckets=")
        if self.oversize not in ("alone", "raise"):
            raise ValueError(f"oversize is {self.oversize!r}; it can be 'alone' or 'raise'")

    @property
    def by_frames(self) -> bool:
        """Whether buckets go by frames; else by tokens."""
        return self.max_frames is not None and self.max_tokens is None

    def bucket_of(self, one: SampleSize) -> int:
        """Its number: the first whose greatest length is not below the sample's; the last takes all that are longer."""
        return bisect_left(self.buckets, one.frames if self.by_frames else one.tokens)

    def fits(self, load: BatchLoad, bucket: int) -> bool:
        return all(used <= most for _, used, most in self._limits(load, bucket))

    def is_full(self, load: BatchLoad, bucket: int) -> bool:
        """Whether nothing more goes in, whatever it is (but for samples of no size)."""
        return any(used >= most for _, used, most in self._limits(load, bucket))

    def excess(self, one: SampleSize) -> str:
        """By what a batch of this sample alone is over its budget, in words; "" where it is not."""
        load, bucket = BatchLoad().plus(one), self.bucket_of(one)
        return ", ".join(f"{used} {name} where {most} are allowed" for name, used, most in self._limits(load, bucket) if used > most)

    def _limits(self, load: BatchLoad, bucket: int) -> Iterator[tuple[str, int, int]]:
        """(what, how much is used, how much there is), of what is limited."""
        counted = (
            ("samples", load.samples, self.max_samples),
            ("bytes", load.size_bytes, self.max_bytes),
            ("frames", self._padded(load.frames, load.longest_frames, load.samples, bucket, self.by_frames), self.max_frames),
            ("tokens", self._padded(load.tokens, load.longest_tokens, load.samples, bucket, not self.by_frames), self.max_tokens),
        )
        return ((name, used, most) for name, used, most in counted if most is not None)

    def _padded(self, total: int, longest: int, samples: int, bucket: int, bucketed: bool) -> int:
        if self.pad_to is None:
            return total
        if self.pad_to == "edge" and bucketed and bucket < len(self.buckets):
            longest = self.buckets[bucket]  # what is longer than the last edge has no edge, and is padded to the longest
        return samples * longest


_Bucket = tuple[int, Hashable]  # of a length, and a shape


class BudgetBuckets(Generic[T]):
    """What waits for a batch. Items are anything: a sample, its key.

    A sample waits in the bucket of its length and shape until no other fits in. One that does not fit itself begins the next batch, and
    those that wait leave as one. Where more batches wait than may, the one that waits for longest leaves. So each bucket keeps the order
    of arrival, the same samples give the same batches, and one batch a bucket waits.
    """

    def __init__(self, budget: BatchBudget) -> None:
        self._budget = budget
        self._arrived = 0
        self._waits: dict[_Bucket, list[tuple[int, T]]] = {}  # each with the number of its arrival
        self._loads: dict[_Bucket, BatchLoad] = {}

    def add(self, item: T, size: SampleSize) -> list[list[T]]:
        """The batches that are whole now: none, one, or two where an item that alone is over the budget follows others of its bucket."""
        bucket = self._budget.bucket_of(size), size.shape
        self._arrived += 1
        made = []
        if not self._budget.fits(self._loads.get(bucket, BatchLoad()).plus(size), bucket[0]):
            made += self._take(bucket)
        self._waits.setdefault(bucket, []).append((self._arrived, item))
        self._loads[bucket] = load = self._loads.get(bucket, BatchLoad()).plus(size)
        if self._budget.is_full(load, bucket[0]):
            made += self._take(bucket)
        elif self._budget.max_waiting is not None and len(self._waits) > self._budget.max_waiting:
            made += self._take(self._oldest_first()[0])
        return made

    def flush(self) -> list[list[T]]:
        """The batches that are left at the end, one of each bucket in which something waits; the longest waiting first."""
        return [batch for bucket in self._oldest_first() for batch in self._take(bucket)]

    @property
    def waiting(self) -> list[T]:
        """What waits, in the order of arrival: given to fresh buckets in this order, it waits there in the same way."""
        waits = [each for bucket in self._waits.values() for each in bucket]
        return [item for _, item in sorted(waits, key=lambda each: each[0])]

    def _oldest_first(self) -> list[_Bucket]:
        return sorted(self._waits, key=lambda bucket: self._waits[bucket][0][0])

    def _take(self, bucket: _Bucket) -> list[list[T]]:
        self._loads.pop(bucket, None)
        waited = self._waits.pop(bucket, [])
        return [[item for _, item in waited]] if waited else []
