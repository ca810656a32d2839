"""The first stages of a data set: put all shards in order, and choose the share of this rank and this worker.

Each is a plain stage, so a user's own splitter can replace it. All of them can be pickled. The rank is determined once and travels with
them.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, count, islice
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Sequence

from forebay_loader.base.epoch_stage import EpochStage
from forebay_loader.base.notices import notice_once
from forebay_loader.identity.world import World, here_worker
from forebay_loader.meter.skips.skip_pass import current
from forebay_loader.plan.epochs import Epochs
from forebay_loader.plan.known_lists import lists_shards, passes_shards_on
from forebay_loader.resume.begun_shards import LISTED, ROUNDS
from forebay_loader.resume.cursor import Cursor, cursor_here

__all__ = [
    "EmptyPasses",
    "FairShare",
    "NodeSplit",
    "Part",
    "ShardList",
    "ShardOrder",
    "WorkerSplit",
    "epoch_order",
    "resampled_order",
    "split",
    "worker_part",
]


class Part(NamedTuple):
    """The share of one worker: these shards, and of each shard every ``stripes``-th sample, starting with number ``stripe``."""

    shards: list[int]
    stripe: int = 0
    stripes: int = 1


def epoch_order(n: int, seed: int, epoch: int, turn: int = 0) -> list[int]:
    """Return a permutation of ``range(n)``. ``turn`` is the number of the pass within one epoch: ``with_epoch`` may need several."""
    order = list(range(n))
    random.Random(_key(seed, epoch, turn)).shuffle(order)  # noqa: S311  # text seed: equal on all machines
    return order


def resampled_order(n: int, seed: int, epoch: int, turn: int = 0, *, first: int = 0, step: int = 1) -> Iterator[int]:
    """Yield draws from ``range(n)`` with replacement, without end: positions ``first``, ``first + step``, … of one common sequence.

    Each draw depends only on its position. So a worker computes only its own draws.
    """
    key = _key(seed, epoch, turn).encode()
    for place in count(first, step):
        yield int.from_bytes(blake2b(b"%s/%d" % (key, place), digest_size=8).digest(), "big") % n  # the bias is n in 2**64


def split(order: Sequence[int], rank: int, size: int) -> list[int]:
    """Every ``size``-th element, starting with number ``rank``, as webdataset splits."""
    return list(order[rank::size])


def worker_part(shards: Sequence[int], worker: int, workers: int) -> Part:
    """Return the share of one worker in the shards of its rank.

    If there are fewer shards than workers, several workers share one shard sample by sample, so that none is idle.
    """
    if workers <= len(shards) or not shards:
        return Part(split(shards, worker, workers))
    at = worker % len(shards)
    return Part([shards[at]], worker // len(shards), len(range(at, workers, len(shards))))


def _key(seed: int, epoch: int, turn: int) -> str:
    return f"{seed}/{epoch}/{turn}" if turn else f"{seed}/{epoch}"


Item = dict[str, Any]
_NOTHING = object()
_LAST = sys.maxsize


@dataclass(frozen=True)
class ShardOrder:
    """The order of shards: as listed, ``shuffled`` differently in each epoch, or ``resampled``, which never ends."""

    seed: int = 0
    shuffled: bool = False
    resampled: bool = False


class ShardList(EpochStage):
    """The start of a pipeline: yields ``{"url": …}`` for every shard of the data set, in this epoch's order, the same on all ranks.

    With ``resampled``, each rank and worker makes draws of its own instead.
    """

    def __init__(self, urls: list[str], order: ShardOrder, epochs: Epochs, world: World) -> None:
        self.urls = urls
        self.order = order
        self.epochs = epochs
        self.world = world
        self._began: dict[int, tuple[int, int]] = {}  # thread id -> epoch and turn of its next pass

    def __repr__(self) -> str:
        return f"<{len(self.urls)} shards, {self.order}>"

    def __len__(self) -> int:
        return len(self.urls)

    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        self._began[threading.get_ident()] = epoch, turn

    def __call__(self) -> Iterator[Item]:
        began = self._began.pop(threading.get_ident()) if threading.get_ident() in self._began else None
        epoch, turn = began or (self.epochs.begin(), 0)  # no begin() in a pipeline that the user built
        return _listed(self.urls, self._indices(epoch, turn))

    __iter__ = __call__

    def place(self) -> int:
        """The number of this rank and worker among all workers of all ranks."""
        return self.world.resolved().place()

    def _indices(self, epoch: int, turn: int) -> Iterable[int]:
        n, order = len(self.urls), self.order
        if order.resampled:
            step = self.world.resolved().size * here_worker().workers
            return resampled_order(n, order.seed, epoch, turn, first=self.place(), step=step)
        found = epoch_order(n, order.seed, epoch, turn) if order.shuffled else range(n)
        cursor = cursor_here()
        whole = set() if cursor is None else {shard for shard, ranges in cursor.done.items() if not ranges}
        return [shard for shard in found if shard not in whole] if whole else found  # before the split, so that the rest splits evenly

    def __getstate__(self) -> dict[str, Any]:
        return {"urls": self.urls, "order": self.order, "epochs": self.epochs, "world": self.world.resolved()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


@lists_shards
def _listed(urls: Sequence[str], indices: Iterable[int]) -> Iterator[Item]:
    for index in indices:
        yield {"url": urls[index], LISTED: index}


@passes_shards_on
def _every(shards: Iterator[Item], first: Sequence[Item], start: int, step: int) -> Iterator[Item]:
    """Yield every ``step``-th of ``first`` followed by ``shards``, starting with number ``start``."""
    yield from islice(chain(first, shards), start, None, step)


class NodeSplit:
    """The share of one rank: every n-th shard, as ``wds.split_by_node``.

    If the user named no splitter, a world of one rank reads everything and a larger one is an error.
    """

    def __init__(self, world: World, *, named: bool) -> None:
        self.world = world
        self.named = named

    def __repr__(self) -> str:
        return f"<split by node, {self.world}>"

    def __call__(self, data: Iterable[Item]) -> Iterator[Item]:
        world = self.world.resolved()
        if world.size > 1 and not self.named:
            raise ValueError(
                f"this is {world}, and the data set has no nodesplitter: every rank would read every shard. "
                "You need to add an explicit nodesplitter to your input pipeline for multi-node training: nodesplitter=wds.split_by_node "
                "gives each rank its share, nodesplitter=iter lets each read everything"
            )
        return _every(iter(data), (), world.rank, world.size)

    def __getstate__(self) -> dict[str, Any]:
        return {"world": self.world.resolved(), "named": self.named}


class WorkerSplit:
    """The share of one DataLoader worker: every n-th shard, as ``wds.split_by_worker``. If there are too few shards, workers share one by
    stripes.
    """

    def __init__(self) -> None:
        self._parts: dict[int, Part] = {}

    def __call__(self, data: Iterable[Item]) -> Iterator[Item]:
        worker, shards = here_worker(), iter(data)
        first = list(islice(shards, worker.workers))  # enough to see whether each worker gets one; the list may be endless
        part = worker_part(range(len(first)), worker.id, worker.workers)
        self._parts[threading.get_ident()] = part
        if part.stripes > 1:
            return iter([first[at] for at in part.shards])
        return _every(shards, first, worker.id, worker.workers)

    def part(self) -> Part:
        """The share of the pass that this thread began last. Its ``shards`` count at most as many shards as there are workers."""
        return self._parts.pop(threading.get_ident(), Part([0]))

    def __getstate__(self) -> dict[str, Any]:
        return {"_parts": {}}


class FairShare:
    """After the tar reader: choose this worker's stripe of a shard that several workers read, and report a pass without samples.

    A stripe costs no extra bytes from the origin: the sidecar fetches a shard once for all workers.
    """

    reads_shards = True  # later stages get samples

    def __init__(self, split: Optional[WorkerSplit], shards: ShardList, *, empty_check: bool) -> None:
        self._split = split
        self._shards = shards
        self.empty_check = empty_check

    def __call__(self, samples: Iterable[Any]) -> Iterator[Any]:
        shared = self._share(samples, Part([0]) if self._split is None else self._split.part(), cursor_here())
        skips = current()
        return shared if skips is None else skips.counting(shared)

    def _share(self, samples: Iterable[Any], part: Part, cursor: Optional[Cursor]) -> Iterator[Any]:
        given = iter(samples)
        if cursor is not None:
            cursor.stripe = part.stripe, part.stripes
            if cursor.done or cursor.began is not None:  # a resumed pass may have nothing left: no error
                yield from _rest(given, part, cursor)
                return
        first = next(given, _NOTHING)
        if first is _NOTHING:
            self._tell_empty(part)
            return
        if not part.stripe:
            yield first
        if part.stripes == 1:
            yield from given  # not a for loop: that would cost as much as finding a sample
        else:
            yield from islice(given, (part.stripe - 1) % part.stripes, None, part.stripes)

    def _tell_empty(self, part: Part) -> None:
        world, worker, listed = self._shards.world.resolved(), here_worker(), len(self._shards.urls)
        who = f"{world}, worker {worker.id} of {worker.workers}"
        if part.shards:
            text = f"No samples found in dataset: {who} read its shards to the end, of {listed} listed, and met none"
            advice = "check select_files, the file names in the tars, and what the handler passes over"
        else:
            text = f"No samples found in dataset: {who} has no shard: {listed} shards for {world.size} ranks"
            advice = "list at least one shard a rank, or let every rank read everything with nodesplitter=iter"
        if self.empty_check:
            raise ValueError(f"{text}; {advice}. empty_check=False turns this error into a warning")
        notice_once(f"empty-{os.getpid()}", f"{text}; {advice}")


def _rest(samples: Iterator[Any], part: Part, cursor: Cursor) -> Iterator[Any]:
    """Yield this worker's stripe of the samples that are left of a resumed pass."""
    if not cursor.done:
        yield from islice(samples, (part.stripe - cursor.read) % part.stripes, None, part.stripes) if part.stripes > 1 else samples
        return
    for sample in samples:
        ordinal = cursor.read - 1
        if ordinal % part.stripes == part.stripe and not _is_done(cursor, ordinal):
            yield sample


def _is_done(cursor: Cursor, ordinal: int) -> bool:
    shard, number = cursor.place(ordinal)
    ranges = cursor.done.get(shard, ())
    at = bisect_right(ranges, (number, _LAST)) - 1
    return at >= 0 and ranges[at][0] <= number < ranges[at][1]


LEFT_OUT = 2000  # samples to read before giving up, if stages leave all of them out
DRAWS = 30  # read 30 times as many as one kept sample needs: the probability that rsample kept none is e**-30


class EmptyPasses:
    """Counts passes in a row that yielded nothing, to end an iteration that would never yield.

    ``places`` is the number of workers on all ranks that share the shards. ``listed`` is the number of shards, if known. ``share`` is the
    fraction of samples that an ``rsample`` stage keeps.
    """

    def __init__(self, places: int, listed: Optional[int] = None, share: float = 1.0) -> None:
        self._enough = ROUNDS * max(1, places if listed is None else min(places, listed))
        self._samples = max(LEFT_OUT, DRAWS / share) if share > 0 else LEFT_OUT
        self._passes = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"<EmptyPasses, {self._passes} of {self._enough}>"

    def gave(self) -> None:
        """A pass yielded something: start counting again."""
        self._passes = self._left_out = 0

    def over(self, read: int = 0) -> bool:
        """Count one more pass that yielded nothing, and return whether to give up, which the log then says.

        ``read`` is how many samples the pass read, without those that a handler skipped.
        """
        self._passes += 1
        self._left_out += max(0, read)
        if self._passes < self._enough or 0 < self._left_out < self._samples:
            return False
        what = f"{self._left_out} samples were read, and stages left all of them out" if self._left_out else "there was none"
        notice_once("empty-passes", f"{self._passes} passes in a row gave no sample ({what}): this worker or rank ends")
        return True
