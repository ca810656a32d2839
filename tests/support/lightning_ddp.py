"""One rank of training runs under Lightning's DDP, one after the other: ``python lightning_ddp.py FOLDER START...``.

With webdataset's explicit pipeline in workers of each START, over equal shards; then with ``fb.WebLoader`` over uneven ones; then with a
checkpoint that is gone on from; then examples/lightning_module.py. Lightning starts the other rank with the same command line. Each rank
leaves what it was given in ``FOLDER/RUN.RANK.json``.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import webdataset as wds

import forebay_loader as fb
from every_rank import LightningRanks

RANKS, BATCH = 2, 2
SHARDS, SAMPLES = 4, 4  # a shard for each worker of both ranks, so that all ranks have as many batches: equal steps are another matter
SIZES = (9, 2, 7, 1)  # where they are
SAVED, ENDS = 4, 6  # the step that a checkpoint is of, and that behind which the run ends
WORKERS = {"fork": 2, "spawn": 1}  # one spawned worker imports torch for seconds


def urls_of(run: str) -> str:
    return f"s3://bucket/{run}-{{0..{SHARDS - 1}}}.tar"


def numbers(pair: Any) -> Any:
    """Key and a tensor, as a user's own ``map`` would make them."""
    key, text = pair
    return key, torch.tensor([float(len(text))])


def number(sample: Any) -> Any:
    return sample["__key__"], torch.tensor([1.0])


def recipe(start: str) -> Any:
    """webdataset's own, in workers of that start."""
    made = wds.DataPipeline(
        wds.SimpleShardList(urls_of(start)),
        wds.split_by_node,
        wds.split_by_worker,
        fb.tarfile_to_samples(),
        wds.shuffle(10),
        wds.decode(),
        wds.to_tuple("__key__", "txt"),
        wds.map(numbers),
        wds.batched(BATCH),
    )
    if start == "fork":  # webdataset's own length cannot be pickled
        made = made.with_length(4)
    how = {"num_workers": WORKERS[start], "multiprocessing_context": start, "persistent_workers": start == "spawn"}
    return torch.utils.data.DataLoader(made, batch_size=None, **how)


def steps() -> Any:
    """Uneven shards, shared out step by step."""
    data = fb.WebDataset(urls_of("steps"), shardshuffle=True, nodesplitter=wds.split_by_node).map(number)
    return fb.WebLoader(data, batch_size=None, num_workers=2).batched(BATCH)


def whole() -> Any:
    """All of it on each rank."""
    return fb.WebLoader(fb.WebDataset(urls_of("steps"), nodesplitter=iter).map(number).batched(4), batch_size=None)


def kept() -> Any:
    """Of single samples, which every rank takes from its own shards."""
    data = fb.WebDataset(urls_of("steps"), shardshuffle=True, nodesplitter=wds.split_by_node).shuffle(5).map(number)
    return fb.WebLoader(data.batched(1), batch_size=None, num_workers=2, snapshot_every=3)


def go_on(folder: Path) -> None:
    """Nothing stops it; it ends behind a checkpoint; it goes on from that: with the DataModule of examples/lightning_module.py."""
    import lightning  # noqa: PLC0415 -- as below

    class Shards(lightning.LightningDataModule):  # type: ignore[misc]
        """Its state is that of the loaders of all ranks."""

        def __init__(self) -> None:
            super().__init__()
            self.ranks = LightningRanks()
            self.state_dict, self.load_state_dict = self.ranks.state_dict, self.ranks.load_state_dict

        def train_dataloader(self) -> Any:
            return self.ranks.batches(kept(), self.trainer)

    keeping = lightning.pytorch.callbacks.ModelCheckpoint(folder / "kept", every_n_train_steps=SAVED, save_top_k=-1)
    fit(folder, "whole", 2, data=Shards())
    fit(folder, "ended", 2, data=Shards(), max_steps=ENDS, callbacks=[keeping], enable_checkpointing=True)
    fit(folder, "gone-on", 2, data=Shards(), path=next((folder / "kept").glob(f"*step={SAVED}.ckpt")))


def fit(
    folder: Path,
    run: str,
    epochs: int,
    train: Callable[[], Any] = list,
    validate: Callable[[], Any] | None = None,
    data: Any = None,
    path: Path | None = None,
    **how: Any,
) -> None:
    import lightning  # noqa: PLC0415 -- a spawned worker imports this file, and would import it for seconds

    class Counting(lightning.LightningModule):  # type: ignore[misc]
        """The smallest model that trains, and what it was given."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.keys: list[list[str]] = []
            self.validated = 0

        def train_dataloader(self) -> Any:
            return train()

        def val_dataloader(self) -> Any:
            return validate() if validate else []

        def on_train_epoch_start(self) -> None:
            self.keys.append([])

        def training_step(self, batch: Any, index: int) -> Any:
            keys, values = batch
            if not self.keys:
                self.keys.append([])  # of an epoch that is gone on with Lightning says no beginning
            self.keys[-1] += keys
            return self.layer(values).sum()

        def validation_step(self, batch: Any, index: int) -> None:
            self.validated += len(batch[0])

        def on_train_end(self) -> None:
            told = [self.keys, self.global_step, self.validated]
            (folder / f"{run}.{self.global_rank}.json").write_text(json.dumps(told))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=epochs, use_distributed_sampler=False, logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1, **{"enable_checkpointing": False, **how},
    )  # fmt: skip
    trainer.fit(Counting(), datamodule=data, ckpt_path=path)


def main(folder: Path, *starts: str) -> None:
    warnings.simplefilter("ignore")
    for start in starts:
        fit(folder, start, 2, lambda start=start: recipe(start))  # type: ignore[misc]
    fit(folder, "steps", 3, steps, whole)
    go_on(folder)
    importlib.import_module("lightning_module").main(f"s3://bucket/train-{{000000..{SHARDS - 1:06d}}}.tar")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
