"""Lightning: a DataModule whose loader shares out samples by itself, so Lightning puts no sampler of its own in front.

To try it:

    python examples/make_shards.py /tmp/shards
    forebay run --file-root /tmp/shards -- python examples/lightning_module.py 'pipe:cat /tmp/shards/train-{000000..000007}.tar'
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
import webdataset as wds

import forebay_loader as fb
from every_rank import LightningRanks

BATCH, WORKERS, RANKS, CLASSES = 16, 2, 2, 4


class Shards(lightning.LightningDataModule):
    """``urls`` for training: the shards of each rank are its own."""

    def __init__(self, urls: str) -> None:
        super().__init__()
        self.urls, self.ranks = urls, LightningRanks()
        self.state_dict, self.load_state_dict = self.ranks.state_dict, self.ranks.load_state_dict  # a checkpoint has the loaders' states

    def train_dataloader(self) -> Any:
        dataset = fb.WebDataset(self.urls, shardshuffle=True, nodesplitter=wds.split_by_node).shuffle(100)
        dataset = dataset.decode("torchrgb").to_tuple("jpg", "cls").batched(BATCH)
        return self.ranks.batches(fb.WebLoader(dataset, batch_size=None, num_workers=WORKERS), self.trainer)


class Colours(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, CLASSES))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        pictures, labels = batch
        return torch.nn.functional.cross_entropy(self.network(pictures), torch.as_tensor(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main(urls: str) -> None:
    trainer = lightning.Trainer(accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=1, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(Colours(), datamodule=Shards(urls))
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps; {fb.stalls()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
