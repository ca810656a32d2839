"""``forebay verify``: are the stored bytes still those that were stored?"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import click

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import many, notice, say, say_json
from forebay_proxy.cli.progress import ProgressView
from forebay_proxy.cli.shards.evict import selected, selections
from forebay_proxy.cli.sources import shown_argument
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import format_size

__all__ = ["verify"]


@click.command()
@click.argument("shards", nargs=-1)
@click.option("--quiet", is_flag=True, help="No progress; what is wrong is still named.")
@json_option
@url_option
def verify(shards: tuple[str, ...], quiet: bool, as_json: bool, url: str | None) -> int:
    """Compare everything the running sidecar has stored, or SHARDS of it, with its checksums.

    \b
    Examples:
      forebay verify
      forebay verify 's3://bucket/train-*'
      forebay verify --json | jq 'select(.event == "wrong")'

    A wrong segment is named (shard and offset) and removed from the cache. Its next reader fetches it from the origin again; a reader that
    is inside it is cut off. At most 500 MB are read a second, which training bears. Exit code 0: every segment is right (or none is
    stored); 1: one was wrong; 2: no sidecar answers.
    """
    sidecar = locate(url, os.environ)
    totals: Counter[str] = Counter()
    with ProgressView(quiet=quiet, as_json=as_json) as view:
        for selection in selections(selected(shards)) if shards else [{"all": True}]:
            for event in sidecar.verify(selection):
                _take(event, totals, view, as_json=as_json)
    if shards and not totals["shards"] and not as_json:
        say(f"nothing that is stored matches {', '.join(map(shown_argument, shards))}: 0 segments verified")
        return ExitCode.DONE
    _say(totals, as_json=as_json)
    return ExitCode.PART_FAILED if totals["wrong"] else ExitCode.DONE


def _take(event: dict[str, Any], totals: Counter[str], view: ProgressView, *, as_json: bool) -> None:
    if event["event"] != "end":
        view.event(event)
    match event["event"]:
        case "progress":
            view.bytes(event["done_bytes"], event["bytes"], "verified")
        case "wrong" if not as_json:
            last = event["offset"] + event["length"] - 1
            notice(f"wrong: {event['shard']}: bytes {event['offset']} to {last} (segment {event['segment']}); removed")
        case "end":
            totals.update({name: count for name, count in event.items() if name != "event"})


def _say(totals: Counter[str], *, as_json: bool) -> None:
    if as_json:
        names = ("shards", "segments", "bytes", "wrong", "wrong_shards", "unread")
        say_json({"event": "end", **{name: totals[name] for name in names}})
        return
    found = f"wrong: {many(totals['wrong'], 'segment')} of {many(totals['wrong_shards'], 'shard')}" if totals["wrong"] else "all right"
    looked_at = f"{many(totals['segments'], 'segment')} of {many(totals['shards'], 'shard')}"
    say(f"{looked_at} verified, {format_size(totals['bytes'])}: {found}")
    if totals["unread"]:
        notice(
            f"{totals['unread']} segments could not be read, as the disk did not answer; they stay: see 'forebay status', then try again"
        )
