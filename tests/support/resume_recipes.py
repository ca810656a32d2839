"""Trainings that end in the middle, and go on: ``python resume_recipes.py lightning|accelerate FOLDER``.

What each was given is in ``FOLDER/TRAINER.json``: the keys of a run that nothing stopped, and for every stop those before and after it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import forebay_loader as fb
from every_rank import EveryRank, LightningRanks

EPOCHS, URLS = 2, "s3://bucket/{000..005}.tar"
STOPS = {"in the middle": (4, 6), "between two snapshots": (7, 7)}  # the step it is saved at, and the one it ends before


class Ended(Exception):
    """The job's time is over."""


def loader() -> Any:
    data = fb.WebDataset(URLS, shardshuffle=True, seed=1).shuffle(10).to_tuple("__key__").batched(2)
    return fb.WebLoader(data, batch_size=None, num_workers=2, snapshot_every=3)


def lightning(folder: Path) -> dict[str, Any]:
    from lightning import LightningDataModule, LightningModule, Trainer  # noqa: PLC0415 -- for seconds
    from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: PLC0415

    class Keys(LightningModule):  # type: ignore[misc]
        """What it was given."""

        def __init__(self, ends: int | None = None) -> None:
            super().__init__()
            self.layer, self.ends = torch.nn.Linear(1, 1), ends
            self.given: list[list[str]] = []

        def training_step(self, batch: Any, index: int) -> Any:
            if len(self.given) == self.ends:
                raise Ended
            self.given.append(list(batch[0]))
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Shards(LightningDataModule):  # type: ignore[misc]
        """As in examples/lightning_module.py."""

        def __init__(self) -> None:
            super().__init__()
            self.ranks = LightningRanks()
            self.state_dict, self.load_state_dict = self.ranks.state_dict, self.ranks.load_state_dict

        def train_dataloader(self) -> Any:
            return self.ranks.batches(loader(), self.trainer)

    def fit(model: Keys, *callbacks: Any, path: Path | None = None) -> list[list[str]]:
        trainer = Trainer(
            accelerator="cpu", devices=1, max_epochs=EPOCHS, use_distributed_sampler=False, logger=False, callbacks=list(callbacks),
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=bool(callbacks),
        )  # fmt: skip
        with contextlib.suppress(Ended):
            trainer.fit(model, datamodule=Shards(), ckpt_path=path)
        return model.given

    found: dict[str, Any] = {"whole": fit(Keys())}
    for name, (saved, ends) in STOPS.items():
        keeping = ModelCheckpoint(folder / name, every_n_train_steps=saved, save_top_k=-1)
        before = fit(Keys(ends), keeping)[:saved]
        found[name] = before + fit(Keys(), path=next((folder / name).glob(f"*step={saved}.ckpt")))
    keeping = ModelCheckpoint(folder / "epoch", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    whole = fit(Keys(), keeping)
    after = fit(Keys(), path=next((folder / "epoch").glob("epoch=0-*.ckpt")))
    return {**found, "behind an epoch": whole[: len(whole) - len(after)] + after, "of the second epoch": len(after)}


def accelerate(folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator  # noqa: PLC0415 -- for seconds
    from accelerate.data_loader import DataLoaderShard  # noqa: PLC0415

    def train(saved: int | None = None, ends: int | None = None, path: Path | None = None) -> list[list[str]]:
        accelerator, seen, given = Accelerator(cpu=True), [0], []
        own = loader()
        accelerator.register_for_checkpointing(EveryRank(own, lambda: seen[0]))
        if path is not None and saved is None:
            accelerator.load_state(str(path))
            seen[0] = own.state_dict()["given"]
        for _ in range(EPOCHS):
            for batch in DataLoaderShard(own, batch_size=None):  # which fetches one batch ahead, to know the last one
                if len(given) == ends:
                    return given
                given.append(list(batch[0]))
                seen[0] += 1
                if len(given) == saved:
                    accelerator.save_state(str(path))
            seen[0] = 0
        return given

    found: dict[str, Any] = {"whole": train()}
    for name, (saved, ends) in STOPS.items():
        before = train(saved, ends, folder / name)[:saved]
        found[name] = before + train(path=folder / name)
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    trainer, folder = sys.argv[1], Path(sys.argv[2])
    found = {"lightning": lightning, "accelerate": accelerate}[trainer](folder)
    (folder / f"{trainer}.json").write_text(json.dumps(found))
