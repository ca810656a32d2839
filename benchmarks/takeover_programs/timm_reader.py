"""timm's own ``ReaderWds`` in a DataLoader, DDP over gloo. It knows nothing of Forebay. URLS WORKERS"""

import sys
import time

import shim  # noqa: F401  # before torchvision
import torch
import torch.distributed as dist
from timm.data.readers.reader_wds import ReaderWds

SAMPLES = 96


class Reading(torch.utils.data.IterableDataset):
    def __init__(self, reader):
        self.reader = reader

    def __iter__(self):
        for picture, target in self.reader:
            yield picture.size, target


def main():
    urls, workers = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    root, _, split = urls.rpartition("/")
    reader = ReaderWds(root, split=f"{split}|{SAMPLES}", is_training=True, batch_size=4, sample_shuffle_size=8, sample_initial_size=4)
    reader.set_loader_cfg(num_workers=workers)
    seen = 0
    for _ in torch.utils.data.DataLoader(Reading(reader), batch_size=None, num_workers=workers):
        time.sleep(0.005)  # a step
        seen += 1
    total = torch.tensor([seen])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"samples={int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
