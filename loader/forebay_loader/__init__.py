"""Forebay inside a training process: shards through the node's sidecar, in webdataset's own pipeline.

``fb.WebDataset(urls, …)`` stands where ``wds.WebDataset`` stood; ``fb.tarfile_to_samples()`` and ``fb.ahead()`` are stages for any
``wds.DataPipeline``; ``fb.enable()`` takes over the openers of unchanged code. Needs the standard library and webdataset, which is
imported when first used. The first import of this package names the job for the processes started from here.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from forebay_loader.base.counters import counters
from forebay_loader.base.errors import LoaderError, NotResumable, ProxyUnreachable, ShardChanged, ShardReadError, StepsError, TooManySkips
from forebay_loader.base.timeouts import Limits
from forebay_loader.batches.budget_stage import batched
from forebay_loader.batches.pad import padded
from forebay_loader.dataset.stages import tarfile_to_samples
from forebay_loader.identity.reader_name import ensure_job
from forebay_loader.memos.frames.arguments import frames
from forebay_loader.memos.stage import memo
from forebay_loader.meter.skips import stock_stages
from forebay_loader.meter.stalls import install, postfix, remove, stalls
from forebay_loader.plan.ahead import ahead
from forebay_loader.resume.description import describe_state
from forebay_loader.resume.merge import merge_states
from forebay_loader.resume.sample_draws import rng
from forebay_loader.resume.state_file import load_state, save_state
from forebay_loader.samples.faults import TarFault
from forebay_loader.session.sidecar import sidecar
from forebay_loader.session.status import status
from forebay_loader.stream.webdataset_openers import alongside, disable, enable, worker_init
from forebay_loader.videos.errors import VideoError
from forebay_loader.videos.stage import video
from forebay_loader.videos.torch_video import give_back, put_in_place

if TYPE_CHECKING:
    from forebay_loader.dataset.web_dataset import WebDataset
    from forebay_loader.loading.web_loader import WebLoader
    from forebay_loader.samples.indexed_shard import IndexedShard
    from forebay_loader.samples.indexed_shards import IndexedShards
    from forebay_loader.videos.clips import Clips
    from forebay_loader.videos.sampling.phases import by_epoch

__all__ = [
    "Clips",
    "IndexedShard",
    "IndexedShards",
    "Limits",
    "LoaderError",
    "NotResumable",
    "ProxyUnreachable",
    "ShardChanged",
    "ShardReadError",
    "StepsError",
    "TarFault",
    "TooManySkips",
    "VideoError",
    "WebDataset",
    "WebLoader",
    "ahead",
    "batched",
    "by_epoch",
    "counters",
    "describe_state",
    "disable",
    "enable",
    "frames",
    "load_state",
    "memo",
    "merge_states",
    "padded",
    "postfix",
    "rng",
    "save_state",
    "sidecar",
    "stalls",
    "status",
    "tarfile_to_samples",
    "video",
    "worker_init",
]

# Classes of webdataset's kind: they import it, and with it torch. The others are not needed by most.
_LAZY = {
    "Clips": "forebay_loader.videos.clips",
    "IndexedShard": "forebay_loader.samples.indexed_shard",
    "IndexedShards": "forebay_loader.samples.indexed_shards",
    "WebDataset": "forebay_loader.dataset.web_dataset",
    "WebLoader": "forebay_loader.loading.web_loader",
    "by_epoch": "forebay_loader.videos.sampling.phases",
}


def __dir__() -> "list[str]":
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("forebay_proxy.wire.protocol.version").VERSION  # when it is asked for: finding it takes 10 ms
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


ensure_job()
alongside(put_in_place, give_back)
alongside(install, remove)
alongside(stock_stages.put_in_place, stock_stages.give_back)
if os.environ.get("FOREBAY_ENABLE") == "1":  # a parent called enable(export=True)
    enable()
