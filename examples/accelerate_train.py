"""Accelerate: it prepares model and optimizer; the loader is left as it is, since it shares out the samples and keeps ranks in step.

To try it:

    python examples/make_shards.py /tmp/shards
    ACCELERATE_USE_CPU=true forebay run --file-root /tmp/shards -- torchrun --nproc-per-node 2 examples/accelerate_train.py \\
        'pipe:cat /tmp/shards/train-{000000..000007}.tar'

On GPUs: ``accelerate launch --multi_gpu --num_processes 2``. Without them ``accelerate launch`` starts one process, whatever it is told.
"""

from __future__ import annotations

import sys

import torch
import webdataset as wds
from accelerate import Accelerator

import forebay_loader as fb
from every_rank import EveryRank

BATCH, WORKERS, CLASSES = 16, 2, 4


def main(urls: str) -> None:
    accelerator = Accelerator()  # first: the data set asks the process group for its rank
    dataset = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node).shuffle(100)
    dataset = dataset.decode("torchrgb").to_tuple("jpg", "cls").batched(BATCH)
    loader = fb.WebLoader(dataset, batch_size=None, num_workers=WORKERS)
    accelerator.register_for_checkpointing(EveryRank(loader))  # save_state and load_state go on with the batch that was due

    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, CLASSES))
    model, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.5))
    steps = samples = 0
    for pictures, labels in loader:
        wanted = torch.as_tensor(labels, device=accelerator.device)
        loss = torch.nn.functional.cross_entropy(model(pictures.to(accelerator.device)), wanted)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        steps, samples = steps + 1, samples + len(pictures)
    print(f"rank {accelerator.process_index}: {steps} steps, {samples} samples", flush=True)
    accelerator.print(fb.stalls())  # why it was idle, in one sentence
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
