"""Words of the meter that both sides say: what a worker, and the training that waits for it, can be waiting for. Pure."""

from __future__ import annotations

from typing import Dict, Tuple

__all__ = ["CAUSES", "CAUSE_INDEX"]

# In the order of a sample's way. Add only at the end: pages in memory name a cause by its place here.
CAUSES: Tuple[str, ...] = (
    "origin",  # bytes that were on their way from an origin
    "proxy",  # the sidecar: it had the bytes, or nothing to ask an origin for, and took its time
    "disk",  # a read of the cache's file by the worker itself
    "read",  # taking tars apart: bytes that were here
    "decode",
    "map",  # the user's own stages and data set
    "collate",
    "transfer",  # the batch was made, and on its way from its worker to the trainer
    "start",  # of workers: processes, imports; and their end
    "other",  # none of these could be told
)
CAUSE_INDEX: Dict[str, int] = {cause: index for index, cause in enumerate(CAUSES)}
