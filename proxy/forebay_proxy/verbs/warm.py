"""``forebay warm``: bring shards into the cache before anybody waits for them."""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain
from typing import Any

import click
from rich.console import Console

from forebay_proxy.client import Sidecar, SidecarUnreachable
from forebay_proxy.exit_codes import ExitCode
from forebay_proxy.sizes import format_size
from forebay_proxy.verbs.locate import locate
from forebay_proxy.verbs.options import json_option, url_option
from forebay_proxy.verbs.output import notice, say
from forebay_proxy.verbs.sources import Batch, batches, is_list, read_list
from forebay_proxy.verbs.warm_progress import Bar, Json, Lines, Quiet, View
from forebay_proxy.wire.plan import encode

__all__ = ["progress_view", "warm"]

_RESULTS = ("stored", "present", "no-room", "failed")
_NAMED = 10  # of those without room; a set larger than the cache has thousands, and --json names each


@click.command()
@click.argument("urls", nargs=-1)
@click.option("--from", "lists", multiple=True, metavar="FILE", help="Also the URLs in FILE, one a line; '-' is stdin.")
@click.option("--quiet", is_flag=True, help="No progress; failures are still named.")
@json_option
@url_option
def warm(urls: tuple[str, ...], lists: tuple[str, ...], quiet: bool, as_json: bool, url: str | None) -> int:
    """Fetch shards into the running sidecar's cache.

    \b
    Examples:
      forebay warm 's3://bucket/shard-{000000..000999}.tar'
      forebay warm shards.txt --quiet
      aws s3 ls s3://bucket/ | awk '{print "s3://bucket/" $4}' | forebay warm -

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them, one a line; '-' is stdin. A pattern is a set: once somebody reads
    it, the sidecar goes on fetching what the epoch has not read, as with 'serve --set'. Exit code 1 when a shard failed. Shards
    that found no room are counted and named in the end, and are no failure (exit code 0): the cache evicts for them only what nobody is
    known to need, and once it is full no further shard is begun.
    """
    files = [*lists, *filter(is_list, urls)]
    named = [text for text in urls if not is_list(text)]
    work = batches(chain(named, *(read_list(path) for path in files)))
    if not work:
        raise click.UsageError("name at least one URL, or a list with --from")
    sidecar = locate(url, os.environ)
    with progress_view(quiet=quiet, as_json=as_json) as view:
        totals, without = _warm_all(sidecar, work, view)
    if not as_json:
        _say_end(totals, without)
    return ExitCode.PART_FAILED if totals["failed"] else ExitCode.DONE


def progress_view(*, quiet: bool, as_json: bool) -> View:
    """A bar on a terminal, lines elsewhere, unless asked for less or for JSON."""
    if as_json:
        return Json()
    console = Console(stderr=True)
    if quiet:
        return Quiet()
    return Bar(console) if console.is_terminal else Lines()


def _warm_all(sidecar: Sidecar, work: list[Batch], view: View) -> tuple[Counter[str], list[str]]:
    """Shards by result, and ``bytes``, over all batches, and who found no room; each batch is one request."""
    totals: Counter[str] = Counter()
    without: list[str] = []
    shards = sum(len(batch.shards) for batch in work)
    for batch in work:
        encoded = encode(batch.shards, set=batch.set_name)
        try:
            for event in sidecar.warm(encoded.content_type, encoded.body, batch.headers, encoded.query):
                view.event(event)
                _take(event, totals, shards, view)
                if event.get("result") == "no-room":
                    without.append(event["shard"])
        except SidecarUnreachable as error:
            if not (done := sum(totals[result] for result in _RESULTS)):
                raise
            notice(f"{error}; the other shards are not warmed")
            totals["failed"] += shards - done
            break
    return totals, without


def _take(event: dict[str, Any], totals: Counter[str], shards: int, view: View) -> None:
    done = sum(totals[result] for result in _RESULTS)
    match event.get("event"):
        case "shard":
            totals[event["result"]] += 1
            if event["result"] == "failed":
                notice(f"failed: {_failure(event)}")
            view.progress(done + 1, shards, totals["bytes"])
        case "progress":
            view.progress(done, shards, totals["bytes"] + event["done_bytes"])
        case "end":
            totals["bytes"] += event["bytes"]


def _failure(event: dict[str, Any]) -> str:
    """The shard and the cause; the sidecar's own messages begin with the shard."""
    error = str(event.get("error", ""))
    return error if event["shard"] in error else f"{event['shard']}: {error}"


def _say_end(totals: Counter[str], without: list[str]) -> None:
    say(
        f"{totals['stored']} shards stored, {totals['present']} already here, {totals['no-room']} without room, {totals['failed']} failed; "
        f"{format_size(totals['bytes'])}"
    )
    for shard in without[:_NAMED]:
        notice(f"no room: {shard}")
    if without:
        others = f" (--json names the other {len(without) - _NAMED} too)" if len(without) > _NAMED else ""
        notice(f"{len(without)} shards found no room{others}; a larger --cache-size, or 'forebay evict', makes some")
