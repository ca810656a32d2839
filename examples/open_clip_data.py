"""OpenCLIP's own data pipeline, unchanged, read through Forebay. (Its trainer takes it the same way: the lines below.)

    python examples/make_shards.py /tmp/shards
    forebay run --file-root /tmp/shards -- torchrun --nproc-per-node 2 examples/open_clip_data.py \\
        'pipe:cat /tmp/shards/train-{000000..000007}.tar' 512

    forebay run -- torchrun --nproc-per-node 8 -m open_clip_train.main --dataset-type webdataset --workers 6 --batch-size 256 \\
        --train-data 's3://bucket/{00000..41455}.tar' --train-num-samples 400000000 --model ViT-B-32

OpenCLIP 3.3 wants webdataset 0.2.86 at most. Nothing here names Forebay: ``forebay run`` takes webdataset over.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

import numpy
import torch
import torch.distributed as dist
from open_clip_train.data import get_wds_dataset

BATCH, WORKERS = 16, 2


def picture(image: Any) -> torch.Tensor:
    """What ``open_clip.create_model_and_transforms`` would give."""
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1) / 255


def words(text: Any) -> torch.Tensor:
    """What ``open_clip.get_tokenizer`` would give."""
    return torch.tensor([[len(word) for word in str(text).split()][:4]])


def main(urls: str, samples: int) -> None:
    dist.init_process_group("gloo")
    args = Namespace(
        train_data=urls, train_num_samples=samples, val_data=None, val_num_samples=0, dataset_resampled=False, seed=1,
        train_data_upsampling_factors=None, batch_size=BATCH, workers=WORKERS, world_size=dist.get_world_size(),
    )  # fmt: skip
    info = get_wds_dataset(args, picture, is_train=True, tokenizer=words)
    info.set_epoch(0)
    seen = 0
    for images, _texts in info.dataloader:
        seen += len(images)
    print(f"rank {dist.get_rank()}: {seen} samples", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
