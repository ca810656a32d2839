"""A video training script that knows nothing of Forebay: ``python torch_video_train.py URLS``, one process a rank.

As its author was told to write it: webdataset's own decoding, a deterministic shuffle, two workers, torch's profiler around it. Prints one
line of JSON: the labels of this rank, what a clip is, and the names of what the profiler saw in a pass without workers.
"""

from __future__ import annotations

import json
import sys
import warnings

import torch
import webdataset as wds
from torch.autograd.profiler import profile  # torch.profiler has the same, and imports torch's compiler for seconds

WORKERS = 2


def main() -> None:
    warnings.simplefilter("ignore")
    urls = sys.argv[1]
    plain = wds.WebDataset(urls, nodesplitter=wds.split_by_node, detshuffle=True, shardshuffle=100)
    dataset = plain.decode(wds.torch_video).to_tuple("mp4", "json")
    labels = []
    for (frames, audio, rates), label in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=WORKERS):
        assert isinstance(frames, torch.Tensor)
        assert isinstance(audio, torch.Tensor)
        assert isinstance(rates, dict)
        labels.append(label["number"])
    with profile() as seen:
        next(iter(dataset))
    names = [event.key for event in seen.key_averages()]
    print(json.dumps({"labels": labels, "frames": list(frames.shape), "audio": list(audio.shape), "info": rates, "profiled": names}))


if __name__ == "__main__":
    main()
