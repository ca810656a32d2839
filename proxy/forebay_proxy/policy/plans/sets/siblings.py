"""Many shards of few folders: the first of a folder is parsed, its plain siblings are put together from it. Pure.

That takes 3 instead of 12 us each.
"""

from __future__ import annotations

import re

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.shard_url import ShardUrl, parse_origin_url

__all__ = ["Siblings"]

# Unreserved characters only: no parser changes them, whatever the scheme. "." and ".." it would.
_PLAIN_LEAF = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_MOST_FOLDERS = 1024  # remembered; a set has a handful


class Siblings:
    """URLs as shards or as names. ``headers`` are the credential of the first one's host, and of no other."""

    def __init__(self, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._headers = headers
        self._folders: dict[str, tuple[Shard, str]] = {}  # as written -> (the first shard in it, its group)
        self._host: str | None = None

    def shard(self, text: str) -> Shard:
        """The shard that ``text`` names. Raises ``InvalidShardUrl``."""
        folder, _, leaf = text.rpartition("/")
        plain = _PLAIN_LEAF.fullmatch(leaf) is not None and "?" not in folder and "#" not in folder  # a query may have slashes of its own
        known = self._folders.get(folder) if plain else None
        if known is None:
            return self._parsed(text, folder if plain else "")
        first, group = known
        url = first.url
        path = url.path[: url.path.rindex("/") + 1] + leaf
        return Shard(ShardUrl(url.scheme, url.authority, path, ""), group + leaf, first.credential)

    def name(self, text: str) -> str:
        """The name of that shard, for less. Raises ``InvalidShardUrl``."""
        folder, _, leaf = text.rpartition("/")
        known = self._folders.get(folder)
        if known is not None and _PLAIN_LEAF.fullmatch(leaf):
            return known[1] + leaf
        return self.shard(text).name

    def beginning(self, before: str, end: str) -> str | None:
        """How every name begins whose text is ``before``, a number and something, as ``end`` is; None where that cannot be told."""
        folder, _, prefix = (before + end).rpartition("/")
        if folder.count("/") < 2 or len(folder) >= len(before) or not _PLAIN_LEAF.fullmatch(prefix):
            return None
        return self.name(before + end).removesuffix(end)

    def _parsed(self, text: str, folder: str) -> Shard:
        shard = Shard.of(parse_origin_url(text), self._headers)
        if self._host is None:
            self._host = shard.origin
        elif self._headers and shard.origin != self._host:
            shard = Shard.of(shard.url)
        if folder.count("/") >= 2:  # the third slash ends the host or bucket
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
            self._folders[folder] = (shard, shard.group)
        return shard
