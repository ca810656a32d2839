"""A run that may be killed at any moment, and goes on behind its last checkpoint: on as many ranks as before, or on others.

To try it, kill it when you like, and type the last line again:

    python examples/make_shards.py /tmp/shards
    urls='pipe:cat /tmp/shards/train-{000000..000007}.tar'
    forebay run --file-root /tmp/shards -- python examples/resume.py "$urls" /tmp/checkpoints
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import webdataset as wds

import forebay_loader as fb

BATCH, WORKERS, EVERY = 16, 2, 3
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def loader_of(urls: str) -> fb.WebLoader:
    dataset = fb.WebDataset(urls, shardshuffle=True, seed=1, nodesplitter=wds.split_by_node).shuffle(100).decode("torchrgb")
    return fb.WebLoader(dataset.to_tuple("__key__", "jpg", "cls").batched(BATCH), batch_size=None, num_workers=WORKERS, equal_steps=False)


def newest(folder: Path) -> list[dict[str, Any]]:
    """The last checkpoint that every rank has written: what each of them wrote."""
    for step in sorted(folder.glob("step-*"), reverse=True):
        ranks = [fb.load_state(path) for path in sorted(step.glob("rank-*.json"))]
        if ranks and all(each["loader"]["size"] == len(ranks) for each in ranks):
            return ranks
    return []


def main(urls: str, folder: Path) -> None:
    model, loader, steps = torch.nn.Linear(3, 4), loader_of(urls), 0
    if ranks := newest(folder):
        states = [each["loader"] for each in ranks]
        loader.load_state_dict(states[RANK] if len(states) == RANKS else fb.merge_states(states))
        steps = ranks[0]["step"]
        model.load_state_dict(torch.load(folder / f"step-{steps:08d}" / "weights-0.pt", weights_only=True))
        print(f"goes on behind step {steps}:\n{fb.describe_state(states[0])}", file=sys.stderr)
    for step, (keys, pictures, labels) in enumerate(loader, steps + 1):
        loss = torch.nn.functional.cross_entropy(model(pictures.mean((2, 3))), torch.as_tensor(labels))
        torch.autograd.backward(loss)  # and what else a step does
        print(f"step {step}:", *keys, flush=True)
        if step % EVERY == 0:
            (made := folder / f"step-{step:08d}").mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), made / f"weights-{RANK}.pt")  # before the state: where that is there, these are
            fb.save_state({"step": step, "loader": loader.state_dict()}, made / f"rank-{RANK:05d}.json")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
