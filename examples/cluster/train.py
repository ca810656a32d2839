"""What a training node does here: one epoch over the shards it is given, as plain webdataset code. It prints what it saw as JSON.

forebay run -- python -m cluster.train URL …
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import webdataset as wds

__all__ = ["main"]


def main(urls: Sequence[str]) -> None:
    """``samples`` counts what came, ``distinct`` the different keys among it."""
    begun = time.monotonic()
    dataset: Any = wds.WebDataset(list(urls), shardshuffle=len(urls))  # type: ignore[attr-defined]  # webdataset declares no exports
    keys = [sample["__key__"] for sample in dataset]
    print(json.dumps({"samples": len(keys), "distinct": len(set(keys)), "seconds": round(time.monotonic() - begun, 2)}))


if __name__ == "__main__":
    main(sys.argv[1:])
