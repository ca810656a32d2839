"""A training script that knows nothing of Forebay: ``python takeover_train.py URLS CACHE_DIR FOREBAY_URL START...``.

For each way to start a worker a loader, whose workers stay, reads the same shards by every kind of pipeline, twice. Each worker asks the
sidecar, while it is inside a pipeline, whose plans there are. Prints one line of JSON for each pass of a worker over a pipeline.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import torch.utils.data
import webdataset as wds

WORKERS = {"fork": 2, "spawn": 1, "forkserver": 1}  # one where each imports torch for seconds
KINDS = ("WebDataset", "resampled", "cache_dir", "DataPipeline")
SHARDS = 16
DRAWS = 8  # shards a worker draws with resampling


def pipeline(kind: str, urls: str, cache_dir: str) -> Any:
    if kind == "DataPipeline":
        return wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples())
    if kind == "resampled":
        return wds.WebDataset(urls, resampled=True, shardshuffle=False).with_epoch(DRAWS * 3)
    return wds.WebDataset(urls, shardshuffle=False, cache_dir=cache_dir if kind == "cache_dir" else None)


class EveryKind(torch.utils.data.IterableDataset):  # type: ignore[misc,type-arg]  # torch is not always there when this is checked
    """The passes of one worker, one after the other."""

    def __init__(self, pipelines: dict[str, Any], sidecar: str) -> None:
        self._pipelines = pipelines
        self._sidecar = sidecar

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for kind, data in self._pipelines.items():
            passed: dict[str, str] = {}
            planned = False
            for sample in data:
                planned = planned or self._is_planned()
                passed[sample["__key__"]] = hashlib.md5(sample["bin"]).hexdigest()
            worker = torch.utils.data.get_worker_info()
            yield {"kind": kind, "worker": worker.id, "pid": os.getpid(), "planned": planned, "samples": passed}

    def _is_planned(self) -> bool:
        with urllib.request.urlopen(f"{self._sidecar}/v1/plans") as answer:
            readers = [plan["reader"] for plan in json.load(answer)["plans"]]
        return any(reader.split("/")[3].startswith(f"{os.getpid()}.") for reader in readers)


def main() -> None:
    warnings.simplefilter("ignore")
    urls, cache_dir, sidecar, *starts = sys.argv[1:]
    for start in starts:
        data = EveryKind({kind: pipeline(kind, urls, f"{cache_dir}/{start}") for kind in KINDS}, sidecar)
        how = {"num_workers": WORKERS[start], "persistent_workers": True, "multiprocessing_context": start}
        loader = torch.utils.data.DataLoader(data, batch_size=None, **how)
        for epoch in range(2):
            for passed in loader:
                print(json.dumps({"start": start, "epoch": epoch, **passed}), flush=True)


if __name__ == "__main__":
    main()
