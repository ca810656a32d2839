"""What one message announces: URLs as they were sent, or a brace pattern's texts by index; made into names when they are asked for. Pure.

A plan keeps names, not shards. A shard is four objects that the garbage collector walks through, again and again while half a million of
them are made (pauses of 0.3 s); a text is one object, which it never looks at.

Of many shards of few folders the first of a folder is parsed, and its plain siblings are put together from it: 3 instead of 12 us each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.patterns import parse_pattern
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, parse_origin_url

__all__ = ["Entries", "PlanCredential", "Siblings"]

# Unreserved characters only: no parser changes them, whatever the scheme. "." and ".." it would.
_PLAIN_LEAF = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_MOST_SIBLINGS = 1024  # folders remembered; a set has a handful


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
        """``shard`` with the credential, if it is of that host."""
        return shard.carrying(self.headers) if shard.origin == self.host else shard


class Entries:
    """The shards of one message, in the order of use."""

    def __init__(
        self, texts: Sequence[str], headers: tuple[tuple[str, str], ...] = (), *, pattern: str = "", indices: Sequence[int] | None = None
    ) -> None:
        """``texts`` are URLs; with ``indices`` those of the texts of ``pattern`` instead.

        Raises ``InvalidPattern``, and ``InvalidShardUrl`` where the headers would have no host.
        """
        self._texts = texts
        self._pattern = parse_pattern(pattern) if indices is not None else None
        self._indices = indices if indices is not None else range(len(texts))
        self._siblings = Siblings()
        first = self._siblings.shard(self._slice(0, 1)[0]) if headers and self._indices else None
        self.credential = PlanCredential(headers, first.origin) if first is not None else None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Entries:
        """Shards that stand side by side already, all with the first one's headers."""
        return cls([shard.url.text() for shard in shards], shards[0].credential.headers if shards else ())

    def __len__(self) -> int:
        return len(self._indices)

    def _slice(self, start: int, stop: int) -> list[str]:
        """As written."""
        at = self._texts.__getitem__ if self._pattern is None else self._pattern.at
        return [at(index) for index in self._indices[start:stop]]

    def names(self, start: int, stop: int) -> tuple[list[str], dict[str, str]]:
        """The names of a slice, and by name the URLs that say more than it (a signature). Raises ``InvalidShardUrl``."""
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
        """These less the first ``count``, with the same credential."""
        self._indices = self._indices[count:]
        return self
