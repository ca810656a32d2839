"""Samples of an opened shard by number: what comes before the first of them is not read."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional

from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.samples.byte_window import Flowing
from forebay_loader.samples.index_client import index_of, source_in
from forebay_loader.samples.index_samples import samples_in, starts_at
from forebay_loader.samples.ranged_samples import Sample
from forebay_loader.stream.shard_descriptor import Descriptor

__all__ = ["indexed_samples"]


def indexed_samples(
    opened: Dict[str, Any], start: int = 0, stop: Optional[int] = None, limits: Limits = DEFAULT_LIMITS, *, only_kept: bool = False
) -> Optional[Iterator[Sample]]:
    """Samples ``start`` to ``stop`` of what an opener gave (``{"url", "stream"[, "local_path"]}``), without reading what comes before.

    None where that cannot be: it is a stream, or its index is not to be had (``only_kept``: or not made yet, or tells of what must be told
    to who reads), or links lead back in the shard. The stream stays the caller's to close.
    """
    stream, url = opened["stream"], opened["url"]
    source = source_in(url) if isinstance(stream, Descriptor) and isinstance(url, str) else None
    found = index_of(source, stream.etag, limits, only_kept=only_kept) if source is not None else None
    if found is None or found.index.length != stream.size or not found.index.ordered:
        return None
    if only_kept and (found.index.again or found.index.left_out):
        return None
    window = Flowing(stream.readinto1, stream.skip(starts_at(found.index, start)), stream.skip, stream.lone)
    return samples_in(window, stream.size, found.index, url, start, stop, opened.get("local_path"))
