"""Which reader reads which shards, in which order, from when on: made from a list of shards, or taken from a recording. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ALL", "Script", "Workload", "shuffled"]

ALL = 0  # a reader announces whole epochs


@dataclass(frozen=True, slots=True)
class Script:
    """One reader: the shards of each epoch, in order. ``rate`` in bytes a second (None: as they come).

    As far as it was recorded, by epoch and place: ``moments`` (seconds from the start) at which it opened a shard at the earliest, and
    ``own_s``, how many seconds it took for a shard by itself, whatever it waited. Places beyond the end of a list have none.
    ``numbers``: the epochs as it told them; None: counted from 0.
    ``set_name``: the set that its plans name. ``is_named``: False: its requests name no reader; then it announces nothing.
    ``after``: a job that has to end first; ``begins_at`` counts from there.
    """

    reader: ReaderName
    epochs: tuple[tuple[Shard, ...], ...]
    rate: float | None = None
    begins_at: float = 0.0
    moments: tuple[tuple[float, ...], ...] = ()
    own_s: tuple[tuple[float, ...], ...] = ()
    numbers: tuple[int, ...] | None = None
    set_name: str | None = None
    is_named: bool = True
    after: str | None = None

    def moment(self, epoch: int, position: int) -> float:
        """The earliest moment at which it opens the shard at ``position``."""
        known = _at(self.moments, epoch, position)
        return self.begins_at if known is None else known

    def pace(self, epoch: int, position: int, length: int) -> float | None:
        """Bytes a second at which it takes the shard at ``position``, which has ``length`` bytes; None: as they come."""
        own = _at(self.own_s, epoch, position)
        return self.rate if own is None else length / own if own else None

    def number(self, epoch: int) -> int:
        """The number that the loader gives its ``epoch``."""
        return epoch if self.numbers is None else self.numbers[epoch]

    def place(self, number: int) -> int | None:
        """Which of its epochs it tells to be ``number``."""
        places = range(len(self.epochs))
        return next((place for place in places if self.number(place) == number), None)


def _at(known: tuple[tuple[float, ...], ...], epoch: int, position: int) -> float | None:
    return known[epoch][position] if epoch < len(known) and position < len(known[epoch]) else None


@dataclass(frozen=True, slots=True)
class Workload:
    """All readers, and the lengths (bytes) of all their shards by name.

    ``ahead``: how many shards a reader keeps announced, ``ALL`` for whole epochs, None for no plans at all; none beyond the epoch it is in.
    ``barrier``: readers of one job begin an epoch together, as a DataLoader's workers do.
    """

    scripts: tuple[Script, ...]
    lengths: Mapping[str, int]
    ahead: int | None = ALL
    barrier: bool = True

    @property
    def dataset_bytes(self) -> int:
        return sum(self.lengths.values())

    @property
    def read_bytes(self) -> int:
        """What all readers take together."""
        return sum(self.lengths[shard.name] for script in self.scripts for epoch in script.epochs for shard in epoch)

    @property
    def read_segments(self) -> int:
        """What has to be simulated: a shard is one at least, however short."""
        counts = {name: max(1, DEFAULT_LAYOUT.count(length)) for name, length in self.lengths.items()}
        return sum(counts[shard.name] for script in self.scripts for epoch in script.epochs for shard in epoch)

    @property
    def epochs(self) -> int:
        return max((len(script.epochs) for script in self.scripts), default=0)

    def at_rate(self, rate: float | None) -> Workload:
        """The same with another rate of each reader."""
        return replace(self, scripts=tuple(replace(script, rate=rate) for script in self.scripts))


def shuffled(
    shards: Sequence[Shard],
    lengths: Mapping[str, int],
    *,
    epochs: int = 1,
    seed: int | None = 0,
    readers: int = 1,
    jobs: int = 1,
    rate: float | None = None,
    stagger_s: float = 0.0,
    ahead: int | None = ALL,
) -> Workload:
    """Each job reads every shard once an epoch, in an order of its own (``seed``; None: as listed), dealt out to its readers in turn.

    ``rate`` (bytes a second) is that of one job, shared by its readers evenly. Each further job begins ``stagger_s`` later; with one job,
    each further reader.
    """
    scripts = []
    for job in range(jobs):
        orders = [list(shards) for _ in range(epochs)]
        for epoch, order in enumerate(orders):
            if seed is not None:
                random.Random(f"{seed}/{job}/{epoch}").shuffle(order)  # noqa: S311 -- an order to be had again, no secret
        for number in range(readers):
            name = ReaderName(f"job{job}", "0", str(number), f"{number}.0")
            begins_at = stagger_s * (job if jobs > 1 else number)
            dealt = tuple(tuple(order[number::readers]) for order in orders)
            scripts.append(Script(name, dealt, rate / readers if rate else None, begins_at))
    return Workload(tuple(scripts), lengths, ahead, barrier=not stagger_s or jobs > 1)
