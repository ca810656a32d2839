"""OpenCLIP's own ``get_wds_dataset``, as its trainer calls it: two epochs, DDP over gloo. It knows nothing of Forebay. URLS WORKERS"""

import sys
import time
from argparse import Namespace

import shim  # noqa: F401  # before torchvision
import torch
import torch.distributed as dist
from open_clip_train.data import get_wds_dataset

SAMPLES, BATCH = 96, 4


def image(picture):
    return torch.zeros(3, 8, 8)


def words(text):
    return torch.zeros(1, 4)


def main():
    urls, workers = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    args = Namespace(
        train_data=urls, val_data=None, dataset_resampled=False, train_num_samples=SAMPLES, val_num_samples=0, seed=1,
        train_data_upsampling_factors=None, batch_size=BATCH, workers=workers, world_size=dist.get_world_size(),
    )  # fmt: skip
    info = get_wds_dataset(args, image, is_train=True, tokenizer=words)
    seen = 0
    for epoch in range(2):
        info.set_epoch(epoch)
        for images, _ in info.dataloader:
            time.sleep(0.01)  # a step
            seen += len(images)
    total = torch.tensor([seen])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"samples={int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
