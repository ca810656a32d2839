"""``wds.WebLoader`` whose state can be kept: where each rank stands, batch by batch, and the iteration that goes on from there.

Every batch comes from its worker with what the data set says of it (``StateCollate``); the loader notes what it hands out
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
    """``collate`` for batches of ``dataset``; ``batched``: of lists of its outputs.

    The state goes with the first batch of an iteration, and then with every ``every``-th.
    """

    def __init__(self, collate: Callable[[Any], Any], dataset: Any, every: int, *, batched: bool) -> None:
        self._collate = collate
        self._dataset = dataset
        self._every = every
        self._batched = batched
        self._place: Any = None  # of the iteration that is being counted
        self._turn = 0  # its pass
        self._made = 0  # batches of that
        self._worker = 0
        dataset.taken()  # from the first call on it is noted

    def __repr__(self) -> str:
        return f"<StateCollate of {self._collate!r}, a state every {self._every} batches>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None, "_made": 0}

    def __call__(self, data: Any) -> Carried:
        outputs = len(data) if self._batched else 1
        batch = self._collate(data)
        place = self._dataset.place
        if place is not self._place or place.turn != self._turn:  # what is taken is told by pass
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
    """A pipeline around torch's ``DataLoader``, of the rank that ``_world`` says. ``_handover`` is what the workers go on from; None where
    no state is kept."""

    _world: World
    _handover: Optional[Handover] = None
    _start: Optional[LoaderStart] = None  # what the next iteration goes on from
    ladder: Any = None

    def state_dict(self, seen: Optional[int] = None) -> dict[str, Any]:
        """Where this rank's iteration stands: plain values, for any checkpoint.

        Example::

            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, path)

        - ``seen``: how many batches of this epoch were trained on, where something has fetched ahead of that: one of the last 8.

        Raises ``fb.NotResumable`` where nobody can tell what would come next, ``ValueError`` for a ``seen`` that is not kept.
        """
        if self._handover is None:
            return self._stateless()
        world, progress = self._world.resolved(), self._progress if self._start is None else self._progress_from(self._start)
        said = {"format": FORMAT, "kind": "loader", "rank": world.rank, "size": world.size, "workers": self._handover.workers}
        said.update(progress.position(seen))
        if said["over"]:
            said["upcoming"] = self._upcoming(said)
        merged = progress.start.merged
        if merged is not None and merged["epoch"] == said["epoch"]:  # not in a later pass of this loader, which is an epoch of its own
            said.update(merged=merged, done=merged["done"])
        if self.ladder is not None:
            said["ladder"] = self.ladder.state_dict()
        return sealed(said)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The next iteration goes on where ``state_dict`` was taken; call it before the first batch.

        It is one of this rank of a world of the same size with as many workers, or what ``fb.merge_states`` makes of those of all ranks.

        Raises ``ValueError`` for any other, and, with the first batch, where the data set or its shards are others than they were.
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
        """As webdataset's. Of several passes that make one iteration, those that a state says are over are left out."""
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
        """What a buffer of the loader draws by."""
        return f"loader/{self.pipeline[0].dataset.seed}/{progress.epoch}/{progress.passes}/{self._world.resolved().rank}"

    def _stock(self) -> Iterator[Any]:
        """What webdataset's loader yields; of an iteration that goes on from a state, the rest."""
        if self.repetitions != 1 and self.nsamples > 0:
            return islice(self.iterator(), self.nsamples - (0 if self._progress.begun else self._progress.start.made))
        return self.iterator()

    def _keep_state(self, every: int, handover: Handover) -> None:
        """Let every batch carry what its data set says of it, with a state each ``every`` batches."""
        self._every = every
        loader = self.pipeline[0]
        if every and isinstance(loader.dataset, WebDataset):
            self._handover = handover
            loader.collate_fn = StateCollate(loader.collate_fn, loader.dataset, every, batched=loader._auto_collation)

    def _begin_progress(self) -> LoaderProgress:
        """Of the iteration that begins now: it goes on from what was loaded, or is the next epoch's."""
        start, self._start = self._start, None
        if start is None:
            epoch = self._counted_epoch()
            start = LoaderStart(epoch, first=epoch)
        elif self._epochs is not None:
            self._epochs.set(start.epoch + self._is_complete(start))
        self._progress = self._progress_from(start)
        return self._progress

    def _is_complete(self, start: LoaderStart) -> bool:
        """Whether all batches of an iteration were handed out, though its end was not seen: no pass will be begun that counts its epoch."""
        return start.midway and self.repetitions != 1 and 0 < self.nsamples <= start.made

    def _progress_from(self, start: LoaderStart) -> LoaderProgress:
        return LoaderProgress(0 if self._handover is None else self._handover.workers, start)

    def _workers_of(self, progress: LoaderProgress, handover: Handover) -> Iterator[Any]:
        """torch's iterator of the pass that begins. Its workers go on from the state, if there is one."""
        loader = self.pipeline[0]
        if progress.begun or not progress.start.midway:
            return iter(self.invoke(loader))
        handover.fill(progress.start)
        try:
            loader._iterator = None  # workers that stay begin anew, or they would not hear of it
            if not handover.workers:
                handover.to(loader.dataset)
            return iter(self.invoke(loader))
        finally:
            handover.clear()

    def _stateless(self) -> dict[str, Any]:
        """The state of a loader that keeps none. Raises ``NotResumable`` where it was not told to keep none."""
        if not self._every:
            return {}
        kind = type(getattr(self.pipeline[0], "dataset", None))
        raise NotResumable(
            f"the data set of this loader is a {kind.__module__}.{kind.__qualname__}, which does not say where it stands: fb.WebDataset "
            "does. snapshot_every=0 makes a loader that keeps no state, for trainers that ask each loader for one"
        )

    def _counted_epoch(self) -> int:
        """Of the next iteration of the data set; 0 where nobody counts."""
        if self._epochs is not None:
            return int(self._epochs.upcoming()[0])
        counts = getattr(getattr(self.pipeline[0], "dataset", None), "_epochs", None)
        return 0 if counts is None else told_epoch(counts.told) or 0

    def _upcoming(self, said: Mapping[str, Any]) -> int:
        """The epoch that comes after the one that ``said`` is at the end of."""
        return int(said["epoch"]) + 1 if self._epochs is None else int(self._epochs.upcoming()[0])

    @property
    def _epochs(self) -> Any:
        """What counts the data set's epochs, if anything of ours does."""
        found = getattr(getattr(self.pipeline[0], "dataset", None), "_epochs", None)
        return found if found is not None and found.told is None else None
