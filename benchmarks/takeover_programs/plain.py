"""A training script as people write it: plain webdataset, DDP over gloo. It knows nothing of Forebay. URLS WORKERS"""

import sys
import time

import torch
import torch.distributed as dist
import webdataset as wds


def main():
    urls, workers = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    data = wds.WebDataset(urls, shardshuffle=False, nodesplitter=wds.split_by_node).decode("pil").to_tuple("jpg", "cls", "__key__")
    seen = 0
    for _ in torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers):
        time.sleep(0.005)  # a step
        seen += 1
    total = torch.tensor([seen])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"samples={int(total)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
