"""Lists of shards that are made on demand: the texts of a brace pattern by index, or the URLs of a list. Pure.

A shard is four objects that the garbage collector walks through, again and again while half a million of them are made: pauses of 0.3 s.
A text is one object, which it never looks at; and of a pattern there is not even that.

Of many shards of few folders the first of a folder is parsed, and its plain siblings are put together from it: 3 instead of 12 us each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.patterns import parse_pattern, split_last
from forebay_proxy.wire.urls.shard_url import ShardUrl, parse_origin_url

__all__ = ["Block", "Entries", "ListBlock", "Listed", "PatternBlock", "Picked", "Siblings", "Template", "TemplateCredential"]

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
            if len(self._folders) >= _MOST_SIBLINGS:
                self._folders.clear()
            self._folders[folder] = (shard, shard.group)
        return shard


_NODE_BYTES = 64  # of a pattern understood, a character: "{a,b,c}" is an object a choice
_MOST_FOLDERS = 4096  # of a template whose names' beginnings are remembered


class Block:
    """Texts of shard URLs, by index."""

    def __init__(self, weight: int) -> None:
        self.weight = weight  # bytes, roughly
        self.owned = 0  # numbers that are known by their index here
        self.place = 0  # among the catalog's blocks; 0 while it owns nothing
        self._siblings = Siblings()

    def __len__(self) -> int:
        raise NotImplementedError

    def text(self, index: int) -> str:
        """As written."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """Raises ``InvalidShardUrl``."""
        return self._siblings.name(self.text(index))

    def shard(self, index: int) -> Shard:
        """Raises ``InvalidShardUrl``."""
        return self._siblings.shard(self.text(index))

    def drop(self, index: int) -> None:
        """Nobody asks for this one again."""


class ListBlock(Block):
    """The URLs of one message."""

    def __init__(self, texts: list[str], size: int) -> None:
        """``size`` is how long ``texts``, which are taken over, are together."""
        super().__init__(size)
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, index: int) -> str:
        return self._texts[index]

    def drop(self, index: int) -> None:
        """Text by text, so that a million are not freed at once."""
        self._texts[index] = ""


class PatternBlock(Block):
    """A brace pattern's texts. One for all who bring the same pattern, whatever their headers."""

    def __init__(self, text: str) -> None:
        super().__init__(_NODE_BYTES * len(text))
        self.pattern = parse_pattern(text)
        self._split = split_last(self.pattern)
        self._folders: dict[int, str | None] = {}  # which text before the numbers -> how its names begin; None where they do not

    def __len__(self) -> int:
        return self.pattern.count

    def text(self, index: int) -> str:
        return self.pattern.at(index)

    def name(self, index: int) -> str:
        """Nearly always ``folder/prefix-000017.tar``: what stands before the number is parsed once. Raises ``InvalidShardUrl``."""
        if self._split is not None:
            _, numbers, behind = self._split
            folder, own = divmod(index, numbers.count)
            begin = self._folders.get(folder) or self._begin(folder)
            if begin is not None:
                return begin + numbers.at(own) + behind
        return self._siblings.name(self.pattern.at(index))

    def _begin(self, folder: int) -> str | None:
        """How the names of this folder begin; None if each name has to be parsed."""
        if self._split is None or folder in self._folders:
            return None
        before, numbers, behind = self._split
        end = numbers.at(0) + behind
        begin = self._siblings.beginning(before.at(folder), end)
        if len(self._folders) >= _MOST_FOLDERS:
            self._folders.clear()
        self._folders[folder] = begin
        return begin


@dataclass(frozen=True)
class TemplateCredential:
    """The credential that came with a template. Plans keep this much of one: a pattern understood may take megabytes."""

    headers: tuple[tuple[str, str], ...] = field(repr=False)
    host: str

    def put_on(self, shard: Shard) -> Shard:
        """``shard`` with the credential, if it is of that host."""
        return shard.carrying(self.headers) if shard.origin == self.host else shard


class Template:
    """A block as a list of shards that are made on demand. ``headers`` go to the first shard's host and to no other."""

    def __init__(self, block: Block, headers: tuple[tuple[str, str], ...] = (), first: int = 0) -> None:
        self.block = block
        self.dress = TemplateCredential(headers, block.shard(first).origin) if headers and len(block) else None

    def __repr__(self) -> str:
        return f"<Template of {len(self)} shards>"

    def __len__(self) -> int:
        return len(self.block)

    def name(self, index: int) -> str:
        """Raises ``InvalidShardUrl``."""
        return self.block.name(index)

    def shard(self, index: int) -> Shard:
        """Raises ``InvalidShardUrl``."""
        shard = self.block.shard(index)
        return shard if self.dress is None else self.dress.put_on(shard)

    def picked(self, indices: Sequence[int] | None = None) -> Picked:
        """Its shards at ``indices``, in that order; all of them without."""
        return Picked(self, range(len(self)) if indices is None else indices)


@dataclass(frozen=True)
class Picked:
    """Some shards of a template, in the order of use."""

    template: Template
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)


class Listed(Sequence[Shard]):
    """The shards that URLs name, made when they are asked for. Raises ``InvalidShardUrl`` then, and for a first one with headers."""

    def __init__(self, texts: list[str], headers: tuple[tuple[str, str], ...] = (), size: int | None = None) -> None:
        """``size`` is how long ``texts``, which are taken over, are together."""
        self.template = Template(ListBlock(texts, sum(map(len, texts)) if size is None else size), headers)

    def __repr__(self) -> str:
        return f"<Listed {len(self)} shards>"

    def __len__(self) -> int:
        return len(self.template)

    @overload
    def __getitem__(self, index: int) -> Shard: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shard]: ...
    def __getitem__(self, index: int | slice) -> Shard | list[Shard]:
        if isinstance(index, slice):
            return [self.template.shard(place) for place in range(len(self))[index]]
        return self.template.shard(index)

    def picked(self) -> Picked:
        """To be taken into a plan: once, and gone then."""
        return self.template.picked()


Entries = Sequence[Shard] | Picked  # what a plan or a set is made of
