"""One rank of a training run under Lightning's DDP over uneven shards, with ``fb.WebLoader``: ``python lightning_steps.py URLS FOLDER``.

Lightning starts the other rank with the same command line. Each rank leaves the keys it was given, epoch by epoch, in ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import webdataset as wds

import forebay_loader as fb

RANKS, EPOCHS, WORKERS = 2, 3, 2


def number(sample: Any) -> Any:
    return sample["__key__"], torch.tensor([1.0])


class Counting(lightning.LightningModule):  # type: ignore[misc]
    """The smallest model that trains, and what it was given."""

    def __init__(self, urls: str, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.urls, self.folder = urls, folder
        self.keys: list[list[str]] = []
        self.validated = 0

    def train_dataloader(self) -> Any:
        data = fb.WebDataset(self.urls, shardshuffle=True, nodesplitter=wds.split_by_node).map(number)
        return fb.WebLoader(data, batch_size=None, num_workers=WORKERS).batched(2)

    def val_dataloader(self) -> Any:
        return fb.WebLoader(fb.WebDataset(self.urls, nodesplitter=iter).map(number).batched(4), batch_size=None)

    def on_train_epoch_start(self) -> None:
        self.keys.append([])

    def training_step(self, batch: Any, index: int) -> Any:
        keys, values = batch
        self.keys[-1] += keys
        return self.layer(values).sum()

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated += len(batch[0])

    def on_train_end(self) -> None:
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps([self.keys, self.global_step, self.validated]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(urls: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=EPOCHS, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(Counting(urls, Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
