"""``forebay ls``: which shards are here."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from typing import Any

import click

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import many, notice, say_json, show_table
from forebay_proxy.cli.sources import shown_argument, understood
from forebay_proxy.core.quantities import format_duration, format_size

__all__ = ["ls"]


@click.command()
@click.argument("pattern", required=False)
@json_option
@url_option
def ls(pattern: str | None, as_json: bool, url: str | None) -> int:
    """List the shards in the running sidecar's cache, of PATTERN only if given: a URL, a brace pattern, or one with '*' or '?'.

    \b
    Examples:
      forebay ls
      forebay ls 's3://bucket/train-*'
      forebay ls 's3://bucket/train-{000000..000999}.tar'
      forebay ls --json | jq '.shards[] | select(.complete | not)'
    """
    matches = _matcher(pattern)
    shards = [shard for shard in locate(url, os.environ).shards() if matches(shard["shard"])]
    if as_json:
        say_json({"shards": shards})
        return 0
    show_table([("stored", "of", "segments", "readers", "opened", "shard"), *map(_row, shards)] if shards else [])
    if pattern is not None and not shards:
        notice(f"nothing that is stored matches {shown_argument(pattern)}")
        return 0
    total = sum(shard["stored_bytes"] for shard in shards)
    notice(f"{many(len(shards), 'shard')}, {format_size(total)}")
    return 0


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Raises ``ConfigError`` for a URL that cannot name a shard."""
    if pattern is None:
        return lambda name: True
    if "*" in pattern or "?" in pattern:
        glob = pattern.replace("[", "[[]")  # brackets are ordinary characters of a key
        return lambda name: fnmatch.fnmatchcase(name, glob)
    return {source.url.text() for source in understood([pattern])}.__contains__


def _row(shard: dict[str, Any]) -> tuple[str, ...]:
    length, opened = shard["length_bytes"], shard["last_opened_s_ago"]
    return (
        format_size(shard["stored_bytes"]),
        "complete" if shard["complete"] else "?" if length is None else format_size(length),
        f"{shard['segments']}/{'?' if shard['segments_total'] is None else shard['segments_total']}",
        str(shard["readers"]),
        "never" if opened is None else f"{format_duration(opened)} ago",
        shard["shard"],
    )
