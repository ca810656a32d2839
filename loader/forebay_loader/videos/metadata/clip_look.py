"""One look at a clip where it lies: what of it is read is what is decoded, and no more."""

from __future__ import annotations

from typing import Optional

from forebay_loader.base.errors import ShardChanged
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.videos.clip_info import ClipAddress, ClipInfo
from forebay_loader.videos.metadata.motion import LOOK, measured
from forebay_loader.videos.sources.clip_bytes import ClipBytes, MemberClip, ObjectClip
from forebay_loader.videos.sources.clip_source import ClipSource

__all__ = ["looked_at"]


def looked_at(clip: ClipAddress, shard: Optional[IndexedShard], audio: bool) -> ClipInfo:
    """As ``measured`` gives it. ``shard``: the open one that ``clip`` is a member of. Raises what that and reading raise."""
    with ClipSource(_object(clip) if shard is None else _member(clip, shard), size=LOOK) as source:
        return measured(source, audio=audio)


def _member(clip: ClipAddress, shard: IndexedShard) -> ClipBytes:
    part = shard.in_parts(clip.number, lambda _: True)[clip.suffix]
    return MemberClip(part.read, part.size, clip.name, clip.shard, part.expect)


def _object(clip: ClipAddress) -> ClipBytes:
    found = ObjectClip(clip.url)
    found.open()
    if found.etag != clip.etag:
        found.close()
        raise ShardChanged(f"{clip.name}: it was replaced while it was scanned")
    return found
