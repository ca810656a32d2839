"""Ranks and workers that read made-up shards through a made-up shuffle buffer, in memory, and can be stopped at any sample.

Written from the description of a worker's state, not from the code that writes real ones: two roads to the same place.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from forebay_loader.dataset.shard_list import Part, epoch_order, split, worker_part
from forebay_loader.resume.pass_state import packed
from forebay_loader.resume.state_parts import sealed

Sample = tuple[int, int]  # a shard's place in the list, and the sample's number in it
SEED = 7


@dataclass
class MadeSet:
    """Shards of so many samples each; a stage drops every ``dropped``-th of them."""

    counts: list[int]
    dropped: int = 0
    buffer: int = 1
    epoch: int = 0

    def wanted(self, sample: Sample) -> bool:
        return not self.dropped or (sample[0] * 31 + sample[1]) % self.dropped != 0

    def all(self) -> set[Sample]:
        return {(shard, n) for shard, count in enumerate(self.counts) for n in range(count) if self.wanted((shard, n))}


def is_done(done: dict[str, Any], sample: Sample) -> bool:
    told = done.get(str(sample[0]), [])
    return told == "all" or any(start <= sample[1] < stop for start, stop in told)


@dataclass
class MadeWorker:
    """One worker's pass, which leaves out what is ``done``: it counts ordinals, keeps a buffer, and says where it stands."""

    data: MadeSet
    part: Part
    place: tuple[int, int, int, int]  # rank, size, worker, workers
    done: dict[str, Any]
    items: list[tuple[int, int, int]] = field(default_factory=list)
    read: int = 0
    slots: list[tuple[int, Sample]] = field(default_factory=list)
    over: bool = False
    entry: dict[str, Any] | None = None
    handed: list[int] = field(default_factory=list)
    told: int = 0

    def samples(self, rng: random.Random) -> Iterator[Sample]:
        """What it hands out."""
        for ordinal, sample in self._read():
            self.slots.append((ordinal, sample))
            if len(self.slots) >= self.data.buffer:
                yield self._give(rng)
        while self.slots:
            yield self._give(rng)
        self.over = True

    def snapshot(self) -> None:
        """From here on, what is handed out is told by ordinals."""
        self.handed, self.told = [], len(self.items)
        self.entry = {"worker": self.place[2], "state": self.state()}

    def since(self) -> dict[str, Any] | None:
        """The entry of a loader's state."""
        if self.entry is None:
            return None
        late = dict(zip(("shards", "firsts", "ordinals"), map(packed, self._columns(self.items[self.told :])), strict=True))
        return {**self.entry, "since": len(self.handed), "handed": packed(self.handed), **late, "over": self.over}

    def state(self) -> dict[str, Any]:
        rank, size, worker, workers = self.place
        shards, firsts, ordinals = map(packed, self._columns(self.items))
        return {
            "format": 3,
            "epoch": self.data.epoch,
            "turn": 0,
            "yielded": len(self.handed),
            "over": self.over,
            "resume": "exact",
            "made_of": {
                "shards": len(self.data.counts),
                "order": f"ShardOrder(seed={SEED}, shuffled=True, resampled=False)",
                "rank": f"{rank} of {size}",
                "worker": f"{worker} of {workers}",
                "stages": ["ShardList"],
            },
            "drawn": [],
            "stripe": [self.part.stripe, self.part.stripes],
            "shards": shards,
            "firsts": firsts,
            "ordinals": ordinals,
            "read": self.read,
            "etags": {str(at): f'"v{shard}"' for at, (shard, _, _) in enumerate(self.items)},
            "buffers": [{"refs": packed(ordinal for ordinal, _ in self.slots), "rng": ""}],
        }

    @staticmethod
    def _columns(items: list[tuple[int, int, int]]) -> list[list[int]]:
        return [[item[at] for item in items] for at in range(3)]

    def _read(self) -> Iterator[tuple[int, Sample]]:
        for shard in self.part.shards:
            self.items.append((shard, 0, self.read))
            for number in range(self.data.counts[shard]):
                ordinal = self.read
                self.read += 1
                mine = ordinal % self.part.stripes == self.part.stripe
                if mine and not is_done(self.done, (shard, number)) and self.data.wanted((shard, number)):
                    yield ordinal, (shard, number)

    def _give(self, rng: random.Random) -> Sample:
        at = rng.randrange(len(self.slots))
        self.slots[at], self.slots[-1] = self.slots[-1], self.slots[at]
        ordinal, sample = self.slots.pop()
        self.handed.append(ordinal)
        return sample


def world(data: MadeSet, size: int, workers: int, done: dict[str, Any]) -> list[list[MadeWorker]]:
    """The workers of each rank: what is not done, in the order of seed and epoch, shared out as the loader does."""
    left = [shard for shard in epoch_order(len(data.counts), SEED, data.epoch) if done.get(str(shard)) != "all"]
    return [
        [
            MadeWorker(data, worker_part(split(left, rank, size), worker, workers), (rank, size, worker, workers), done)
            for worker in range(workers)
        ]
        for rank in range(size)
    ]


def stopped(ranks: list[list[MadeWorker]], rng: random.Random, most: int | None) -> tuple[list[Sample], list[dict[str, Any]]]:
    """What the workers hand out, each up to a number of samples of its own up to ``most``, None for all; and the state of each rank."""
    given: list[Sample] = []
    for worker in (each for rank in ranks for each in rank):
        samples = worker.samples(rng)
        steps = None if most is None else rng.randint(0, most)
        if steps is None:
            given += samples
            continue
        before = rng.randint(0, steps)
        for at, sample in enumerate(islice(samples, steps)):
            given.append(sample)
            if at <= before:
                worker.snapshot()
    return given, [loader_state(rank) for rank in ranks]


def loader_state(workers: list[MadeWorker]) -> dict[str, Any]:
    rank, size, _, count = workers[0].place
    entries = [entry for entry in (worker.since() for worker in workers) if entry is not None]
    epoch = workers[0].data.epoch
    state = {"format": 3, "kind": "loader", "rank": rank, "size": size, "workers": count, "epoch": epoch, "next": 0, "states": entries}
    return sealed({**state, "done": workers[0].done})  # a worker that has handed out nothing has no state to keep it in
