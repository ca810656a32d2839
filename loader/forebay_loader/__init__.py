"""Forebay inside a training process: shards through the node's sidecar, in webdataset's own pipeline.

``fb.WebDataset(urls, …)`` stands where ``wds.WebDataset`` stood; ``fb.tarfile_to_samples()`` and ``fb.ahead()`` are stages for any
``wds.DataPipeline``; ``fb.enable()`` takes over the openers of unchanged code. Needs the standard library and webdataset, which is
imported when first used. The first import of this package names the job for the processes started from here.
"""

from __future__ import annotations

import os

from forebay_loader.ahead import ahead
from forebay_loader.counts import counters
from forebay_loader.dataset import WebDataset, tarfile_to_samples
from forebay_loader.errors import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.limits import Limits
from forebay_loader.openers import disable, enable, worker_init
from forebay_loader.reader import ensure_job

__all__ = [
    "Limits",
    "LoaderError",
    "ProxyUnreachable",
    "ShardChanged",
    "ShardReadError",
    "WebDataset",
    "ahead",
    "counters",
    "disable",
    "enable",
    "tarfile_to_samples",
    "worker_init",
]

ensure_job()
if os.environ.get("FOREBAY_ENABLE") == "1":  # a parent called enable(export=True)
    enable()
