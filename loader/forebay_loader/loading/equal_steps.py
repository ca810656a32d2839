"""Equal steps: every rank ends an epoch after the same number of batches. Otherwise a rank would wait for ever in a gradient all-reduce.

The loader takes the first of three ways that fits. The user gave a number of batches (``exactly``). Ranks cannot differ (``is_endless``,
``reads_everything``). The ranks vote before every step (``in_step``).

If the samples of every shard are counted, ranks get equally many samples. Then the vote only guards against samples that a filter or a
handler leaves out. Without a process group there is no vote, and the counts alone must do.
"""

from __future__ import annotations

import sys
from functools import partial
from hashlib import blake2b
from typing import Any, Callable, Iterable, Iterator, Optional

from webdataset import shardlists

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.dataset.sample_shares import SharedOut
from forebay_loader.dataset.shard_list import EmptyPasses, NodeSplit, ShardList
from forebay_loader.identity.world import World
from forebay_loader.loading.rank_agreement import Said
from forebay_loader.loading.step_vote import DONE, GOES_ON, StepVote, VoteResult
from forebay_loader.plan.plan_client import told_epoch

__all__ = ["EXACT", "common_order", "exactly", "in_step", "is_endless", "reads_everything", "said_of"]

EXACT = "`forebay index` makes this exact"
_DROPPING = ("_select", "_rsample")  # they may leave out more on one rank than on another
_NONE = object()
Pass = Callable[[], Iterable[Any]]


def exactly(begin: Pass, n: int, given: int = 0, *, ranks: int = 1) -> Iterator[Any]:
    """Yield ``n`` batches, from as many passes as it takes. Raises ``StepsError`` if so many passes in a row are empty that no later one
    will help.

    ``given`` of the ``n`` were handed out before a resume. The first pass here is then the rest of a pass.
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


def in_step(
    begin: Pass,
    ballot: StepVote,
    opened: Callable[[VoteResult], bool],
    *,
    repeat: bool,
    number: int = 0,
    digest: int = 0,
    common: int = 0,
    said: Optional[Said] = None,
    fresh: bool = True,
) -> Iterator[Any]:
    """Yield the batches of ``begin()`` as long as every rank has one. With ``repeat``, make passes until every rank has yielded all of its
    own.

    A first vote compares ``number``, ``digest`` and ``common``, which must be equal on all ranks. Before the very first vote, ranks
    exchange ``said``, the values for an error message. ``opened`` gets the result before ``begin`` is called, and returns whether ranks
    have equally many samples. ``fresh`` is False if this rank resumes from a state after the end of its own samples.
    """
    epoch = ballot.begin()
    if said is not None and epoch == 0:
        ballot.words.say(said)
    verdict = ballot.cast(GOES_ON, 0, fresh=True, number=number, digest=digest, common=common)
    if verdict is None:
        _tell_left_behind(ballot, 0)
        return
    ballot.words.look()  # every rank has spoken before it voted
    if not verdict.alike:
        raise StepsError(
            "ranks have shuffled shards with different seeds or epoch=, have lists of different lengths, or go on from states of different "
            "steps: some would be read twice, others by nobody. Give all ranks the same list, seed, epoch and checkpoint"
        )
    equal = opened(verdict)
    repeat = repeat and not equal
    batches, given, taken = _told(ballot, 1, lambda: iter(begin())), 0, not fresh
    try:
        while True:
            batch = _told(ballot, given + 1, partial(next, batches, _NONE))
            taken, fresh = taken or batch is not _NONE, fresh and batch is not _NONE
            if repeat and not taken:
                error = StepsError("tail='repeat' goes on from the beginning, and this rank has no batch at all: is its share empty?")
                ballot.fail(error, given + 1)
                raise error
            if not _goes_on(ballot, batch, given, fresh, repeat):
                return
            if batch is _NONE:
                batches = _told(ballot, given + 1, lambda: iter(begin()))
                batch = _told(ballot, given + 1, partial(next, batches, _NONE))
            if batch is _NONE:
                error = StepsError("a pass over the data had batches, and the next one has none: is the data set read to its end for good?")
                ballot.fail(error, given + 1)
                raise error
            given += 1
            yield batch
            if ballot.epoch != epoch:
                raise StepsError("this loader has been iterated anew since: ranks vote on one iteration of a loader at a time")
    except GeneratorExit:
        if ballot.epoch == epoch:
            ballot.tell(f"left the loop after {given} batches")
        raise


def _told(ballot: StepVote, step: int, act: Callable[[], Any]) -> Any:
    """Return ``act()``. If it fails, tell the other ranks."""
    try:
        return act()
    except Exception as error:
        ballot.fail(error, step)
        raise


def _goes_on(ballot: StepVote, batch: Any, given: int, fresh: bool, repeat: bool) -> bool:
    """Whether all ranks take one more step."""
    said = ballot.cast(DONE if batch is _NONE and not repeat else GOES_ON, given + 1, fresh=fresh)
    if said is None:
        _tell_left_behind(ballot, given)
        return False
    if said.failed is not None:
        raise StepsError(
            f"rank {said.failed} failed while it read step {given + 1} of epoch {ballot.epoch}; its own log says why. All ranks stop"
        )
    over = said.least == DONE or not said.fresh
    if over and batch is not _NONE and fresh:
        log.warning(
            "equal steps: epoch %d ends after %d batches, because another rank has no more; %s drops the rest of its own. %s; %s",
            ballot.epoch, given, ballot.name, EXACT, "tail='repeat' drops none",
        )  # fmt: skip
    return not over


def _tell_left_behind(ballot: StepVote, given: int) -> None:
    log.warning(
        "%s ends epoch %d after %d batches, because another rank has begun the next: all ranks should leave a loop at the same step",
        ballot.name, ballot.epoch, given,
    )  # fmt: skip


def is_endless(dataset: Any) -> bool:
    """Whether ranks cannot differ: each worker yields a given number of samples (``with_epoch``), or shards are drawn without end."""
    if getattr(dataset, "repetitions", 1) == sys.maxsize:
        return True
    source = next(iter(getattr(dataset, "pipeline", ())), None)
    if isinstance(source, ShardList):
        return source.order.resampled
    draws = (shardlists.ResampledShards, getattr(shardlists, "ResampledShardList", shardlists.ResampledShards))
    return isinstance(source, draws) and getattr(source, "nshards", 0) == sys.maxsize


def shared_order(dataset: Any) -> Optional[tuple[int, Optional[int], Optional[int]]]:
    """The order that ranks split: the number of shards and, if they are shuffled, the seed and an epoch that the user gave. None if they
    split none.

    The names of shards do not count: nodes may read copies of their own.
    """
    stages = list(getattr(dataset, "pipeline", ()))
    source = next(iter(stages), None)
    if not isinstance(source, ShardList) or not any(isinstance(stage, (NodeSplit, SharedOut)) for stage in stages):
        return None
    shuffled = source.order.shuffled
    return len(source), source.order.seed if shuffled else None, told_epoch(source.epochs.told) if shuffled else None


def common_order(dataset: Any, place: tuple[int, ...] = ()) -> int:
    """A positive number for the order that ranks split and the ``place`` in it where a state resumes; 0 if there is neither."""
    order = (shared_order(dataset), *place)
    return 0 if order == (None,) else int.from_bytes(blake2b(repr(order).encode(), digest_size=7).digest(), "big") + 1


def said_of(dataset: Any, world: World, batches: int = 0) -> Said:
    """The settings of this rank's loader, for comparison with other ranks."""
    shards, seed, epoch = shared_order(dataset) or (None, None, None)
    fixed = getattr(dataset, "repetitions", 1) == sys.maxsize
    return Said(world.rank, world.size, batches or None, (getattr(dataset, "nsamples", 0) or None) if fixed else None, shards, seed, epoch)


def reads_everything(dataset: Any) -> bool:
    """Whether no stage gives a rank a share. Then all ranks read everything, in the same number of steps."""
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
