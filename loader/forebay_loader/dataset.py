"""``fb.WebDataset``: the arguments and stages of ``wds.WebDataset``, of 0.2.86 and of 1.0.2 alike, with shards through the sidecar.

The order of all shards is made first, anew each epoch and alike on all ranks, and split afterwards, so that every rank and worker meets
every shard in time; webdataset splits first and then repeats one order. docs/loader.md has each argument with webdataset's beside it.
Importing this module imports webdataset, and that torch where there is one: ``import forebay_loader`` does not.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Callable, Iterator, Optional

from webdataset import compat, shardlists
from webdataset.filters import batched
from webdataset.filters import detshuffle as stock_detshuffle
from webdataset.handlers import reraise_exception
from webdataset.pipeline import DataPipeline

from forebay_loader.ahead import Ahead
from forebay_loader.arguments import Arguments, with_positional
from forebay_loader.epochs import Epochs
from forebay_loader.lengths import with_length
from forebay_loader.limits import DEFAULT_LIMITS, Limits
from forebay_loader.notices import notice_once
from forebay_loader.reader import ensure_job
from forebay_loader.shardlist import FairShare, NodeSplit, Order, ShardList, WorkerSplit
from forebay_loader.stages import Handler, Opening, TarSamples
from forebay_loader.stock import POSITIONAL, group_of, listed, node_stage, stock_source
from forebay_loader.subject import set_of
from forebay_loader.world import World, in_worker

__all__ = ["WebDataset"]

_STAGES = (FairShare, NodeSplit, ShardList, TarSamples, WorkerSplit)
_CACHE_NOTICE = "cache_dir is not used: the sidecar keeps the one copy of a shard on this node, bounded and shared by all workers"


class WebDataset(compat.WebDataset):
    """``wds.WebDataset(urls, …)`` whose shards come through the sidecar. Samples keep the original ``__url__``.

    ``data_parallel=(rank, size)`` or ``group`` say which share is this process's where the environment or the default process group does
    not. ``on_tar_fault`` ("raise" or "warn") and ``views`` as in ``fb.tarfile_to_samples``. ``epoch`` is a number, or what is asked for one
    when an iteration begins (as in ``fb.ahead``); without it iterations are counted. ``ahead`` is the number of coming shards to announce
    (``FOREBAY_AHEAD`` or 16).
    """

    def __init__(
        self,
        urls: Any,
        handler: Optional[Handler] = reraise_exception,
        *positional: Any,  # what follows in the installed version
        mode: Optional[str] = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: Any = None,
        cache_size: int = -1,
        cache_dir: Optional[str] = None,
        url_to_name: Optional[Callable[[str], str]] = None,
        detshuffle: bool = False,
        nodesplitter: Any = shardlists.single_node_only,
        workersplitter: Any = shardlists.split_by_worker,
        select_files: Optional[Callable[[str], bool]] = None,
        rename_files: Optional[Callable[[str], str]] = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: Optional[int] = None,
        data_parallel: Optional[tuple[int, int]] = None,
        group: Any = None,
        on_tar_fault: str = "raise",
        views: bool = False,
        epoch: Any = None,
        ahead: Optional[int] = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "positional", "__class__")}
        DataPipeline.__init__(self)
        ensure_job()
        self._build(Arguments(**with_positional(given, positional, POSITIONAL)))

    def _build(self, asked: Arguments) -> None:
        nodes = asked.nodesplitter
        self.world = World.here(asked.data_parallel, group_of(nodes) if asked.group is None else asked.group)
        self.seed = asked.seed_number
        self._epochs = Epochs(asked.epoch)
        self._shards: Optional[ShardList] = None
        found = listed(asked.urls)
        splitter = node_stage(nodes, self.world, asked.draws)
        tars = self._tar_stage(asked, set_of(asked.urls if found is None or isinstance(asked.urls, str) else found))
        if found is None:
            self.pipeline = [*stock_source(asked, splitter), tars]
        else:
            self.pipeline = self._stages(asked, found, splitter, tars)
        self._tell(asked)

    def _tar_stage(self, asked: Arguments, set: Optional[str]) -> TarSamples:
        reading = Ahead(asked.ahead, set=set, epoch=self._epochs, world=self.world)
        names = ("select_files", "rename_files", "on_tar_fault", "views")
        files = {name: getattr(asked, name) for name in names}
        return TarSamples(Opening(asked.handler, reading, asked.limits), files)

    def _stages(self, asked: Arguments, urls: list[str], nodes: Any, tars: TarSamples) -> list[Any]:
        self._shards = shards = ShardList(urls, Order(self.seed, asked.shuffles, asked.draws), self._epochs, self.world)
        workers, split = asked.workersplitter, None
        if workers is shardlists.split_by_worker:
            workers = split = None if asked.draws else WorkerSplit()
        shuffle = stock_detshuffle(asked.shuffle_buffer, seed=self.seed) if asked.shuffle_buffer else None
        fair = FairShare(split, shards, empty_check=asked.empty_check)
        return [shards, *(stage for stage in (nodes, workers, shuffle) if stage), tars, fair]

    def _tell(self, asked: Arguments) -> None:
        if asked.asks_cache:
            notice_once("cache_dir", _CACHE_NOTICE)
        if (asked.shuffles or asked.draws or asked.shuffle_buffer) and self.world.rank == 0 and not in_worker():
            given = "" if asked.seed is not None else ", the default"
            notice_once(f"seed-{self.seed}", f"shards are shuffled with seed={self.seed}{given}; the order is a function of seed and epoch")

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of ``epoch``, those after it count on; for runs that resume, and where only one rank looked in between."""
        self._epochs.set(epoch)

    def listed(self, batchsize: int, partial: bool = True) -> Any:
        """Lists of ``batchsize`` samples, without collation; the last may be shorter if ``partial``."""
        return self.compose(batched(batchsize, collation_fn=None, partial=partial))  # 0.2.86's own raises, 1.0.2's forgets ``partial``

    def with_length(self, n: int, silent: bool = False) -> Any:
        """``len()`` of this data set is ``n`` from now on; what it yields does not change. It can still be pickled."""
        return with_length(self, n)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "world": self.world.settled()}

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """As in webdataset. Our own stages are called at once: asking of each class, once in each worker, whether it is torch's
        ``IterableDataset`` takes 20 ms."""
        return f(*args, **kwargs) if isinstance(f, _STAGES) else super().invoke(f, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        self.world.settled().tell_worker()  # a splitter of the user's own may ask
        epoch = self._epochs.begin()  # at once, not at the first sample: workers that are begun together are counted together
        samples = self._passes(epoch)
        return islice(samples, self.nsamples) if self.repetitions != 1 and self.nsamples > 0 else samples

    def _passes(self, epoch: int) -> Iterator[Any]:
        for turn in range(self.repetitions):
            if self._shards is not None:
                self._shards.begin(epoch, turn)
            empty = True
            for sample in self.iterator1():
                empty = False
                yield sample
            if empty:
                return  # 0.2.86 would try again for ever
