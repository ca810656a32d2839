"""Which reader opens which shards, and in which order: made from a list of shards, or taken from a recording. Pure."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ALL", "Opening", "ReaderEpoch", "Workload", "shuffled"]

ALL = 0  # a reader announces whole epochs


@dataclass(slots=True)
class ReaderEpoch:
    """What one reader reads in one epoch, in order; ``number``: of the epoch, as the loader tells it."""

    number: int
    shards: list[Shard] = field(default_factory=list)


Orders = Mapping[ReaderName, Sequence[ReaderEpoch]]


@dataclass(frozen=True, slots=True)
class Opening:
    """A reader opens the shard at ``position`` of an epoch; ``is_last``: it reads nothing after it."""

    reader: ReaderName
    epoch: ReaderEpoch
    position: int
    is_last: bool

    @property
    def shard(self) -> Shard:
        return self.epoch.shards[self.position]


@dataclass(frozen=True, slots=True)
class Workload:
    """All readers, and the lengths (bytes) of all their shards by name.

    ``turns``: who opens its next shard, in order. Empty: readers take turns, epoch by epoch.
    ``ahead``: how many shards a reader keeps announced, ``ALL`` for whole epochs; none beyond the epoch it is in.
    """

    orders: Orders
    lengths: Mapping[str, int]
    ahead: int = ALL
    turns: Sequence[ReaderName] = ()

    @property
    def dataset_bytes(self) -> int:
        return sum(self.lengths.values())

    @property
    def read_segments(self) -> int:
        """How much there is to replay: a shard is one segment at least, however short."""
        counts = {name: max(1, DEFAULT_LAYOUT.count(length)) for name, length in self.lengths.items()}
        return sum(counts[shard.name] for epochs in self.orders.values() for epoch in epochs for shard in epoch.shards)

    def openings(self) -> Iterator[Opening]:
        """All openings, in order."""
        left = {reader: sum(len(epoch.shards) for epoch in epochs) for reader, epochs in self.orders.items()}
        places = {reader: ((epoch, at) for epoch in epochs for at in range(len(epoch.shards))) for reader, epochs in self.orders.items()}
        for reader in self.turns or _in_turn(self.orders):
            epoch, position = next(places[reader])
            left[reader] -= 1
            yield Opening(reader, epoch, position, is_last=not left[reader])


def _in_turn(orders: Orders) -> Iterator[ReaderName]:
    for number in sorted({epoch.number for epochs in orders.values() for epoch in epochs}):
        left = Counter({reader: sum(len(each.shards) for each in epochs if each.number == number) for reader, epochs in orders.items()})
        while left := +left:
            yield from list(left)
            left.subtract(list(left))


def shuffled(
    shards: Sequence[Shard], lengths: Mapping[str, int],
    *, epochs: int = 1, seed: int | None = 0, readers: int = 1, jobs: int = 1, ahead: int = ALL,
) -> Workload:  # fmt: skip
    """Each job reads every shard once an epoch, in an order of its own (``seed``; None: as listed), dealt out to its readers in turn."""
    orders: dict[ReaderName, list[ReaderEpoch]] = {}
    for job in range(jobs):
        for epoch in range(epochs):
            order = list(shards)
            if seed is not None:
                random.Random(f"{seed}/{job}/{epoch}").shuffle(order)  # noqa: S311 -- an order to be had again, no secret
            for number in range(readers):
                name = ReaderName(f"job{job}", "0", str(number), f"{number}.0")
                orders.setdefault(name, []).append(ReaderEpoch(epoch, order[number::readers]))
    return Workload(orders, lengths, ahead)
