"""Sets of shards that are known before any reader opens them, from a pattern or by a name alone. Pure.

Knowing the set saves bytes: a shard of a live set that no job has read yet is worth keeping, whatever plans announce. A pattern is not
expanded for that; the pattern itself can tell whether it holds a name. Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_proxy.core.shard import Shard, shown_set
from forebay_proxy.wire.commands.sources import masked_parts
from forebay_proxy.wire.urls.patterns import InvalidPattern, Pattern, check_parts, index_in, parse_pattern
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

__all__ = ["MOST_SETS", "InvalidSet", "PatternSet", "ShardSets", "understood"]

MOST_SETS = 64  # a training run has a handful; a client that names a new one in each plan must not slow down everything else
_CACHED = 1 << 16  # names whose sets are remembered


class InvalidSet(ValueError):
    """The text is no pattern of shard URLs. The message says what would be right."""


@dataclass(frozen=True)
class PatternSet:
    """The shards of brace patterns, in their order. It keeps nothing per shard."""

    text: str
    _parts: tuple[tuple[Pattern, Pattern, tuple[tuple[str, str], ...]], ...] = field(repr=False)  # URLs, names, headers

    @classmethod
    def of(cls, text: str) -> PatternSet:
        """``text`` is one pattern or several joined by ``::``, of URLs or commands. Raises ``InvalidSet``."""
        try:
            check_parts(text)
            parts = masked_parts(text)
            if parts is None:
                raise InvalidSet(f"set {shown_set(text)!r} is not a pattern of shard URLs; write s3://bucket/{{000..999}}.tar")
            found = []
            for source, unmask in parts:
                url, name = unmask(source.url.text()), unmask(Shard.of(source.url).name)
                if url is None or name is None:
                    raise InvalidSet(f"set {shown_set(text)!r}: braces stand in a part of the URL that may not have any")
                found.append((parse_pattern(url), parse_pattern(name), source.headers))
        except (InvalidShardUrl, InvalidPattern) as error:
            raise InvalidSet(f"set {shown_set(text)!r}: {error}") from error
        return cls(text, tuple(found))

    def __len__(self) -> int:
        return sum(urls.count for urls, _, _ in self._parts)

    def at(self, index: int) -> Shard:
        """The shard at ``index`` of the listing order. Raises ``IndexError``."""
        for urls, _, headers in self._parts:
            if index < urls.count:
                return Shard.of(parse_origin_url(urls.at(index)), headers)
            index -= urls.count
        raise IndexError(index)

    def index(self, name: str) -> int | None:
        """The index of the shard with this name; None if it is not in the set."""
        before = 0
        for urls, names, _ in self._parts:
            found = index_in(names, name)
            if found is not None:
                return before + found
            before += urls.count
        return None


def understood(text: str) -> PatternSet | None:
    """``text`` as a set that can be listed; None if it is only a name."""
    try:
        return PatternSet.of(text)
    except InvalidSet:
        return None


class ShardSets:
    """The sets that plans and people named, by key. Passes and groups refer to a set by its key."""

    def __init__(self, forgotten: Callable[[str], object]) -> None:
        """``forgotten`` is called with the key of a set that was forgotten."""
        self._forgotten = forgotten
        self.listed: dict[str, PatternSet] = {}
        self.unlisted: dict[str, None] = {}  # known by name alone: every shard opened under the name belongs to the set
        self.kept: dict[str, None] = {}  # declared by a person: never forgotten
        self._keys: OrderedDict[str, str] = OrderedDict()  # by text, the longest unmentioned first; used at every opening
        self._containing: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self.listed) + len(self.unlisted)

    @staticmethod
    def key(text: str) -> str:
        """The key of the set; no group's name begins with "="."""
        return f"={text}"

    def learn(self, text: str) -> str:
        """Know the set ``text`` from now on. Returns its key."""
        key = self._keys.get(text)
        if key is None:
            key = self.key(text)
            self._add(key, understood(text))
            self._keys[text] = key
        else:
            self._keys.move_to_end(text)
        return key

    def keep(self, text: str) -> str:
        """Know the set ``text`` for good. Returns its key."""
        key = self.learn(text)
        self.kept[key] = None
        return key

    def _add(self, key: str, found: PatternSet | None) -> None:
        while len(self) - len(self.kept) >= MOST_SETS:
            names, listed = ([key for key in self._keys.values() if (key in self.unlisted) is alone] for alone in (True, False))
            self.forget(next(known for known in (*names, *listed) if known not in self.kept))
        if found is None:
            self.unlisted[key] = None
        else:
            self.listed[key] = found
            self._containing.clear()

    def get(self, key: str) -> PatternSet | None:
        return self.listed.get(key)

    def containing(self, name: str) -> tuple[str, ...]:
        """The keys of the listed sets that hold the shard with this name."""
        found = self._containing.get(name)
        if found is None:
            if len(self._containing) >= _CACHED:
                self._containing.clear()
            found = self._containing[name] = tuple([key for key, listed in self.listed.items() if listed.index(name) is not None])
        return found

    def forget(self, key: str) -> None:
        """Forget the set, unless it is kept for good."""
        if key in self.kept:
            return
        self._keys.pop(key[1:], None)
        self.unlisted.pop(key, None)
        if self.listed.pop(key, None) is not None:
            self._containing.clear()
        self._forgotten(key)

    def uncache(self, name: str) -> None:
        """The shard left the cache for good: forget its sets."""
        self._containing.pop(name, None)
