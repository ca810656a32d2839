"""A video training script that knows nothing of Forebay: ``python torch_video_train.py URLS STEP_S``, one process a rank.

As its author was told to write it: webdataset's own decoding, a deterministic shuffle, two workers, torch's profiler around it. Its step
sleeps. Prints one line of JSON: the labels of this rank, what a clip is, the share of its time that it worked once each worker had brought
a clip, and the names of what the profiler saw in a pass without workers.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import torch
import webdataset as wds
from torch.autograd.profiler import profile  # torch.profiler has the same, and imports torch's compiler for seconds

WORKERS = 2


def main() -> None:
    warnings.simplefilter("ignore")
    urls, step_s = sys.argv[1], float(sys.argv[2])
    plain = wds.WebDataset(urls, nodesplitter=wds.split_by_node, detshuffle=True, shardshuffle=100)
    dataset = plain.decode(wds.torch_video).to_tuple("mp4", "json")
    labels, arrived_s = [], []
    for (frames, audio, rates), label in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=WORKERS):
        assert isinstance(frames, torch.Tensor)
        assert isinstance(audio, torch.Tensor)
        assert isinstance(rates, dict)
        labels.append(label["number"])
        arrived_s.append(time.monotonic())
        time.sleep(step_s)
    with profile() as seen:
        next(iter(dataset))
    names = [event.key for event in seen.key_averages()]
    busy = step_s * (len(arrived_s) - WORKERS) / (arrived_s[-1] - arrived_s[WORKERS - 1])
    told = {"labels": labels, "frames": list(frames.shape), "audio": list(audio.shape), "info": rates, "busy": busy, "profiled": names}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
