"""``fb.WebDataset``: the arguments and stages of ``wds.WebDataset`` (0.2.86 and 1.0.2), with shards read through the sidecar.

It first puts all shards in one order, a different one each epoch and the same on every rank. Then it splits that order between ranks and
workers, so that over several epochs each worker reads every shard. webdataset splits first and then repeats one order. docs/loader.md lists
the other differences.

Importing this module imports webdataset, and torch if it is installed. ``import forebay_loader`` imports neither.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal, Mapping, Optional, Sequence, Tuple, Union

from webdataset import compat, shardlists
from webdataset.filters import batched
from webdataset.filters import detshuffle as stock_detshuffle
from webdataset.handlers import reraise_exception
from webdataset.pipeline import DataPipeline

from forebay_loader.base.epoch_stage import EpochDecoder, EpochStage
from forebay_loader.base.notices import notice_once
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.dataset.arguments import Arguments, with_positional
from forebay_loader.dataset.decode_stage import DecodeStage
from forebay_loader.dataset.resume import Resumed, SampleShuffle, StreamPosition, made_of, undetermined, untold_class, untold_of
from forebay_loader.dataset.samples_again import PassAgain
from forebay_loader.dataset.shard_list import EmptyPasses, FairShare, NodeSplit, ShardList, ShardOrder, WorkerSplit
from forebay_loader.dataset.stages import ShardOpenings, TarSamples
from forebay_loader.dataset.webdataset_compat import POSITIONAL, group_of, listed, node_stage, stock_source, with_length
from forebay_loader.identity.reader_name import ensure_job
from forebay_loader.identity.world import World, here_worker, in_worker, take_role
from forebay_loader.memos.stage import folded
from forebay_loader.meter.profile_ranges import staged
from forebay_loader.meter.skips.counts import SkipLimits
from forebay_loader.meter.skips.recorded_handler import Handler
from forebay_loader.meter.skips.skip_pass import current, dataset_pass, making
from forebay_loader.meter.skips.stock_stages import recorded_stage
from forebay_loader.meter.stalls import install
from forebay_loader.plan.ahead import Ahead, Epoch
from forebay_loader.plan.epochs import Epochs
from forebay_loader.plan.plan_client import set_of, told_epoch
from forebay_loader.resume.cursor import Cursor, Taken, cursor_here, putting_together
from forebay_loader.resume.known_stages import kept_stage, share_of
from forebay_loader.resume.state_parts import sealed
from forebay_loader.stream.webdataset_openers import tell_unused
from forebay_loader.videos.torch_video import torch_video

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.utils.data import IterableDataset

    Splitter = Callable[[Iterator[Any]], Iterator[Any]]  # takes all shards, yields those of this rank or worker

__all__ = ["WebDataset"]

_STAGES = (FairShare, NodeSplit, SampleShuffle, ShardList, TarSamples, WorkerSplit)


class WebDataset(compat.WebDataset):
    """``wds.WebDataset(urls, …)`` whose shards come through the sidecar. Samples keep the original ``__url__``.

    Args:
        urls: A brace pattern, several patterns joined by ``::``, a list of URLs or ``pipe:`` commands, an ``IterableDataset`` of them, or
            a yaml file.
        handler: Gets each exception of opening, reading and grouping. If it returns True, the worker goes on with the next shard. None and
            the default raise the exception.
        *positional: The arguments that follow in the installed webdataset, in its order.
        mode: ``"resampled"`` means ``resampled=True``. Otherwise it says how webdataset 1.x treats empty lists.
        resampled: Draw shards with replacement, without end, by ``seed``.
        repeat: Not used, as in webdataset. ``.repeat()`` is the stage.
        shardshuffle: True or a number above 0 permutes all shards before they are split, differently in each epoch. In webdataset it is the
            size of a buffer after the split. None, False and 0 keep the order of the list.
        cache_size: Not used. The sidecar has the one copy.
        cache_dir: Not used, as ``cache_size``.
        url_to_name: Not used. It names webdataset's own copies.
        detshuffle: Use webdataset's deterministic buffer after the split, of ``shardshuffle`` shards.
        nodesplitter: Chooses a rank's shards, such as ``wds.split_by_node``. ``iter`` reads all shards on each rank. With the default, more
            than one rank is an error.
        workersplitter: Chooses a worker's shards. None gives every worker all shards of the rank.
        select_files: Gets a member's name and says whether it is wanted. The sidecar fetches the whole shard all the same.
        rename_files: Gets a member's name and returns another.
        empty_check: If True, a rank without shards and shards without samples raise. False makes it a notice.
        verbose: Not used, as in webdataset.
        seed: A whole number. The default is ``WDS_SEED``, else 0. Orders depend only on the seed, the epoch and the list of shards.
        data_parallel: ``(rank, size)``, if neither the environment nor the default process group says it.
        group: The process group whose ranks share the data.
        on_tar_fault: What happens at a tar without its end marker, with data after it, or with an unreadable header. ``"raise"`` raises
            ``fb.TarFault``; ``"warn"`` reads on as webdataset does.
        epoch: A whole number, a callable, or an object with ``value`` or ``get_value()``. It is read when an iteration begins. Without it
            the data set counts its iterations.
        ahead: How many coming shards a worker announces to the sidecar; 0 for none. The default is ``FOREBAY_AHEAD``, else 16.
        limits: The timeouts of a worker, in seconds.
        max_skipped: How much handlers may skip in an epoch of one worker: a number of samples and of shards, or a share such as 0.001.
            The default is ``FOREBAY_MAX_SKIPPED``, else no limit.
        max_consecutive_skips: How many skips in a row one stage may have. The default is ``FOREBAY_MAX_CONSECUTIVE_SKIPS``, else 1000 if
            ``max_skipped`` is given.
        resume: ``"exact"`` continues at the next sample. ``"replay"`` reads an epoch again up to the state. docs/resume.md has what each
            needs.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has an invalid value, or the list of shards is empty.
        fb.ProxyUnreachable: While reading: no sidecar was ever configured, or it is gone and the shard has no other source.
        fb.ShardReadError: While reading: a shard is absent or refused.
        fb.ShardChanged: While reading: a shard was replaced.
        fb.TarFault: While reading: a shard is not a complete tar.
        fb.TooManySkips: While reading: handlers skipped more than the limits allow.

    Examples:
        >>> dataset = fb.WebDataset("s3://bucket/train-{000000..000002}.tar", shardshuffle=True).shuffle(1000).decode("pil")
        >>> sorted(next(iter(dataset)))
        ['__key__', '__url__', 'bin', 'txt']
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str], IterableDataset[Any]],
        handler: Optional[Handler] = reraise_exception,
        *positional: Any,  # further arguments, as in the installed version
        mode: Optional[str] = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: Union[bool, float, None] = None,
        cache_size: int = -1,
        cache_dir: Optional[str] = None,
        url_to_name: Optional[Callable[[str], str]] = None,
        detshuffle: bool = False,
        nodesplitter: Optional[Splitter] = shardlists.single_node_only,
        workersplitter: Optional[Splitter] = shardlists.split_by_worker,
        select_files: Optional[Callable[[str], bool]] = None,
        rename_files: Optional[Callable[[str], str]] = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: Optional[int] = None,
        data_parallel: Optional[Tuple[int, int]] = None,
        group: Optional[ProcessGroup] = None,
        on_tar_fault: Literal["raise", "warn"] = "raise",
        epoch: Epoch = None,
        ahead: Optional[int] = None,
        limits: Limits = DEFAULT_LIMITS,
        max_skipped: Union[int, float, None] = None,
        max_consecutive_skips: Optional[int] = None,
        resume: Literal["exact", "replay"] = "exact",
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "positional", "__class__")}
        DataPipeline.__init__(self)
        ensure_job()
        install()
        self._build(Arguments(**with_positional(given, positional, POSITIONAL)))

    def _build(self, asked: Arguments) -> None:
        nodes = asked.nodesplitter
        self.world = World.here(asked.data_parallel, group_of(nodes) if asked.group is None else asked.group)
        self.seed = asked.seed_number
        self._epochs = Epochs(asked.epoch)
        self._bearable = asked.max_skipped, asked.max_consecutive_skips
        SkipLimits.of(*self._bearable)
        self._shards: Optional[ShardList] = None
        self._place: Optional[StreamPosition] = None  # of the latest iteration in this process
        self._resumed: Optional[Resumed] = None  # the state that the next iteration continues from
        self._replays = asked.resume == "replay"
        self._is_asked = False  # whether a loader calls taken()
        found = listed(asked.urls)
        # Whether ranks, and whether workers, may read the same sample and draw differently. With nodesplitter=iter all ranks draw alike.
        self._own_draws = asked.draws, asked.draws or asked.workersplitter is None
        splitter = node_stage(nodes, self.world, asked.draws)
        tars = self._tar_stage(asked, set_of(asked.urls if found is None or isinstance(asked.urls, str) else found))
        if found is None:
            self.pipeline = [*stock_source(asked, splitter), tars]
            tars.counts = True
        else:
            self.pipeline = self._stages(asked, found, splitter, tars)
        self._tell(asked)

    def _tar_stage(self, asked: Arguments, set: Optional[str]) -> TarSamples:
        reading = Ahead(asked.ahead, set=set, epoch=self._epochs, world=self.world)
        files = {name: getattr(asked, name) for name in ("select_files", "rename_files", "on_tar_fault")}
        # None raises too. webdataset's handler keeps the exception alive in its traceback, and so the data set and its file descriptor.
        self._handler = None if asked.handler is reraise_exception else asked.handler
        return TarSamples(ShardOpenings(self._handler, reading, asked.limits), files)

    def _stages(self, asked: Arguments, urls: list[str], nodes: Any, tars: TarSamples) -> list[Any]:
        self._shards = shards = ShardList(urls, ShardOrder(self.seed, asked.shuffles, asked.draws), self._epochs, self.world)
        workers, split = asked.workersplitter, None
        if workers is shardlists.split_by_worker:
            workers = split = None if asked.draws else WorkerSplit()
        shuffle = stock_detshuffle(asked.shuffle_buffer, seed=self.seed) if asked.shuffle_buffer else None
        fair = FairShare(split, shards, empty_check=asked.empty_check)
        return [shards, *(stage for stage in (nodes, workers, shuffle) if stage), tars, fair]

    def _tell(self, asked: Arguments) -> None:
        if asked.asks_cache:
            tell_unused()
        if (asked.shuffles or asked.draws or asked.shuffle_buffer) and self.world.rank == 0 and not in_worker():
            given = "" if asked.seed is not None else ", the default"
            notice_once(f"seed-{self.seed}", f"shards are shuffled with seed={self.seed}{given}; the order is a function of seed and epoch")

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``; later ones count on from it. For runs that start again without a
        state, or if some ranks have begun an epoch and others have not.

        Args:
            epoch: The number of the epoch, from 0.
        """
        self._epochs.set(epoch)

    def shuffle(self, size: int, **how: Any) -> Any:
        """webdataset's stage, with its arguments. Without ``rng`` or ``seed``, its order depends only on seed, epoch, rank and worker."""
        if size < 1:
            return self
        if how.get("rng") is not None or how.get("seed") is not None:
            return super().shuffle(size, **how)
        known = {name: value for name, value in how.items() if name not in ("rng", "seed")}
        return self.compose(SampleShuffle(self.seed, self.world, {"bufsize": size, **known}))

    def decode(self, *args: Any, **how: Any) -> Any:
        """webdataset's stage, with its arguments.

        Decoders that draw by the epoch, such as ``fb.video(…)``, get its number. Errors of clips name the clip and its shard.
        """
        if not any(isinstance(one, EpochDecoder) or one is torch_video for one in args):
            return super().decode(*args, **how)
        return self.compose(DecodeStage(args, how))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iteration in this process, as plain values. In a DataLoader, ask its ``StatefulDataLoader``.

        Returns:
            The epoch, the shards that were begun, the samples that wait in buffers, and a description of the data set.

        Raises:
            RuntimeError: This process has begun no iteration.
            fb.NotResumable: A stage may hold samples that no state can name.
        """
        if self._place is None:
            raise RuntimeError(
                "no iteration of this data set was begun in this process, so nobody here knows where it stands; one in a DataLoader's "
                "workers is known to torchdata's StatefulDataLoader"
            )
        return sealed(self._place.state())

    @property
    def place(self) -> Optional[StreamPosition]:
        """The position of the latest iteration in this process; each iteration has an object of its own."""
        return self._place

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the next iteration from ``state_dict``.

        Args:
            state_dict: A state of this data set, or a merged state of ``fb.merge_states``. From a merged state, this worker reads its
                share of the remaining samples.

        Raises:
            ValueError: Samples would be lost. The state is damaged, or is of other shards, another seed or another split, or the order
                depends on the clock.
        """
        resumed = Resumed(state_dict, replays=self._replays)
        self._check(resumed)
        if resumed.merged and not in_worker():
            self._epochs.set(resumed.epoch)
        if resumed.yielded or resumed.drop or resumed.merged or resumed.done or in_worker():
            self._resumed = resumed
        else:
            self._epochs.set(resumed.epoch)
            resumed.redraw(self._drawing)

    def taken(self) -> Taken:
        """Return the samples that this process's iteration yielded, and the shards it began, since the last call. Loaders that keep its
        state call it.

        Samples are named by their numbers in the state. The data set records them from the first call on.
        """
        self._is_asked = True
        return Taken.nothing() if self._place is None else self._place.look()

    def _check(self, resumed: Resumed) -> None:
        resumed.check(self._made_of(), undetermined(self._shards is not None, self.pipeline))
        if resumed.merged and self._shards is not None and self._shards.order.resampled:
            raise ValueError("shards that are drawn without end resume on the same ranks and workers only, from states that are not merged")

    def _made_of(self) -> dict[str, Any]:
        shards = self._shards
        urls, order = (None, None) if shards is None else (shards.urls, shards.order)
        return made_of(urls, order, self.world.resolved(), self.pipeline, (self.repetitions, self.nsamples))

    def listed(self, batchsize: int, partial: bool = True) -> Any:
        """Lists of ``batchsize`` samples, without collation; the last may be shorter if ``partial``."""
        return self.compose(batched(batchsize, collation_fn=None, partial=partial))  # 0.2.86's own raises, 1.0.2's ignores ``partial``

    def compose(self, *args: Any) -> Any:
        """webdataset's: the same pipeline with these stages added at its end. ``fb.memo(…)`` is put around the stage before it."""
        made = super().compose(*args)
        made.pipeline = folded(made.pipeline, getattr(self, "_handler", None))
        return made

    def with_length(self, n: int, silent: bool = False) -> Any:
        """Set ``len()`` of this data set to ``n``. What it yields does not change, and it can still be pickled."""
        return with_length(self, n)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "world": self.world.resolved(), "_place": None}

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """As in webdataset, but our own stages are called directly.

        webdataset asks of each class whether it is torch's ``IterableDataset``. That takes 20 ms in each worker.
        """
        if isinstance(f, _STAGES):
            return f(*args, **kwargs)
        cursor = cursor_here()
        kept = kept_stage(f, args[0], cursor) if args and cursor is not None and cursor.reads else None
        if kept is not None:
            return staged(f, kept)
        skips = current()
        made = recorded_stage(f, args[0], skips) if args and skips is not None else None
        made = super().invoke(f, *args, **kwargs) if made is None else made
        return staged(f, made) if args else made

    def __iter__(self) -> Iterator[Any]:
        take_role()
        self.world.resolved().tell_worker()  # the user's own splitter may read rank and worker
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self._check(resumed)  # again: stages may have been added
        # Now, not at the first sample: workers that start together count the epoch together.
        epoch = self._epochs.begin(None if resumed is None else resumed.begins)
        if resumed is not None and resumed.epoch != epoch:
            resumed = None
        if resumed is not None:
            resumed.redraw(self._drawing)
        most = self.nsamples if self.repetitions != 1 and self.nsamples > 0 else None
        untold: Optional[str] = untold_class(type(self), WebDataset)
        if not untold:
            untold = None if self._replays else untold_of(self._shards is not None, self.pipeline)
        self._place = StreamPosition(epoch, self._made_of(), self._drawing, most, resumed, untold)
        samples = self._passes(epoch, self._place, most, resumed if resumed is not None and resumed.exact else None)
        if most is not None:
            samples = islice(samples, max(0, most - self._place.passed))
        return samples if resumed is None else resumed.rest(samples)

    @property
    def _drawing(self) -> list[Any]:
        """webdataset's stages that count their passes themselves."""
        return [stage for stage in self.pipeline if isinstance(stage, stock_detshuffle)]

    def _put_together(self, cursor: Cursor, again: PassAgain) -> Iterator[Any]:
        """``iterator1`` of webdataset. In addition, each stage that held samples when the state was taken can get them again."""
        samples: Iterator[Any] = self.invoke(self.pipeline[0])
        for at, stage in enumerate(self.pipeline[1:], 1):
            cursor.again = again.before(at)
            samples = self.invoke(stage, samples)
        return samples

    def _passes(self, epoch: int, place: StreamPosition, most: Optional[int], resumed: Optional[Resumed]) -> Iterator[Any]:
        world, (ranks, workers) = self.world.resolved(), self._own_draws
        drawn_at = (world.rank if ranks else 0) + (world.size * here_worker().id if workers else 0)
        skips, first = dataset_pass(*self._bearable, epoch, world), 0 if resumed is None else resumed.turn
        skips.end_with_process()
        skips.repeats = place.repeats
        listed = None if self._shards is None else len(self._shards)
        empty = EmptyPasses(world.size * here_worker().workers, listed, share_of(self.pipeline))
        try:
            for turn in range(first, self.repetitions):
                on = resumed if turn == first else None
                cursor = self._cursor(epoch, turn, on)
                place.begin(cursor, asked=self._is_asked)
                told = epoch, turn, _phase(self, self._shards, epoch, turn), drawn_at
                for stage in self.pipeline:
                    if isinstance(stage, EpochStage):
                        stage.begin(*told)
                before, refused = place.passed, skips.refused()
                with making(skips), putting_together(cursor):
                    samples = self._put_together(cursor, PassAgain(self, cursor, skips, told))
                yield from place.noting(samples, f"{self.seed}/{epoch}/{turn}/{drawn_at}")
                if place.passed > before or on is not None:  # a resumed pass may have nothing left; the next may have samples
                    empty.gave()
                elif empty.over(cursor.own - skips.refused() + refused):
                    break
            place.over = True
        finally:
            skips.end(over=place.over or place.passed == most)
        skips.judge()

    def _cursor(self, epoch: int, turn: int, resumed: Optional[Resumed]) -> Cursor:
        urls = () if self._shards is None else self._shards.urls
        key = f"{self.seed}/{epoch}/{turn}/{self.world.resolved().rank}/{here_worker().id}"
        if resumed is None:
            return Cursor(urls, turn, key)
        return Cursor(urls, turn, key, resumed.place, resumed.done, resumed.done_etags)


def _phase(dataset: WebDataset, shards: Optional[ShardList], epoch: int, turn: int) -> Optional[int]:
    """How far training is; ``base.epoch_stage`` defines it."""
    if told_epoch(dataset._epochs.told) is not None or (dataset.repetitions != 1 and dataset.nsamples > 0):
        return epoch
    endless = dataset.repetitions == sys.maxsize or (shards is not None and shards.order.resampled)
    return None if endless else epoch * int(dataset.repetitions) + turn
