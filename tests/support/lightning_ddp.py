"""One rank of a training run under Lightning's DDP, with webdataset's explicit pipeline: ``python lightning_ddp.py URLS FOLDER START``.

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

RANKS, EPOCHS, BATCH = 2, 2, 2
WORKERS = {"fork": 2, "spawn": 1}  # one spawned worker imports torch for seconds


def numbers(pair: Any) -> Any:
    """Key and a tensor, as a user's own ``map`` would make them."""
    key, text = pair
    return key, torch.tensor([float(len(text))])


class Counting(lightning.LightningModule):  # type: ignore[misc]
    """The smallest model that trains, and what it was given."""

    def __init__(self, urls: str, folder: Path, start: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.urls, self.folder, self.start = urls, folder, start
        self.keys: list[list[str]] = []

    def train_dataloader(self) -> Any:
        made = wds.DataPipeline(
            wds.SimpleShardList(self.urls),
            wds.split_by_node,
            wds.split_by_worker,
            fb.tarfile_to_samples(),
            wds.shuffle(10),
            wds.decode(),
            wds.to_tuple("__key__", "txt"),
            wds.map(numbers),
            wds.batched(BATCH),
        )
        if self.start == "fork":  # webdataset's own length cannot be pickled
            made = made.with_length(4)
        how = {"num_workers": WORKERS[self.start], "multiprocessing_context": self.start, "persistent_workers": self.start == "spawn"}
        return torch.utils.data.DataLoader(made, batch_size=None, **how)

    def on_train_epoch_start(self) -> None:
        self.keys.append([])

    def training_step(self, batch: Any, index: int) -> Any:
        keys, values = batch
        self.keys[-1] += keys
        return self.layer(values).sum()

    def on_train_end(self) -> None:
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(self.keys))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(urls: str, folder: str, start: str) -> None:
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=EPOCHS, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Counting(urls, Path(folder), start))


if __name__ == "__main__":
    main(*sys.argv[1:])
