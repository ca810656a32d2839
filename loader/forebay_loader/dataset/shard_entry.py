"""A shard that is entered at a sample: by its index, from its file or by ranges."""

from __future__ import annotations

from itertools import islice
from typing import Any, Iterator, Optional, Sequence

from forebay_loader.base.errors import LoaderError
from forebay_loader.base.timeouts import Limits
from forebay_loader.resume.begun_shards import version_of
from forebay_loader.samples.index_client import source_in
from forebay_loader.samples.index_samples import indexed_samples
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_stream import ShardStream

__all__ = ["entered_at", "first_left", "indexed_shard"]


def entered_at(opened: dict[str, Any], start: int, stop: Optional[int], limits: Limits) -> Optional[Iterator[dict[str, Any]]]:
    """Samples ``start`` to ``stop`` of an open shard without reading what lies before; None where it has no index."""
    stream = opened["stream"]
    if isinstance(stream, Descriptor):
        found = indexed_samples(opened, start, stop, limits)
        return None if found is None else _closing(found, stream)
    if not isinstance(stream, ShardStream) or "local_path" in opened:
        return None
    shard = indexed_shard(opened["url"], limits, version_of(stream))
    if shard is None or shard.etag != version_of(stream):
        return None
    stream.close()  # of what it has fetched ahead the sidecar lets nothing go to waste
    return _closing(shard.samples(start, stop), shard)


def indexed_shard(url: Any, limits: Limits, version: str = "") -> Optional[IndexedShard]:
    """The shard by the numbers of its samples, in the ``version`` (an ETag) if that is here; None where it has no index, or the sidecar
    does not read it."""
    if not isinstance(url, str) or source_in(url) is None:
        return None
    try:
        return IndexedShard(url, limits=limits, version=version)
    except LoaderError:
        return None


def first_left(done: Sequence[tuple[int, int]]) -> int:
    """The first sample that is in none of the ranges ``done``."""
    return done[0][1] if done and done[0][0] == 0 else 0


def _closing(samples: Iterator[Any], opened: Any) -> Iterator[Any]:
    try:
        yield from islice(samples, None)
    finally:
        opened.close()
