"""How tables of clips call a shard, however it is written where it is opened; and how what draws for a sample calls that sample.

A key is not enough: names begin anew in each shard, a shard may be listed several times, and be drawn several times in one pass. So
samples that ``fb.WebDataset`` reads have a ``VisitedShard`` as their ``__url__``, which goes wherever they go.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Any, Mapping

from forebay_loader.samples.index_client import source_in
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

__all__ = ["VisitedShard", "drawn_as", "shard_name"]


class VisitedShard(str):
    """A shard's URL, and ``visit``: which one of the list it is, and how often its reader came to it before in this pass."""

    visit = ""

    @classmethod
    def of(cls, url: str, shard: object, before: int) -> VisitedShard:
        found = cls(url)
        found.visit = f"{shard}#{before}" if before else f"{shard}"
        return found


def drawn_as(sample: Mapping[str, Any]) -> str:
    """What tells ``sample`` apart from all others that passes of one seed draw for: its shard, by name and by number in the list where that
    is known, and key. The name, as many data sets of a shard each may be mixed; the number, as a list may have a shard twice."""
    url = sample.get("__url__", "")
    return f"{getattr(url, 'visit', '')}/{shard_name(str(url))}/{sample.get('__key__', '')}"


@lru_cache(maxsize=4096)
def shard_name(url: str) -> str:
    """How tables call the shard that ``url`` names, however it is written: a URL, or a ``pipe:`` command that prints it. Never raises.

    Its origin's URL without what may be a secret in it; of a command that only a shell understands, a hash.
    """
    try:
        source = source_in(url)
    except InvalidShardUrl:
        source = None
    if source is not None:
        return source.url.text().partition("?")[0]
    if url.startswith("pipe:"):
        return f"pipe:{blake2b(url.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}"
    return url.partition("?")[0]
