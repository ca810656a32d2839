"""Plain DDP: every rank reads its share, all ranks take the same number of steps.

To try it:

    python examples/make_shards.py /tmp/shards
    forebay run --file-root /tmp/shards -- torchrun --nproc-per-node 2 examples/ddp.py 'pipe:cat /tmp/shards/train-{000000..000007}.tar'
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import webdataset as wds

import forebay_loader as fb

BATCH, WORKERS, EPOCHS, CLASSES = 16, 2, 1, 4


def loader_of(urls: str) -> fb.WebLoader:
    dataset = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node).shuffle(100)
    dataset = dataset.decode("torchrgb").to_tuple("jpg", "cls").batched(BATCH)
    return fb.WebLoader(dataset, batch_size=None, num_workers=WORKERS)


def main(urls: str) -> None:
    dist.init_process_group("gloo")  # "nccl" where there are accelerators
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, CLASSES))
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = loader_of(urls)
    for epoch in range(EPOCHS):
        steps = samples = 0
        for pictures, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(pictures), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(pictures)
        print(f"epoch {epoch}, rank {dist.get_rank()}: {steps} steps, {samples} samples", flush=True)
    if dist.get_rank() == 0:
        print(fb.stalls())  # why this rank's accelerator was idle, in one sentence
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
