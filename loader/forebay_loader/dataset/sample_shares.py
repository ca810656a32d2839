"""Splits an epoch by samples instead of by shards, if the number of samples of every shard is known: all workers read equally many.

The shards of the epoch, in order, form one long row of samples. Each worker of each rank reads one piece of it. All pieces are equally
long, so all ranks have the same number of batches, whatever the batch size. A piece may begin in the middle of a shard.

If the division leaves a remainder, it is smaller than the number of workers. With "repeat" the last pieces continue at the start of the
row, so some samples are read twice. With "drop" nobody reads the remainder.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence, Union
from urllib.parse import urlsplit

from forebay_loader.base.errors import ShardReadError
from forebay_loader.dataset.shard_list import FairShare, NodeSplit, ShardList, WorkerSplit
from forebay_loader.dataset.stages import TarSamples
from forebay_loader.identity.world import here_worker
from forebay_loader.meter.skips.skip_pass import SkipPass, current, lone_pass
from forebay_loader.plan.known_lists import lists_shards
from forebay_loader.resume.begun_shards import ITEM, LISTED
from forebay_loader.resume.cursor import Cursor, cursor_here
from forebay_loader.samples.faults import named

__all__ = ["ShareCounts", "SharePiece", "SharedOut", "counts_by_url", "piece", "ranges", "shareable", "shared_out"]


ShareCounts = Callable[[list[str]], Optional[Sequence[int]]]  # the number of samples of each URL, in order; None if one is not known


class SharePiece(NamedTuple):
    """A piece of the row: ``samples`` samples from number ``first`` on. After the end of the row it continues at the start."""

    first: int
    samples: int


def piece(total: int, place: int, places: int, *, drop: bool) -> SharePiece:
    """The piece of ``total`` samples for worker number ``place`` of ``places``, counted over all ranks."""
    each = total // places if drop else -(-total // places)
    return SharePiece(place * each, each)


def ranges(counts: Sequence[int], wanted: SharePiece) -> Iterator[tuple[int, int, int]]:
    """Yield the shards of a piece in order: (number of the shard, first sample, stop). ``counts`` has the samples
    of each shard of the row.
    """
    total, left = sum(counts), wanted.samples
    before = wanted.first % total if total else 0
    while left > 0 and total:
        for at, count in enumerate(counts):
            if before >= count:
                before -= count
                continue
            stop = min(count, before + left)
            yield at, before, stop
            left -= stop - before
            before = 0
            if not left:
                return


def counts_by_url(counts: Optional[Union[ShareCounts, Mapping[str, int]]], urls: list[str]) -> Optional[dict[str, int]]:
    """The counts of ``urls``: asked for, or looked up by URL or by file name (as in OpenCLIP's sizes.json). None if one is not known."""
    if counts is None:
        return None
    if not isinstance(counts, Mapping):
        found = counts(urls)
        return None if found is None else dict(zip(urls, found))  # noqa: B905  # strict= is not of 3.9
    known = [counts.get(url, counts.get(urlsplit(url).path.rpartition("/")[2])) for url in urls]
    return None if None in known else {url: int(count or 0) for url, count in zip(urls, known)}  # noqa: B905


def shareable(dataset: Any, *, drop: bool) -> Any:
    """Return a data set like ``dataset`` that can be split by samples, with a ``SharedOut`` stage.

    Returns ``dataset`` itself if it is not an ``fb.WebDataset`` that is split by shards.
    """
    pipeline = getattr(dataset, "pipeline", [])
    if len(pipeline) < 5 or getattr(dataset, "repetitions", 1) != 1:
        return dataset
    shards, nodes, workers, tars, fair, *rest = pipeline
    ours = (isinstance(shards, ShardList), isinstance(nodes, NodeSplit), isinstance(workers, WorkerSplit), isinstance(tars, TarSamples))
    if not all((*ours, isinstance(fair, FairShare))) or shards.order.resampled or not nodes.named or tars.selects:
        return dataset
    made = dataset.compose()
    made.pipeline = [shards, SharedOut((nodes, workers, tars, fair), shards, drop=drop), *rest]
    return made


def shared_out(dataset: Any) -> Optional[SharedOut]:
    """The ``SharedOut`` stage of ``dataset``; None if it has none."""
    stage = dict(enumerate(getattr(dataset, "pipeline", ()))).get(1)
    return stage if isinstance(stage, SharedOut) else None


@lists_shards
def _ranged(row: list[tuple[dict[str, Any], int, int]], wanted: Iterable[tuple[int, int, int]]) -> Iterator[dict[str, Any]]:
    for at, first, stop in wanted:
        item, begins, _ = row[at]
        yield {**item, "samples": (begins + first, begins + stop)}


class SharedOut:
    """The stages from shards to this worker's samples. They split by shards until ``by_samples`` gives the counts of all shards."""

    reads_shards = True  # later stages get samples

    def __init__(self, stages: tuple[NodeSplit, WorkerSplit, TarSamples, FairShare], shards: ShardList, *, drop: bool) -> None:
        self.stages = stages
        self._shards = shards
        self._drop = drop
        self._counts: Optional[dict[str, int]] = None

    def __repr__(self) -> str:
        return f"<shares of {'shards' if self._counts is None else 'samples'}, {self.stages[0].world}>"

    @property
    def urls(self) -> list[str]:
        return self._shards.urls

    @property
    def counted(self) -> bool:
        return self._counts is not None

    def by_samples(self, counts: Optional[Mapping[str, int]]) -> None:
        """Split by samples from the next pass on; with None, by shards. All ranks must make the same call."""
        self._counts = dict(counts) if counts and sum(counts[url] for url in self.urls) else None

    def digest(self, counts: Optional[Mapping[str, int]], workers: int = 0) -> int:
        """A positive number for the ``counts`` of these shards and the number of ``workers`` on each rank; 0 for None.

        Ranks compare it before they rely on the counts.
        """
        if not counts:
            return 0
        told = "\n".join(f"{counts[url]} {url}" for url in self.urls) + f"{self._drop} {workers}"
        return int.from_bytes(blake2b(told.encode(errors="surrogateescape"), digest_size=7).digest(), "big") + 1

    def __call__(self, data: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        if self._counts is None:
            nodes, workers, tars, fair = self.stages
            return fair(tars(workers(nodes(data))))
        skips, cursor = current() or lone_pass(), cursor_here()
        samples = self._samples(self._split(data, self._counts, cursor), skips, cursor)
        if cursor is not None:
            samples = cursor.counting(samples)
        return FairShare(None, self._shards, empty_check=self.stages[3].empty_check)(samples)

    def _split(self, data: Iterable[dict[str, Any]], known: Mapping[str, int], cursor: Optional[Cursor]) -> Iterator[dict[str, Any]]:
        world, worker = self.stages[0].world.resolved(), here_worker()
        done = {} if cursor is None else cursor.done
        row = [(item, *part) for item in data for part in _left_of(known[item["url"]], done.get(item.get(LISTED, -1), ()))]
        counts = [stop - first for _, first, stop in row]
        wanted = piece(sum(counts), world.rank * worker.workers + worker.id, world.size * worker.workers, drop=self._drop)
        return _ranged(row, ranges(counts, wanted))

    def _samples(self, data: Iterable[dict[str, Any]], skips: SkipPass, cursor: Optional[Cursor]) -> Iterator[dict[str, Any]]:
        """Yield the ``samples`` range of each item: found by the shard's index, else by reading up to it."""
        tars = self.stages[2]
        for opened in tars.opened(data, skips, cursor):
            first, stop = opened.pop("samples")
            if cursor is not None:
                first = max(first, cursor.entered(opened[ITEM]))
            last = stop == (self._counts or {}).get(opened["url"])
            samples = tars.samples(opened, first, None if last else stop, skips)
            yield from islice(samples, stop - first)
            beyond = last and next(samples, None) is not None
            del samples  # closes the shard now
            opened["stream"].close()
            if beyond:
                raise ShardReadError(
                    f"shard {named(opened['stream'], opened['url'])}: holds more than the {stop} samples that it was counted with, which "
                    "nobody would read: has it changed? Run `forebay index` again, or mend what counts= says"
                )


def _left_of(count: int, done: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of ``range(count)`` that are not in the ranges ``done``."""
    first = 0
    for start, stop in done:
        if first < min(start, count):
            yield first, min(start, count)
        first = stop
    if first < count:
        yield first, count
