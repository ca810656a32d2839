"""How tables of clips call a shard, however it is written where it is opened."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from forebay_loader.samples.index_client import source_in
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["shard_name"]


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
    return f"pipe:{blake2b(url.encode(), digest_size=16).hexdigest()}" if url.startswith("pipe:") else url.partition("?")[0]
