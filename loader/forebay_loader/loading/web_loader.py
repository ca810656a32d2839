"""``fb.WebLoader``: ``wds.WebLoader`` (0.2.86 and 1.0.2) in which all ranks take the same number of steps.

It is a ``wds.DataPipeline`` around torch's ``DataLoader``, with webdataset's stage methods. With one rank it adds nothing to that. With
more, docs/equal-steps.md says what happens.

Importing this module imports webdataset and torch. ``import forebay_loader`` imports neither.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Mapping as MappingABC
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal, Mapping, Optional, Sequence, Union

from torch.utils.data import DataLoader, IterableDataset
from webdataset.pipeline import DataPipeline

from forebay_loader.base.argument_types import whole
from forebay_loader.base.errors import StepsError
from forebay_loader.batches.budget_stage import has_budget
from forebay_loader.batches.pad import padding_of
from forebay_loader.dataset.sample_shares import ShareCounts, counts_by_url, shareable, shared_out
from forebay_loader.dataset.webdataset_compat import with_length
from forebay_loader.identity.world import World
from forebay_loader.loading import equal_steps as steps
from forebay_loader.loading.batch_ladder import BatchLadder
from forebay_loader.loading.loader_progress import LoaderProgress
from forebay_loader.loading.loader_start import LoaderStart
from forebay_loader.loading.rank_agreement import FIRST_S, Agreement, Said, agreement_of, site, watched
from forebay_loader.loading.resumable_loader import ResumableLoader
from forebay_loader.loading.step_vote import StepVote, VoteResult, group_is_up
from forebay_loader.loading.worker_start import Handover, WorkerInit, start_method
from forebay_loader.meter.profile_ranges import RangedStages
from forebay_loader.meter.stalls import around, install, loader_totals
from forebay_loader.meter.totals import StallTotals
from forebay_loader.samples.index_client import counts_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.utils.data import Dataset

__all__ = ["LoaderArguments", "WebLoader"]

_TAILS = (None, "repeat", "drop")


class LoaderArguments(SimpleNamespace):
    """The arguments of ``fb.WebLoader`` other than torch's, with the same names."""

    def check(self) -> None:
        """Raise ``TypeError`` or ``ValueError`` for a bad argument."""
        if self.equal_steps not in ("auto", True, False):
            raise ValueError(f"equal_steps is {self.equal_steps!r}; it can be 'auto', True or False")
        if self.batches_per_epoch is not None:
            whole("batches_per_epoch", self.batches_per_epoch, "a number of batches, at least one", least=1)
        whole("snapshot_every", self.snapshot_every, "a number of batches, or 0 for no state", least=0)
        if not isinstance(self.steps_timeout_s, (int, float)) or not self.steps_timeout_s > 0:
            raise TypeError(f"steps_timeout_s takes a number of seconds above 0; got {self.steps_timeout_s!r}")
        if self.counts is not None and not callable(self.counts) and not isinstance(self.counts, MappingABC):
            raise TypeError(f"counts takes a dict of samples by URL or file name, or a function of the URLs; got {self.counts!r}")
        if self.tail not in _TAILS:
            raise ValueError(f"tail is {self.tail!r}; it can be 'repeat' or 'drop'")
        self._check_ladder()

    def ladder(self) -> Optional[BatchLadder]:
        """A new ladder; None if none was asked for."""
        if self.batch_ladder is None:
            return None
        return BatchLadder(tuple(self.batch_ladder), self.on_batch_size, self.batch_ladder_steps)

    def _check_ladder(self) -> None:
        whole("batch_ladder_steps", self.batch_ladder_steps, "a number of steps, at least one", least=1)
        if self.on_batch_size is not None and not callable(self.on_batch_size):
            raise TypeError(f"on_batch_size takes a function of the new batch size; got {self.on_batch_size!r}")
        if self.batch_ladder is None:
            if self.on_batch_size is not None:
                raise ValueError("on_batch_size is called where batch_ladder= changes the batch size, and none was given")
            return
        if isinstance(self.batch_ladder, (str, bytes)) or not isinstance(self.batch_ladder, (list, tuple)):
            raise TypeError(f"batch_ladder takes batch sizes such as (32, 64, 128); got {self.batch_ladder!r}")
        sizes = [whole("batch_ladder", size, "batch sizes such as (32, 64, 128)", least=1) for size in self.batch_ladder]
        if len(sizes) < 2 or sizes != sorted(set(sizes)) or any(size % sizes[0] for size in sizes):
            raise ValueError(
                f"batch_ladder takes two sizes or more that ascend and are multiples of the first, your own; got {self.batch_ladder!r}"
            )


TIMEOUT_S = 1800.0  # torch's timeout for gloo groups: longer than one rank writes a checkpoint while the others wait


class WebLoader(RangedStages, ResumableLoader):
    """``wds.WebLoader(dataset, …)``: torch's ``DataLoader`` with webdataset's stages. All ranks take the same number of steps.

    Args:
        dataset: The data set. If ranks may have different numbers of batches, they vote before each step whether all of them have one. If
            the samples of an ``fb.WebDataset`` are counted, each rank gets equally many.
        *positional: Arguments of torch's ``DataLoader``.
        equal_steps: ``"auto"`` lets ranks vote if their numbers of batches may differ. True lets them vote even if nothing seems to need
            it. False turns equal steps off.
        batches_per_epoch: Yield exactly this many batches, as ``with_epoch(n)``.
        tail: What to do with samples that cannot be split evenly: ``"repeat"`` or ``"drop"``. None repeats if samples are counted, and
            drops if ranks vote.
        group: The process group whose ranks take steps together. The default is all ranks.
        counts: How many samples each shard has: a table by URL or file name, or a function that gets a list of URLs.
        steps_timeout_s: How long a rank waits for the others, in seconds.
        batch_ladder: Batch sizes such as ``(32, 64, 128)``, your own first. The loader chooses one by measured step times, the same on all
            ranks. ``loader.ladder`` is the object that decides. None keeps your size.
        on_batch_size: Gets each new batch size before its first batch, on every rank. Set the learning rate there.
        batch_ladder_steps: Number of steps between two decisions on the batch size.
        snapshot_every: Number of batches between two snapshots of a worker, for ``state_dict``. A resume may make the batches since the
            last snapshot again. 0 keeps no state.
        **how: Arguments of torch's ``DataLoader``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has an invalid value.
        fb.StepsError: While reading: ranks do not agree in time, or read different data.

    Examples:
        >>> dataset = fb.WebDataset("s3://bucket/train-{000000..000002}.tar").to_tuple("txt").batched(4)
        >>> loader = fb.WebLoader(dataset, batch_size=None, num_workers=0)
        >>> sum(len(texts) for (texts,) in loader)
        15
    """

    def __init__(
        self,
        dataset: Union[Dataset[Any], DataPipeline],
        *positional: Any,
        equal_steps: Union[Literal["auto"], bool] = "auto",
        batches_per_epoch: Optional[int] = None,
        tail: Optional[Literal["repeat", "drop"]] = None,
        group: Optional[ProcessGroup] = None,
        counts: Optional[Union[ShareCounts, Mapping[str, int]]] = None,
        steps_timeout_s: float = TIMEOUT_S,
        batch_ladder: Optional[Sequence[int]] = None,
        on_batch_size: Optional[Callable[[int], Any]] = None,
        batch_ladder_steps: int = 50,
        snapshot_every: int = 50,
        **how: Any,
    ) -> None:
        self._asked = LoaderArguments(
            equal_steps=equal_steps, batches_per_epoch=batches_per_epoch, tail=tail, group=group, counts=counts,
            steps_timeout_s=steps_timeout_s, batch_ladder=batch_ladder, on_batch_size=on_batch_size,
            batch_ladder_steps=batch_ladder_steps, snapshot_every=snapshot_every,
        )  # fmt: skip
        self._asked.check()
        self._counted: Optional[dict[str, int]] = None
        world = getattr(dataset, "world", None)
        self._world = world if isinstance(world, World) else World.here(None, group)
        self._site = site()
        install()
        dataset = shareable(dataset, drop=tail == "drop") if equal_steps else dataset
        how = dict(inspect.signature(DataLoader).bind(dataset, *positional, **how).arguments)
        handover = Handover(int(how.get("num_workers") or 0))
        DataPipeline.__init__(self, _data_loader(self._world, handover, how))
        self._keep_state(snapshot_every, handover)
        self._alone()
        if batches_per_epoch is not None:
            self.with_epoch(int(batches_per_epoch))

    def _alone(self) -> None:
        """Reset the state that belongs to one pipeline, and that its copies do not share."""
        self._ballot: Optional[StepVote] = None
        self._words: Optional[Agreement] = None
        self._began: Optional[tuple[int, int, int]] = None  # passes of this iteration, its first epoch, earlier calls of set_epoch
        self._settled = False  # persistent workers run, which get no new counts
        self.ladder = self._asked.ladder()  # None without batch_ladder=
        self._progress = self._progress_from(LoaderStart(0))

    def compose(self, *stages: Any) -> Any:
        made: Any = super().compose(*stages)
        made._alone()
        return made

    def with_length(self, n: int, silent: bool = False) -> Any:
        """Set ``len()`` of this loader to ``n``. What it yields does not change, and it can still be pickled."""
        return with_length(self, n)

    def stalls(self) -> StallTotals:
        """``fb.stalls()`` of this loader alone: its totals, in seconds by cause. It never raises."""
        return loader_totals(self.pipeline[0])

    @property
    def _dataset(self) -> Any:
        return getattr(self.pipeline[0], "dataset", None)

    @property
    def _fixed(self) -> int:
        """The number of batches that ``with_epoch`` asked for; 0 without it."""
        return self.nsamples if self.repetitions == sys.maxsize and self.nsamples > 0 else 0

    def __iter__(self) -> Iterator[Any]:
        progress = self._begin_progress()
        batches = progress.pulled(self._batches())
        if len(self.pipeline) == 1 and self.ladder is None and self._ballot is None and self._words is None:
            return progress.handed_out(batches)  # torch's loader takes all the time, and is timed itself
        given = batches if self.ladder is None else self.ladder.climb(batches, self._ballot, padding_of(self._dataset, self))
        loader = self.pipeline[0]
        return around(
            progress.handed_out(given, lambda: self.ladder.waiting if self.ladder is not None else 0),
            loader,
            self._own_work,
            batched=len(self.pipeline) == 1 and bool(getattr(loader, "_auto_collation", False)),
        )

    def _own_work(self) -> str:
        """The cause of time that torch's loader does not take: other ranks, joining batches, or stages after the loader."""
        return "other" if self._ballot is not None else "collate" if self.ladder is not None else "map"

    def _batches(self) -> Iterator[Any]:
        """Batches of the user's size, the same number on all ranks."""
        together = self.ladder is not None and self._world.resolved().size > 1  # ranks decide on one batch size
        if together and not group_is_up():
            raise StepsError("batch_ladder needs one decision for all ranks: call init_process_group before the loader is iterated")
        if together and self._asked.equal_steps is False:
            raise StepsError("batch_ladder needs one decision for all ranks, so these take equal steps: leave out equal_steps=False")
        if self._asked.equal_steps is False:
            return self._stock()
        if self._fixed:
            return self._voted(None, self._exactly) if together else self._watched(self._exactly(), FIRST_S)
        if not self._may_differ and not together:
            batches = self._stock()
            return self._watched(batches, 0.0) if steps.is_endless(self._dataset) else batches
        counts = None if self._progress.start.merged is not None else self._known()
        if group_is_up():
            return self._voted(counts, self._stock)
        if counts is None or self._uneven:
            self._refuse()
        else:
            self._share(counts)
        return self._stock()

    def _exactly(self) -> Iterator[Any]:
        return steps.exactly(self._pass, self._fixed, self._progress.start.made, ranks=self._world.resolved().size)

    def _watched(self, batches: Iterator[Any], wait_s: float) -> Iterator[Any]:
        """Yield ``batches``. If there is a process group, compare this rank's settings with those of the others."""
        world = self._world.resolved()
        if world.size < 2 or not group_is_up():
            return batches
        if self._words is None:
            self._words = agreement_of(self._asked.group, self._site)
            if self._words is not None:
                self._words.say(self._said())
        return batches if self._words is None or self._words.decided else watched(batches, self._words, wait_s)

    def _said(self) -> Said:
        rest = self._fixed - self._progress.start.made if self._fixed else 0
        return steps.said_of(self._dataset, self._world.resolved(), rest)

    def _voted(self, counts: Optional[dict[str, int]], begin: steps.Pass) -> Iterator[Any]:
        _check_group(self._world.resolved(), self._asked.group)
        if self._ballot is None:
            self._ballot = ballot = StepVote(self._asked.group, self._asked.steps_timeout_s)
            weakref.finalize(self, ballot.close).atexit = False
        epochs, shares = self._epochs, shared_out(self._dataset)
        number = epochs.upcoming()[0] if epochs is not None else 0
        digest = shares.digest(counts, getattr(self.pipeline[0], "num_workers", 0)) if shares is not None else 0
        start = self._progress.start
        begun = start.epoch - (start.passes if epochs is not None else 0)  # ranks may be in different passes at the same step
        common = steps.common_order(self._dataset, (begun, start.made) if start.midway else ())

        def opened(said: VoteResult) -> bool:
            if epochs is not None and said.number != number and not start.midway:
                epochs.set(said.number)
            return self._share(counts if said.same else None) and not self._uneven

        repeat = self._asked.tail == "repeat"
        fresh = start.passes < self.repetitions
        return steps.in_step(
            begin, self._ballot, opened, repeat=repeat, number=number, digest=digest, common=common, said=self._said(), fresh=fresh
        )

    def _share(self, counts: Optional[dict[str, int]]) -> bool:
        """Make the data set split by samples, if ``counts`` has all counts. Returns whether it does. Persistent workers keep their first
        split.
        """
        shares = shared_out(self._dataset)
        if shares is None:
            return False
        start = self._progress.start
        if start.midway:
            self._settled = False  # workers start again
            counts = _as_before(start, counts)
        if not self._settled:
            shares.by_samples(counts)
            self._settled = bool(getattr(self.pipeline[0], "persistent_workers", False))
        self._progress.counted = bool(shares.counted)
        return self._progress.counted

    def _known(self) -> Optional[dict[str, int]]:
        """The samples of every shard, if all are counted. Asked again in each epoch until they are: the first epoch may count them."""
        shares = shared_out(self._dataset)
        if shares is not None and self._counted is None:
            self._counted = counts_by_url(counts_of if self._asked.counts is None else self._asked.counts, shares.urls)
        return self._counted

    def _pass(self) -> Iterator[Any]:
        if self._began is not None:
            passes, first, sets = self._began
            self._began = passes + 1, first, sets
        return iter(self.iterator1())

    @property
    def _may_differ(self) -> bool:
        """Whether ranks may have different numbers of batches."""
        dataset, world = self._dataset, self._world.resolved()
        if world.size < 2 or not (isinstance(dataset, IterableDataset) or self._uneven):
            return False
        alike = steps.is_endless(dataset) or (steps.reads_everything(dataset) and not has_budget(dataset))
        return self._asked.equal_steps is True or not alike or has_budget(self)

    @property
    def _uneven(self) -> bool:
        """Whether the same number of samples may give different numbers of batches, because a budget makes the batches."""
        return has_budget(self) or has_budget(self._dataset)

    def _refuse(self) -> None:
        """Raise ``StepsError`` if ranks would have to agree and have no process group."""
        world = self._world.resolved()
        if world.told_by.startswith("SLURM") and not hasattr(self._dataset, "world"):
            return  # Slurm started the script once, in a job of several tasks; webdataset ignores these variables too
        why, way = "the samples of its shards are not counted", f"{steps.EXACT}; or c"
        if self._uneven:
            why, way = "how many samples its batches hold depends on their sizes", "C"
        elif self._progress.start.merged is not None:
            why, way = "the rest of an epoch of a merged state is shared out by shards, for which counts= are not used", "C"
        raise StepsError(
            f"{world} may not have as many batches as the others: {why}, and no process group is there to agree through. "
            f"{way}all init_process_group first, or say with_epoch(n), batches_per_epoch=n, or equal_steps=False"
        )

    def _align(self) -> None:
        """Correct the data set's epoch if the last iteration of this rank made several passes. Other ranks may have made another number."""
        if self._began is not None and self._epochs is not None:
            passes, first, sets = self._began
            if passes > 1 and sets == self._epochs.upcoming()[1]:
                self._epochs.set(first + 1)

    def _begin_progress(self) -> LoaderProgress:
        aligned = bool(self._fixed and self._asked.equal_steps is not False)
        if aligned:
            self._align()
        progress = super()._begin_progress()
        if aligned and self._epochs is not None:
            start = progress.start
            self._began = start.passes + self._is_complete(start), start.first, self._epochs.upcoming()[1]
        return progress

    def _upcoming(self, said: Mapping[str, Any]) -> int:
        if self._began is not None and self._began[0] > 1 and self._epochs is not None:
            return self._began[1] + 1  # as ``_align`` will set it
        return super()._upcoming(said)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ballot": None, "_words": None, "_began": None, "_world": self._world.resolved()}


def _check_group(world: World, group: Any) -> None:
    ranks = World.here(None, group)
    if ranks.size != world.size:
        raise StepsError(
            f"the data set is read as {world}, and the process group has {ranks.size} ranks: name the group whose ranks share the "
            "data, fb.WebLoader(group=…), or say equal_steps=False"
        )


def _as_before(start: LoaderStart, counts: Optional[dict[str, int]]) -> Optional[dict[str, int]]:
    """The counts for the rest of an epoch: it must be split as its beginning was."""
    if start.merged is not None or not start.counted:
        return None
    if counts is None:
        raise ValueError(
            "the state that was loaded cannot be resumed: ranks had shares of samples, and the samples of the shards are not counted now. "
            f"{steps.EXACT}, or counts= does; fb.merge_states([…]) of all ranks' states goes on without counts"
        )
    return counts


def _data_loader(world: World, handover: Handover, how: dict[str, Any]) -> Any:
    """torch's ``DataLoader``, with workers that know the world, the takeover and the state of this process."""
    if how.get("num_workers"):
        how["worker_init_fn"] = WorkerInit(how.get("worker_init_fn"), world, handover)
        if how.get("multiprocessing_context") is None:
            how["multiprocessing_context"] = start_method(how["dataset"], how["worker_init_fn"], how.get("collate_fn"))
    return DataLoader(**how)
