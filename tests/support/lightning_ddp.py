"""One rank of training runs under Lightning's DDP, one after the other: ``python lightning_ddp.py FOLDER START...``.

With webdataset's explicit pipeline in workers of each START, over equal shards; then with ``fb.WebLoader`` over uneven ones; then
examples/lightning_module.py. Lightning starts the other rank with the same command line. Each rank leaves what it was given in
``FOLDER/RUN.RANK.json``.
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

RANKS, BATCH = 2, 2
SHARDS, SAMPLES = 4, 4  # a shard for each worker of both ranks, so that all ranks have as many batches: equal steps are another matter
SIZES = (9, 2, 7, 1)  # where they are
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


def fit(folder: Path, run: str, epochs: int, train: Callable[[], Any], validate: Callable[[], Any] | None = None) -> None:
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
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(Counting())


def main(folder: Path, *starts: str) -> None:
    warnings.simplefilter("ignore")
    for start in starts:
        fit(folder, start, 2, lambda start=start: recipe(start))  # type: ignore[misc]
    fit(folder, "steps", 3, steps, whole)
    importlib.import_module("lightning_module").main(f"s3://bucket/train-{{000000..{SHARDS - 1:06d}}}.tar")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
