"""A ``wds.WebLoader`` with ``state_dict`` and ``load_state_dict``: the position of each rank, after any batch.

Each batch arrives from its worker with the position of the data set (``StateCollate``). The loader records what it hands out
(``LoaderProgress``). docs/resume.md says what is exact.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any, Callable, Iterator, Mapping, Optional

from webdataset import compat

from forebay_loader.base.carrier import Carried
from forebay_loader.base.errors import NotResumable
from forebay_loader.dataset.shard_list import EmptyPasses
from forebay_loader.dataset.web_dataset import WebDataset
from forebay_loader.identity.world import World, loader_worker
from forebay_loader.loading.loader_progress import LoaderProgress
from forebay_loader.loading.loader_start import LoaderStart, start_of
from forebay_loader.loading.main_stages import MainStages, holds_rows, untold_main
from forebay_loader.loading.worker_start import Handover
from forebay_loader.plan.plan_client import told_epoch
from forebay_loader.resume.state_parts import FORMAT, sealed

__all__ = ["ResumableLoader", "StateCollate"]


class StateCollate:
    """``collate`` for batches of ``dataset``, which adds its position. ``batched``: a batch is a list of outputs.

    The first batch of an iteration carries the whole state, and so does every ``every``-th.
    """

    def __init__(self, collate: Callable[[Any], Any], dataset: Any, every: int, *, batched: bool) -> None:
        self._collate = collate
        self._dataset = dataset
        self._every = every
        self._batched = batched
        self._place: Any = None  # of the current iteration
        self._turn = 0  # the current pass
        self._made = 0  # batches of the current pass
        self._worker = 0
        dataset.taken()  # the data set records from the first call on

    def __repr__(self) -> str:
        return f"<StateCollate of {self._collate!r}, a state every {self._every} batches>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None, "_made": 0}

    def __call__(self, data: Any) -> Carried:
        outputs = len(data) if self._batched else 1
        batch = self._collate(data)
        place = self._dataset.place
        if place is not self._place or place.turn != self._turn:  # positions are relative to a pass
            self._place, self._turn, self._made, self._worker = place, place.turn, 0, loader_worker().id
        self._made += 1
        taken = place.look()
        if self._made != 1 and self._made % self._every:
            return Carried(batch, self._worker, outputs, None, taken)
        try:
            return Carried(batch, self._worker, outputs, place.state(), taken)
        except NotResumable as error:
            return Carried(batch, self._worker, outputs, None, taken, str(error))


class ResumableLoader(compat.WebLoader):
    """A pipeline around torch's ``DataLoader``, on the rank of ``_world``.

    ``_handover`` passes a state to the workers. It is None if no state is kept.
    """

    _world: World
    _handover: Optional[Handover] = None
    _start: Optional[LoaderStart] = None  # the state that the next iteration continues from
    ladder: Any = None

    def state_dict(self, seen: Optional[int] = None) -> dict[str, Any]:
        """Return the position of this rank's iteration as plain values, for any checkpoint.

        Args:
            seen: How many batches of this epoch were trained on, if something has fetched batches ahead: one of the last 8 numbers. The
                default is all batches that were handed out.

        Returns:
            The state. For example ``torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, path)`` stores it.

        Raises:
            fb.NotResumable: Nobody can say which samples come next.
            ValueError: The state after ``seen`` batches is not kept.
        """
        if self._handover is None:
            return self._stateless()
        world, progress = self._world.resolved(), self._progress if self._start is None else self._progress_from(self._start)
        said = {"format": FORMAT, "kind": "loader", "rank": world.rank, "size": world.size, "workers": self._handover.workers}
        said.update(progress.position(seen))
        if said["over"]:
            said["upcoming"] = self._upcoming(said)
        merged = progress.start.merged
        if merged is not None and merged["epoch"] == said["epoch"]:  # a later pass of this loader is another epoch
            said.update(merged=merged, done=merged["done"])
        if self.ladder is not None:
            said["ladder"] = self.ladder.state_dict()
        return sealed(said)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue the next iteration from ``state_dict``. Call it before the first batch.

        Args:
            state_dict: A state of this rank, in a world of the same size with as many workers, or a merged state of ``fb.merge_states``.

        Raises:
            ValueError: It is another state. With the first batch: the data set or its shards have changed.
        """
        if self._handover is None:
            if state_dict and not self._stateless():
                raise ValueError("this loader was made with snapshot_every=0, which keeps no state and takes none")
            return
        start = start_of(state_dict, self._world.resolved(), self._handover.workers)
        if self.ladder is not None and start.ladder is not None:
            self.ladder.load_state_dict(start.ladder)
        self._start = start

    def iterator(self) -> Iterator[Any]:
        """As in webdataset. If one iteration makes several passes, those that the state has finished are left out."""
        progress, empty = self._progress, EmptyPasses(self._world.resolved().size)
        for _ in range(progress.passes % self.repetitions, self.repetitions):
            given = not progress.begun and progress.start.midway
            for batch in self.iterator1():
                given = True
                yield batch
                del batch
            if given:
                empty.gave()
            elif empty.over():
                return

    def iterator1(self) -> Iterator[Any]:
        if self._handover is None:
            return iter(super().iterator1())
        progress = self._progress
        source = self._workers_of(progress, self._handover)
        stages = self.pipeline[1:]
        why, start = untold_main(stages), None if progress.begun else progress.start.stages
        batches = progress.batches(source, self._counted_epoch())
        if holds_rows(stages) and not why:
            main = MainStages(stages, partial(self._drawn_by, progress), lambda: progress.at, self._every, start)
            return progress.outputs(main.outputs(batches, self.invoke), main.held)
        for stage in stages:
            batches = self.invoke(stage, batches)
        return progress.outputs(batches, why=why)

    def _drawn_by(self, progress: LoaderProgress) -> str:
        """The seed of the loader's shuffle buffer."""
        return f"loader/{self.pipeline[0].dataset.seed}/{progress.epoch}/{progress.passes}/{self._world.resolved().rank}"

    def _stock(self) -> Iterator[Any]:
        """What webdataset's loader yields; after a resume, the rest of it."""
        if self.repetitions != 1 and self.nsamples > 0:
            return islice(self.iterator(), self.nsamples - (0 if self._progress.begun else self._progress.start.made))
        return self.iterator()

    def _keep_state(self, every: int, handover: Handover) -> None:
        """Make each batch carry the position of its data set, and every ``every``-th batch the whole state."""
        self._every = every
        loader = self.pipeline[0]
        if every and isinstance(loader.dataset, WebDataset):
            self._handover = handover
            loader.collate_fn = StateCollate(loader.collate_fn, loader.dataset, every, batched=loader._auto_collation)

    def _begin_progress(self) -> LoaderProgress:
        """The progress of the iteration that starts now: from the loaded state, or of the next epoch."""
        start, self._start = self._start, None
        if start is None:
            epoch = self._counted_epoch()
            start = LoaderStart(epoch, first=epoch)
        elif self._epochs is not None:
            self._epochs.set(start.epoch + self._is_complete(start))
        self._progress = self._progress_from(start)
        return self._progress

    def _is_complete(self, start: LoaderStart) -> bool:
        """Whether all batches were handed out, but the end of the iteration was not seen: no further pass will then count the epoch."""
        return start.midway and self.repetitions != 1 and 0 < self.nsamples <= start.made

    def _progress_from(self, start: LoaderStart) -> LoaderProgress:
        return LoaderProgress(0 if self._handover is None else self._handover.workers, start)

    def _workers_of(self, progress: LoaderProgress, handover: Handover) -> Iterator[Any]:
        """torch's iterator for the pass that starts. Its workers continue from the state, if there is one."""
        loader = self.pipeline[0]
        if progress.begun or not progress.start.midway:
            return iter(self.invoke(loader))
        handover.fill(progress.start)
        try:
            loader._iterator = None  # persistent workers are restarted: they would not get the state
            if not handover.workers:
                handover.to(loader.dataset)
            return iter(self.invoke(loader))
        finally:
            handover.clear()

    def _stateless(self) -> dict[str, Any]:
        """The state of a loader that keeps none. Raises ``NotResumable`` unless the user asked for no state."""
        if not self._every:
            return {}
        kind = type(getattr(self.pipeline[0], "dataset", None))
        raise NotResumable(
            f"the data set of this loader is a {kind.__module__}.{kind.__qualname__}, which does not say where it stands: fb.WebDataset "
            "does. snapshot_every=0 makes a loader that keeps no state, for trainers that ask each loader for one"
        )

    def _counted_epoch(self) -> int:
        """The epoch of the data set's next iteration; 0 if nothing counts epochs."""
        if self._epochs is not None:
            return int(self._epochs.upcoming()[0])
        counts = getattr(getattr(self.pipeline[0], "dataset", None), "_epochs", None)
        return 0 if counts is None else told_epoch(counts.told) or 0

    def _upcoming(self, said: Mapping[str, Any]) -> int:
        """The epoch after the one whose end ``said`` describes."""
        return int(said["epoch"]) + 1 if self._epochs is None else int(self._epochs.upcoming()[0])

    @property
    def _epochs(self) -> Any:
        """The object that counts the data set's epochs, if Forebay counts them."""
        found = getattr(getattr(self.pipeline[0], "dataset", None), "_epochs", None)
        return found if found is not None and found.told is None else None
