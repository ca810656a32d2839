"""The shards a person named on a command line: URLs, brace patterns, ``pipe:`` commands, files of them. Pure but for reading the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from forebay_proxy.errors import ConfigError
from forebay_proxy.wire.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls import InvalidShardUrl, Source, parse_origin_url, parse_source

__all__ = ["Batch", "batches", "is_list", "read_list", "understood"]

_BATCH = 10_000  # about 1 MB of URLs: small enough to answer quickly, large enough that requests do not count


@dataclass(frozen=True)
class Batch:
    """Origin URLs that one request asks for; ``headers`` (secret) prove who asks and belong to this host only."""

    shards: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]


def is_list(text: str) -> bool:
    """Whether an argument names a list: "-", or a file that is there; a URL and a command never do."""
    return text == "-" or ("://" not in text and not text.startswith("pipe:") and os.path.isfile(text))


def read_list(path: str) -> Iterator[str]:
    """The lines of a file ("-": stdin), less blank ones and those that begin with #. Raises ``ConfigError``."""
    try:
        lines = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the list {path}: {getattr(error, 'strerror', None) or error}", next_step="check --from") from error
    for line in lines.splitlines():
        if (text := line.strip()) and not text.startswith("#"):
            yield text


def understood(texts: Iterable[str]) -> Iterator[Source]:
    """Every shard that ``texts`` name, patterns expanded, in order. Raises ``ConfigError`` naming the first one that is wrong."""
    for text in texts:
        try:
            for one in expand(text):
                yield _one(one)
        except (InvalidPattern, InvalidShardUrl) as error:
            raise ConfigError(f"{_shown(text)}: {error}") from error


def batches(sources: Iterable[Source]) -> list[Batch]:
    """The sources grouped by host and headers, because headers must not reach another host; repeated shards once; order kept."""
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, None]] = {}
    for source in sources:
        host = source.url.authority if source.headers else ""
        groups.setdefault((host, source.headers), {})[source.url.text()] = None
    return [Batch(tuple(part), headers) for (_, headers), shards in groups.items() for part in _parts(list(shards))]


def _parts(shards: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(shards), _BATCH):
        yield shards[first : first + _BATCH]


def _one(text: str) -> Source:
    if "*" in text and not text.startswith("pipe:"):
        raise InvalidShardUrl("'*' would need a listing of the bucket; write the numbers as a pattern, as shard-{000000..000999}.tar")
    if (source := parse_source(text)) is None:
        if "://" in text.partition(" ")[0] and not text.startswith("pipe:"):
            parse_origin_url(text)  # says which scheme it is, and what is written instead
        raise InvalidShardUrl(
            "not a URL or a command that Forebay knows; write http(s)://, s3://, gs://, hf://, file:// or a 'pipe:' command that prints one"
        )
    return source


def _shown(text: str) -> str:
    """As much of it as can hold no secret: a command by its name, a URL without what follows '?'."""
    if text.startswith("pipe:"):
        return " ".join(text.split()[:1])
    scheme, separator, rest = text.partition("://")
    head, _, tail = rest.partition("/")
    return f"{scheme}{separator}{head.rpartition('@')[2]}{'/' if tail else ''}{tail.partition('?')[0]}"[:200]
