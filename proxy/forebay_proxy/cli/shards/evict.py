"""``forebay evict``: take shards out of the cache."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import many, notice, say, say_json
from forebay_proxy.cli.sources import shown_argument, understood
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import format_size

__all__ = ["evict", "selected", "selections"]

_AT_ONCE = 1000  # names a request


@click.command()
@click.argument("shards", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every shard in the cache.")
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
@json_option
@url_option
def evict(shards: tuple[str, ...], everything: bool, yes: bool, as_json: bool, url: str | None) -> int:
    """Remove SHARDS from the running sidecar's cache: URLs, brace patterns, or patterns with '*'.

    \b
    Examples:
      forebay evict s3://bucket/shard-000017.tar
      forebay evict 's3://bucket/old-*'
      forebay evict --all --yes

    Segments that a reader holds stay. Shards of a declared set ('serve --set') come again.
    """
    if everything == bool(shards):
        raise click.UsageError("name shards or say --all, one of them")
    if everything and not yes:
        if not sys.stdin.isatty():
            raise ConfigError("--all empties the whole cache", next_step="say --all --yes")
        click.confirm("Empty the whole cache?", abort=True, err=True)
    sidecar = locate(url, os.environ)
    freed: Counter[str] = Counter()
    for selection in [{"all": True}] if everything else selections(selected(shards)):
        freed.update(sidecar.evict(selection))
    if as_json:
        say_json(dict(freed))
        return 0
    if shards and not freed["shards"] and not freed["leased"]:
        say(f"nothing that is stored matches {', '.join(map(shown_argument, shards))}: 0 shards evicted")
        return 0
    say(f"{many(freed['shards'], 'shard')} evicted, {format_size(freed['bytes'])} freed")
    if freed["leased"]:
        notice(f"{many(freed['leased'], 'shard')} being read: what readers are inside of stays until they leave")
    return 0


def selected(shards: tuple[str, ...]) -> list[str]:
    """A pattern with * goes to the sidecar as it is; everything else becomes the shard's own name."""
    return [name for text in shards for name in ([text] if "*" in text else [source.url.text() for source in understood([text])])]


def selections(names: list[str]) -> Iterator[dict[str, Any]]:
    """Request bodies, each well below what the sidecar takes (1 MiB, 10,000 names)."""
    for first in range(0, len(names), _AT_ONCE):
        yield {"shards": names[first : first + _AT_ONCE]}
