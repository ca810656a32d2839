"""For trainers that write what rank 0 says into their checkpoints, and may fetch a batch ahead: the states of all ranks' loaders, as one.

Accelerate: ``accelerator.register_for_checkpointing(EveryRank(loader))``; with something around the loader that fetches ahead, say how
many batches of the epoch were ``seen``. Lightning: see lightning_module.py. What was kept on other ranks, or more of them, is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

import forebay_loader as fb


class EveryRank:
    """``loader``, whose state is that of every rank. ``seen`` tells how many batches of the epoch were trained on; None: all handed out."""

    def __init__(self, loader: Any, seen: Callable[[], int | None] = lambda: None) -> None:
        self.loader, self.seen = loader, seen

    def state_dict(self) -> dict[str, Any]:
        ranks = [self.loader.state_dict(seen=self.seen())]
        if dist.is_initialized():
            ranks *= dist.get_world_size()
            dist.all_gather_object(ranks, ranks[0])
        return {"ranks": ranks}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        ranks, (rank, size) = kept["ranks"], (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.loader.load_state_dict(ranks[rank] if len(ranks) == size else fb.merge_states(ranks))


class LightningRanks(EveryRank):
    """For a DataModule, which keeps it itself: of a checkpoint at the end of an epoch Lightning loads no loader's state."""

    def __init__(self) -> None:
        super().__init__(None, self.trained)
        self.trainer: Any = None
        self.kept: dict[str, Any] | None = None

    def trained(self) -> int | None:
        epoch, batch = self.trainer.fit_loop.epoch_progress.current, self.trainer.fit_loop.epoch_loop.batch_progress.current
        return None if epoch.processed == epoch.started else int(batch.processed)  # behind the last step the next epoch comes

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    def batches(self, loader: Any, trainer: Any) -> Any:
        self.loader, self.trainer = loader, trainer
        return _Batches(self)


class _Batches:
    """What Lightning iterates."""

    def __init__(self, ranks: LightningRanks) -> None:
        self.ranks = ranks

    def __iter__(self) -> Iterator[Any]:
        if self.ranks.kept is not None:
            EveryRank.load_state_dict(self.ranks, self.ranks.kept)
        for number, batch in enumerate(self.ranks.loader):
            if number:
                self.ranks.kept = None  # not before: Lightning may fetch the first batch, let it be, and begin anew
            yield batch
        self.ranks.kept = None
