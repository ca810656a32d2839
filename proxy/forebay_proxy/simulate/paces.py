"""How long recorded readers take for their shards by themselves, whatever they waited. Pure.

A log tells when a reader opened each shard, and how long the sidecar waited for bytes meanwhile. That is not how long the reader stood
still: while the sidecar waits for the next piece, its reader is often busy with the last one (measured: eight readers at 80 % of their
pace, 150 s waited by the sidecar, 25 s lost by them). What a reader can take is seen where hardly anything was waited for, and there the
time to its next opening is all its own. Elsewhere it took as long as at that pace, but no less than the time that nothing was waited for,
and no more than there was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["RecordedOpening", "own_seconds"]

CALM = 0.05  # of the time to the next opening: what was waited less than that is none


@dataclass(frozen=True, slots=True)
class RecordedOpening:
    """A reader opened a shard: ``moment`` in seconds from the first opening of all. Of the ``seconds`` until all of it was sent,
    ``waited_s`` were waited for bytes. None where that was not recorded."""

    moment: float
    shard: Shard
    waited_s: float | None = None
    seconds: float | None = None


Openings = Sequence[Sequence[RecordedOpening]]  # of one reader, epoch by epoch


def own_seconds(openings: Mapping[ReaderName, Openings], lengths: Mapping[str, int]) -> dict[ReaderName, tuple[tuple[float, ...], ...]]:
    """Seconds a shard, as ``openings`` has them; ``lengths``: bytes by name. Readers of whom too little was recorded are left out."""
    told = {reader: epochs for reader, epochs in openings.items() if all(each.waited_s is not None for each in chain(*epochs))}
    jobs: dict[str, list[Openings]] = {}
    for reader, epochs in told.items():
        jobs.setdefault(reader.job, []).append(epochs)
    paces = {job: _pace(chain(*readers), lengths) for job, readers in jobs.items()}
    return {reader: tuple(_own(epoch, lengths, paces[reader.job]) for epoch in epochs) for reader, epochs in told.items()}


def _pace(epochs: Iterable[Sequence[RecordedOpening]], lengths: Mapping[str, int]) -> float | None:
    """Bytes a second that each reader of a job takes from shards that it does not wait for. The median: one that stood still for a
    checkpoint is no slow reader.
    """
    calm = []
    for opening, following in chain.from_iterable(map(pairwise, epochs)):
        interval = following.moment - opening.moment
        if interval > 0 and (opening.waited_s or 0.0) < CALM * interval and opening.shard.name in lengths:
            calm.append(lengths[opening.shard.name] / interval)
    return median(calm) if calm else None


def _own(epoch: Sequence[RecordedOpening], lengths: Mapping[str, int], pace: float | None) -> tuple[float, ...]:
    found = []
    for place, opening in enumerate(epoch):
        waited = opening.waited_s or 0.0
        usual = lengths.get(opening.shard.name, 0) / pace if pace else 0.0
        if place + 1 < len(epoch):
            interval = epoch[place + 1].moment - opening.moment
            found.append(max(0.0, interval - waited, min(interval, usual)))
        else:  # when its reader was through with the bytes sent before is not known
            found.append(max(0.0, (opening.seconds or 0.0) - waited, usual))
    return tuple(found)
