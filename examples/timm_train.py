"""timm's own reader of shards, loader and model, unchanged, read through Forebay.

    python examples/make_shards.py /tmp/shards; python -m http.server -d /tmp/shards 8000 &
    forebay run --allow-origin http://127.0.0.1:8000 -- python examples/timm_train.py \\
        http://127.0.0.1:8000 'train-{000000..000007}.tar' 512

Of your own: ROOT is a bucket's ``s3://bucket/folder``, and SPLIT a pattern in it. timm reads with webdataset 0.2 (1.x gives its reader
members that it does not know). Nothing here names Forebay: ``forebay run`` takes webdataset over.
"""

from __future__ import annotations

import sys

import timm
import torch
from timm.data import create_dataset, create_loader

BATCH, WORKERS, CLASSES, SIDE = 16, 2, 4, 32


def main(root: str, split: str, samples: int) -> None:
    dataset = create_dataset("wds/shards", root=root, split=f"{split}|{samples}", is_training=True, batch_size=BATCH)
    loader = create_loader(
        dataset, input_size=(3, SIDE, SIDE), batch_size=BATCH, is_training=True, num_workers=WORKERS, use_prefetcher=False
    )
    model = timm.create_model("resnet10t", num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = seen = 0
    for pictures, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps, seen = steps + 1, seen + len(pictures)
    print(f"{steps} steps, {seen} samples")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
