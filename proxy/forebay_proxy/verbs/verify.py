"""``forebay verify``: are the stored bytes still those that were stored?"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from forebay_proxy.client import Sidecar
from forebay_proxy.exit_codes import ExitCode
from forebay_proxy.sizes import format_size, parse_size
from forebay_proxy.verbs.evict import selected, selections
from forebay_proxy.verbs.locate import locate
from forebay_proxy.verbs.options import json_option, url_option
from forebay_proxy.verbs.output import notice, say, say_json
from forebay_proxy.verbs.verify_progress import Bar, Lines, Quiet, View

__all__ = ["verify"]


def _rate(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        size = None if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if size == 0:
        raise click.BadParameter("0 bytes a second would never end")
    return size


@click.command()
@click.argument("shards", nargs=-1)
@click.option(
    "--rate", callback=_rate, metavar="SIZE", help="Read at most so much a second, as 2GB.  [default: 500MB, which training bears]"
)
@click.option("--quiet", is_flag=True, help="No progress; what is wrong is still named.")
@json_option
@url_option
def verify(shards: tuple[str, ...], rate: int | None, quiet: bool, as_json: bool, url: str | None) -> int:
    """Compare everything the running sidecar has stored, or SHARDS of it, with its checksums.

    \b
    Examples:
      forebay verify
      forebay verify 's3://bucket/train-*' --rate 2GB
      forebay verify --json | jq 'select(.event == "wrong")'

    What is wrong is named (shard and offset) and removed from the cache; whoever wants it next fetches it from its origin, and whoever is
    reading it is cut off. Exit code 0: all of it is right (or nothing is stored); 1: something was wrong; 2: no sidecar answers.
    """
    sidecar = locate(url, os.environ)
    totals: Counter[str] = Counter()
    with _view(quiet=quiet, as_json=as_json) as view:
        for event in _events(sidecar, [{"all": True}] if not shards else list(selections(selected(shards))), rate):
            _take(event, totals, view, as_json=as_json)
    _say(totals, as_json=as_json)
    return ExitCode.PART_FAILED if totals["wrong"] else ExitCode.DONE


def _view(*, quiet: bool, as_json: bool) -> View:
    if quiet or as_json:
        return Quiet()
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()


def _events(sidecar: Sidecar, wishes: list[dict[str, Any]], rate: int | None) -> Iterator[dict[str, Any]]:
    for wish in wishes:
        yield from sidecar.verify(wish, rate)


def _take(event: dict[str, Any], totals: Counter[str], view: View, *, as_json: bool) -> None:
    if as_json and event["event"] != "end":
        say_json(event)
    match event["event"]:
        case "progress":
            view.progress(event["done_bytes"], event["bytes"])
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
    found = f"{totals['wrong']} segments of {totals['wrong_shards']} shards were wrong" if totals["wrong"] else "all right"
    say(f"{totals['segments']} segments of {totals['shards']} shards verified, {format_size(totals['bytes'])}: {found}")
    if totals["unread"]:
        notice(
            f"{totals['unread']} segments could not be read, as the disk did not answer; they stay: see 'forebay status', then try again"
        )
