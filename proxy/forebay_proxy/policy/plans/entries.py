"""The shards that one message announces, kept as URLs, or as a brace pattern and indices. Names are made when they are needed. Pure.

A plan keeps names, not shards. A shard is four objects that the garbage collector visits; with half a million of them it pauses for 0.3 s.
It never visits a string.

Many shards lie in few folders: the first URL of a folder is parsed, and its plain siblings are made from it in 3 instead of 12 us each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.patterns import parse_pattern
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, parse_origin_url

__all__ = ["Entries", "PlanCredential", "Siblings"]

# Unreserved characters only: no parser changes them, whatever the scheme. It would change "." and "..".
_PLAIN_LEAF = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_MOST_SIBLINGS = 1024  # folders remembered; a set has a handful


class Siblings:
    """Turns URLs into shards or names. ``headers`` are the credential for the host of the first URL, and for no other."""

    def __init__(self, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._headers = headers
        self._folders: dict[str, tuple[Shard, str]] = {}  # folder as written -> (its first shard, its group)
        self._host: str | None = None

    def shard(self, text: str) -> Shard:
        """The shard that ``text`` names. Raises ``InvalidShardUrl``."""
        folder, _, leaf = text.rpartition("/")
        plain = _PLAIN_LEAF.fullmatch(leaf) is not None and "?" not in folder and "#" not in folder  # a query may contain slashes
        known = self._folders.get(folder) if plain else None
        if known is None:
            return self._parsed(text, folder if plain else "")
        first, group = known
        url = first.url
        path = url.path[: url.path.rindex("/") + 1] + leaf
        return Shard(ShardUrl(url.scheme, url.authority, path, ""), group + leaf, first.credential)

    def name(self, text: str) -> str:
        """The name of that shard, for less work. Raises ``InvalidShardUrl``."""
        folder, _, leaf = text.rpartition("/")
        known = self._folders.get(folder)
        if known is not None and _PLAIN_LEAF.fullmatch(leaf):
            return known[1] + leaf
        return self.shard(text).name

    def _parsed(self, text: str, folder: str) -> Shard:
        shard = Shard.of(parse_origin_url(text), self._headers)
        if self._host is None:
            self._host = shard.origin
        elif self._headers and shard.origin != self._host:
            shard = Shard.of(shard.url)
        if folder.count("/") >= 2:  # the third slash ends the host or bucket
            if len(self._folders) >= _MOST_SIBLINGS:
                self._folders.clear()
            self._folders[folder] = (shard, shard.group)
        return shard


@dataclass(frozen=True)
class PlanCredential:
    """The headers that came with a message: for the host of its first shard, and for no other."""

    headers: tuple[tuple[str, str], ...] = field(repr=False)
    host: str

    def put_on(self, shard: Shard) -> Shard:
        """``shard`` with the credential if it is on that host, else without."""
        return shard.carrying(self.headers) if shard.origin == self.host else shard


class Entries:
    """The shards of one message, in the order of use."""

    def __init__(
        self, texts: Sequence[str], headers: tuple[tuple[str, str], ...] = (), *, pattern: str = "", indices: Sequence[int] | None = None
    ) -> None:
        """``texts`` are URLs. With ``indices``, the entries are those texts of ``pattern`` instead.

        Raises ``InvalidPattern``, and ``InvalidShardUrl`` if there are headers and the first entry has no valid host.
        """
        self._texts = texts
        self._pattern = parse_pattern(pattern) if indices is not None else None
        self._indices = indices if indices is not None else range(len(texts))
        self._siblings = Siblings()
        first = self._siblings.shard(self._slice(0, 1)[0]) if headers and self._indices else None
        self.credential = PlanCredential(headers, first.origin) if first is not None else None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Entries:
        """The entries for ``shards``, with the first one's headers."""
        return cls([shard.url.text() for shard in shards], shards[0].credential.headers if shards else ())

    def __len__(self) -> int:
        return len(self._indices)

    def _slice(self, start: int, stop: int) -> list[str]:
        """The entries as written."""
        at = self._texts.__getitem__ if self._pattern is None else self._pattern.at
        return [at(index) for index in self._indices[start:stop]]

    def names(self, start: int, stop: int) -> tuple[list[str], dict[str, str]]:
        """The names of a slice, and the URL by name where it differs from the name (a signature). Raises ``InvalidShardUrl``."""
        names, texts = list[str](), dict[str, str]()
        for text in self._slice(start, stop):
            try:
                name = self._siblings.name(text)
            except InvalidShardUrl as error:
                raise InvalidShardUrl(f"entry {start + len(names)}: {error}") from None
            names.append(name)
            if name != text:
                texts[name] = text
        return names, texts

    def after(self, count: int) -> Entries:
        """Drop the first ``count`` entries."""
        self._indices = self._indices[count:]
        return self
