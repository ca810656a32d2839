"""A run that is stopped within an epoch and goes on at the very next sample, by torchdata's StatefulDataLoader.

To try it:

    python examples/make_shards.py /tmp/shards
    urls='pipe:cat /tmp/shards/train-{000000..000007}.tar'
    forebay run --file-root /tmp/shards -- python examples/stateful.py "$urls" /tmp/checkpoint.pt 10    # ten steps, then it stops
    forebay run --file-root /tmp/shards -- python examples/stateful.py "$urls" /tmp/checkpoint.pt       # the rest of the epoch
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import forebay_loader as fb

BATCH, WORKERS = 16, 2


def loader_of(urls: str) -> StatefulDataLoader[tuple[str, int]]:
    dataset = fb.WebDataset(urls, shardshuffle=True, seed=1).shuffle(100).decode().to_tuple("__key__", "cls")
    return StatefulDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)


def main(urls: str, checkpoint: Path, most_steps: int | None) -> None:
    loader = loader_of(urls)
    if checkpoint.exists():
        loader.load_state_dict(torch.load(checkpoint, weights_only=True)["loader"])
        print(f"goes on from {checkpoint}")
    steps = 0
    for keys, _labels in islice(loader, most_steps):
        steps += 1
        print(" ".join(keys))
    torch.save({"loader": loader.state_dict()}, checkpoint)  # beside model and optimizer
    print(f"{steps} steps")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
