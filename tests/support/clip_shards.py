"""Shards of clips, each sample with its number."""

from __future__ import annotations

import json
from collections.abc import Sequence

from support.tarmaking import written

__all__ = ["numbered_clips", "shard_of_samples"]


def shard_of_samples(*samples: dict[str, bytes], first: int = 0) -> bytes:
    """A tar of ``samples``, by suffix; their keys are numbers from ``first``, of four digits."""
    return written(
        [(f"{number:04}.{suffix}", content) for number, sample in enumerate(samples, first) for suffix, content in sample.items()]
    )


def numbered_clips(clips: Sequence[bytes], first: int = 0) -> bytes:
    """A tar of a sample for each of ``clips``: ``mp4``, and ``json`` with its ``number``."""
    samples = [{"mp4": clip, "json": json.dumps({"number": number}).encode()} for number, clip in enumerate(clips, first)]
    return shard_of_samples(*samples, first=first)
