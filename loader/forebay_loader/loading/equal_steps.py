"""Equal steps: every rank leaves an epoch after the same number of batches, so that no rank waits in a gradient all-reduce for ever.

Three ways, the first that fits: a number of batches was said (``exactly``); ranks cannot differ (``is_endless``, ``reads_everything``);
the ranks vote on every step, one batch ahead (``in_step``). Where the samples of every shard are counted, shares are equal already
(``shares``), and the vote only guards against what a filter or a handler left out; without a process group the counts alone must do.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from hashlib import blake2b
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional

from webdataset import shardlists

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.dataset.empty_passes import EmptyPasses
from forebay_loader.dataset.sample_shares import SharedOut
from forebay_loader.dataset.shard_list import NodeSplit, ShardList
from forebay_loader.identity.world import World
from forebay_loader.loading.rank_agreement import Said
from forebay_loader.loading.step_vote import (
    DONE,
    GOES_ON,
    StepVote,
    VoteResult,
    failed_rank,
    failure_of,
)
from forebay_loader.plan.plan_subject import told_epoch

__all__ = ["EXACT", "StepOpening", "common_order", "exactly", "in_step", "is_endless", "reads_everything", "said_of"]

EXACT = "`forebay index` makes this exact"
_DROPPING = ("_select", "_rsample")  # what they leave out may differ from rank to rank
COUNT_S = 1.0  # for a number in a message; an epoch that is this uneven needs no exact one
_NONE = object()
Pass = Callable[[], Iterable[Any]]


def exactly(begin: Pass, n: int, given: int = 0, *, ranks: int = 1) -> Iterator[Any]:
    """``n`` batches: of one pass, or of as many as it takes. Raises ``StepsError`` if so many passes in a row have none that no other will.

    ``given`` of them were handed out before, by passes of which the first one here is the rest.
    """
    rest, empty = given > 0, EmptyPasses(ranks)
    while given < n:
        before = given
        for batch in begin():
            given += 1
            yield batch
            if given == n:
                return
        if given > before or rest:
            empty.gave()
        elif empty.over():
            raise StepsError(f"{n} batches an epoch were asked for, and pass after pass over the data has none: is it all empty?")
        rest = False


class StepOpening(NamedTuple):
    """What ranks have in common before an epoch begins: the greatest ``number`` of an epoch, and ``same`` counts on all of them."""

    number: int = 0
    same: bool = False


def in_step(
    begin: Pass,
    ballot: StepVote,
    opened: Callable[[StepOpening], bool],
    *,
    repeat: bool,
    number: int = 0,
    digest: int = 0,
    common: int = 0,
    said: Optional[Said] = None,
    fresh: bool = True,
) -> Iterator[Any]:
    """The batches of ``begin()`` for as long as every rank has one; or, with ``repeat``, passes until every rank has had its all.

    A first vote compares ``number``, ``digest`` and ``common``, in which no rank may differ, and before the first of all ``said``, which
    has the values for a message. ``opened`` hears the result before ``begin`` is called, and says whether shares are equal now. The next
    batch is taken, and voted on, before the last one is handed over: the vote travels while the trainer works. Not ``fresh``: a state says
    that this rank had come to the end of its own already.
    """
    epoch = ballot.begin()
    if said is not None and epoch == 0:
        ballot.words.say(said)
    ballot.post(GOES_ON, fresh=True, number=number, digest=digest, common=common)
    verdict = _verdict(ballot, 0)
    if verdict is None:
        return
    ballot.words.look()  # every rank has spoken before it voted
    if not verdict.alike:
        raise StepsError(
            "ranks have shuffled shards with different seeds or epoch=, have lists of different lengths, or go on from states of different "
            "steps: some would be read twice, others by nobody. Give all ranks the same list, seed, epoch and checkpoint"
        )
    equal = opened(StepOpening(verdict.number, verdict.same))
    mine = _Ahead(begin, repeat=repeat and not equal, fresh=fresh)
    given = 0
    try:
        mine.pull()
        ballot.post(mine.vote(ballot), fresh=mine.fresh)
        while _goes_on(ballot, mine, given):
            batch = mine.due()
            mine.pull()
            ballot.post(mine.vote(ballot), fresh=mine.fresh)
            if batch is not _NONE:
                given += 1
                yield batch
                if ballot.epoch != epoch:
                    raise StepsError("this loader has been iterated anew since: ranks vote on one iteration of a loader at a time")
    except GeneratorExit:
        if ballot.epoch == epoch:
            ballot.tell(f"left the loop after {given} batches")
        raise


class _Ahead:
    """The one batch that is at hand before it is needed. A failure to get it is kept, too, until it is due."""

    def __init__(self, begin: Pass, *, repeat: bool, fresh: bool = True) -> None:
        self._begin, self._repeat = begin, repeat
        self._batches = iter(begin())
        self._batch: Any = _NONE
        self._taken = 0 if fresh else 1  # batches, or a pass that had some
        self.error: Optional[BaseException] = None
        self.ended = False
        self.fresh = fresh  # in its first pass

    def pull(self) -> None:
        """Get the next batch, or the end, or the failure. A pass is begun again only when its first batch is due: perhaps it never is."""
        self._batch = _NONE
        if self.ended or self.error is not None:
            return
        try:
            self._batch = next(self._batches)
            self._taken += 1
        except StopIteration:
            self.fresh = False
            self.ended = not self._repeat
            if self._repeat and not self._taken:
                self.error = StepsError("tail='repeat' goes on from the beginning, and this rank has no batch at all: is its share empty?")
        except Exception as error:
            self.error = error

    def due(self) -> Any:
        """The batch that was voted on."""
        if self._batch is _NONE:
            self._batches = iter(self._begin())
            self.pull()
            if self._batch is _NONE and self.error is None:
                self.error = StepsError(
                    "a pass over the data had batches, and the next one has none: is the data set read to its end for good?"
                )
        return self._batch

    def rest(self) -> tuple[int, bool]:
        """How many batches are left with the one at hand, and whether that is all: they are counted for ``COUNT_S`` at most."""
        left, until = 1, time.monotonic() + COUNT_S
        try:
            for left, _ in enumerate(self._batches, 2):
                if time.monotonic() > until:
                    return left, False
        except Exception:  # what is not trained on need not be readable
            return left, False
        return left, True

    def vote(self, ballot: StepVote) -> int:
        if self.error is not None:
            ballot.tell(f"failed ({type(self.error).__name__}; its own log has the rest)")
            return failure_of(ballot.ranks[ballot.rank])
        return DONE if self.ended else GOES_ON


def _goes_on(ballot: StepVote, mine: _Ahead, given: int) -> bool:
    """Whether all ranks take one more step."""
    if mine.error is not None:
        ballot.last_word()
        raise mine.error
    said = _verdict(ballot, given)
    if said is None:
        return False
    if said.least == DONE or not said.fresh:
        _tell_dropped(ballot, mine, given)
        return False
    return True


def _verdict(ballot: StepVote, given: int) -> Optional[VoteResult]:
    """What the vote on its way came to, with all ranks in this epoch; None if one is in a later epoch. Raises where a rank failed."""
    said = ballot.settled()
    if said.last_epoch > ballot.epoch:
        _tell_left_behind(ballot, given)
        return None
    failed = failed_rank(said.least)
    if failed is not None:
        raise StepsError(
            f"rank {failed} failed while it read step {given + 1} of epoch {ballot.epoch}; its own log says why. All ranks stop"
        )
    return said


def _tell_left_behind(ballot: StepVote, given: int) -> None:
    log.warning(
        "rank %d ends epoch %d after %d batches, because another rank has begun the next: all ranks should leave a loop at the same step",
        ballot.ranks[ballot.rank], ballot.epoch, given,
    )  # fmt: skip


def _tell_dropped(ballot: StepVote, mine: _Ahead, given: int) -> None:
    """How much this rank had that nobody trains on."""
    if mine.ended or not mine.fresh:
        return
    rank, (dropped, whole) = ballot.ranks[ballot.rank], mine.rest()
    log.warning(
        "equal steps: epoch %d ends after %d batches, because another rank has no more; rank %d drops %s%d of its own. %s; %s",
        ballot.epoch, given, rank, "" if whole else "more than ", dropped, EXACT, "tail='repeat' drops none",
    )  # fmt: skip


def is_endless(dataset: Any) -> bool:
    """Whether each worker gives a number of samples that was said (``with_epoch``), or draws shards without end: ranks cannot differ."""
    if getattr(dataset, "repetitions", 1) == sys.maxsize:
        return True
    source = next(iter(getattr(dataset, "pipeline", ())), None)
    if isinstance(source, ShardList):
        return source.order.resampled
    draws = (shardlists.ResampledShards, getattr(shardlists, "ResampledShardList", shardlists.ResampledShards))
    return isinstance(source, draws) and getattr(source, "nshards", 0) == sys.maxsize


def shared_order(dataset: Any) -> Optional[tuple[int, Optional[int], Optional[int]]]:
    """The order that ranks share out among them: the number of shards and, if they are shuffled, the seed and an epoch that was told. None
    where none of ours is.

    Not the names of shards: nodes may read copies of their own.
    """
    stages = list(getattr(dataset, "pipeline", ()))
    source = next(iter(stages), None)
    if not isinstance(source, ShardList) or not any(isinstance(stage, (NodeSplit, SharedOut)) for stage in stages):
        return None
    shuffled = source.order.shuffled
    return len(source), source.order.seed if shuffled else None, told_epoch(source.epochs.told) if shuffled else None


def common_order(dataset: Any, place: tuple[int, ...] = ()) -> int:
    """A positive number for the order that ranks share out among them, and for the ``place`` in it that a state says; 0 for neither."""
    order = (shared_order(dataset), *place)
    return 0 if order == (None,) else int.from_bytes(blake2b(repr(order).encode(), digest_size=7).digest(), "big") + 1


def said_of(dataset: Any, world: World, batches: int = 0) -> Said:
    """What this rank says of its loader, for the others to compare."""
    shards, seed, epoch = shared_order(dataset) or (None, None, None)
    fixed = getattr(dataset, "repetitions", 1) == sys.maxsize
    return Said(world.rank, world.size, batches or None, (getattr(dataset, "nsamples", 0) or None) if fixed else None, shards, seed, epoch)


def reads_everything(dataset: Any) -> bool:
    """Whether nothing in a pipeline gives a rank a share: all ranks read all of it, in as many steps."""
    stages = list(getattr(dataset, "pipeline", ()))
    return bool(stages) and isinstance(stages[0], (ShardList, shardlists.SimpleShardList)) and all(map(_shares_nothing, stages[1:]))


def _shares_nothing(stage: Any) -> bool:
    if stage is iter:
        return True
    if isinstance(stage, (NodeSplit, SharedOut, partial)) or stage is shardlists.split_by_node:
        return False
    if getattr(getattr(stage, "f", None), "__name__", "") in _DROPPING:
        return False
    home = getattr(stage, "__module__", None) or type(stage).__module__
    return str(home).partition(".")[0] in ("webdataset", "forebay_loader")
