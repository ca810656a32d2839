"""The clips of shards, and clips that are objects of their own, as a scan takes them."""

from __future__ import annotations

from typing import Collection, Iterator

from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.samples.shard_name import shard_name
from forebay_loader.videos.metadata.clip_address import ClipAddress
from forebay_loader.videos.metadata.record import clip_name
from forebay_loader.videos.metadata.scan import ClipToScan
from forebay_loader.videos.sources.clip_bytes import ObjectClip

__all__ = ["clips_of_shard", "lone_clip"]


def clips_of_shard(url: str, suffixes: Collection[str]) -> "Iterator[ClipToScan[ClipAddress]]":
    """The members of the shard ``url`` that end in one of ``suffixes``, in its order; nothing of them is read.

    Raises ``ShardReadError`` where the shard has no sample index, ``ProxyUnreachable`` without a sidecar.
    """
    shown = shard_name(url)
    with IndexedShard(url) as shard:
        for number in range(len(shard)):
            key = shard.key(number)
            for file in shard.index.files(number):
                if file.suffix.rpartition(".")[2].lower() in suffixes:
                    member = f"{key}.{file.suffix}"
                    clip = ClipAddress(url, shard.etag, member, shown, number, file.suffix)
                    yield ClipToScan(clip_name(shown, member), file.size, shard.etag, clip, file.size)


def lone_clip(url: str) -> "ClipToScan[ClipAddress]":
    """The clip that is the object ``url``. Raises ``ShardReadError``, ``ProxyUnreachable``."""
    clip = ObjectClip(url)
    size, version = clip.open(), clip.etag
    clip.close()
    return ClipToScan(clip_name(shard_name(url)), size, version, ClipAddress(url, version, clip.name))
