"""The shards a person named on a command line: URLs, brace patterns, ``pipe:`` commands, files of them. Pure but for reading the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import click

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.commands.sources import Source, parse_source, why_left
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

__all__ = ["Batch", "batches", "is_list", "named_batches", "named_texts", "read_list", "shown_argument", "understood"]

_BATCH = 10_000  # about 1 MB of URLs: small enough to answer quickly, large enough that requests do not count


@dataclass(frozen=True)
class Batch:
    """Origin URLs that one request asks for; ``headers`` (secret) prove who asks and belong to this host only."""

    shards: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]


def is_list(text: str) -> bool:
    """Whether an argument names a list: "-", or a file that is there; a URL and a command never do."""
    return text == "-" or (not _is_url_like(text) and os.path.isfile(text))


def read_list(path: str) -> Iterator[str]:
    """The lines of a file ("-": stdin), less blank ones and those that begin with #. Raises ``ConfigError``."""
    try:
        lines = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the list {path}: {error.strerror}", next_step="check --from") from error
    except UnicodeDecodeError:
        lines = "\0"
    if "\0" in lines:
        raise ConfigError(
            f"{path} holds no text: a local file is taken for a list of URLs, one a line",
            next_step=f"if it is a shard, write file://{os.path.abspath(path)}, and start the sidecar with a --file-root above it",
        )
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
            raise ConfigError(f"{shown_argument(text)}: {error}") from error


def batches(texts: Iterable[str]) -> list[Batch]:
    """All shards that ``texts`` name; those with headers by host and headers, because these must not reach another host.

    Repeated shards once; order kept within a group. Raises ``ConfigError`` as ``understood`` does.
    """
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], dict[str, None]] = {}
    for source in understood(texts):
        groups.setdefault((source.url.authority if source.headers else "", source.headers), {})[source.url.text()] = None
    return [
        Batch(tuple(islice(shards, first, first + _BATCH)), headers)
        for (_, headers), shards in groups.items()
        for first in range(0, len(shards), _BATCH)
    ]


def named_texts(urls: Sequence[str], lists: Sequence[str]) -> Iterator[str]:
    """A command's arguments, lists among them opened, and what its --from hold."""
    files = [*lists, *filter(is_list, urls)]
    return chain((text for text in urls if not is_list(text)), *(read_list(path) for path in files))


def named_batches(urls: Sequence[str], lists: Sequence[str]) -> list[Batch]:
    """``batches`` of a command's arguments, lists of URLs among them, and of its --from. Raises ``UsageError`` where nothing is named."""
    if work := batches(named_texts(urls, lists)):
        return work
    if files := [*lists, *filter(is_list, urls)]:
        names = ", ".join("stdin" if path == "-" else path for path in files)
        raise click.UsageError(f"{names} {'hold' if len(files) > 1 else 'holds'} no URL")
    raise click.UsageError("name at least one URL, or a list with --from")


def _one(text: str) -> Source:
    if "*" in text and not text.startswith("pipe:"):
        raise InvalidShardUrl("'*' would need a listing of the bucket; write the numbers as a pattern, as shard-{000000..000999}.tar")
    if (source := parse_source(text)) is None:
        if "://" in text.partition(" ")[0] and not text.startswith("pipe:"):
            parse_origin_url(text)  # says which scheme it is, and what is written instead
        if text.startswith("pipe:") and (why := why_left(text)):
            raise InvalidShardUrl(why)
        what = "not a URL or a command that Forebay knows" if _is_url_like(text) else "neither a URL nor a file of URLs that is there"
        raise InvalidShardUrl(f"{what}; write http(s)://, s3://, gs://, hf://, file:// or a 'pipe:' command that prints one")
    return source


def _is_url_like(text: str) -> bool:
    return "://" in text or text.startswith("pipe:")


def shown_argument(text: str) -> str:
    """As much of it as can hold no secret: a command by its name, a URL without what follows '?'."""
    if text.startswith("pipe:"):
        return " ".join(text.split()[:1])
    scheme, separator, rest = text.partition("://")
    head, _, tail = rest.partition("/")
    return f"{scheme}{separator}{head.rpartition('@')[2]}{'/' if tail else ''}{tail.partition('?')[0]}"[:200]
