"""``forebay warm``: bring shards into the cache before anybody waits for them."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, SidecarUnreachable, locate
from forebay_proxy.cli.options import from_option, json_option, url_option
from forebay_proxy.cli.output import many, notice, say
from forebay_proxy.cli.progress import Failures, ProgressView
from forebay_proxy.cli.sources import Batch, named_batches
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import format_size
from forebay_proxy.wire.protocol.plan import encode

__all__ = ["warm"]

_RESULTS = ("stored", "present", "no-room", "failed")
_NAMED = 10  # of those without room; a set larger than the cache has thousands, and --json names each


@click.command()
@click.argument("urls", nargs=-1)
@from_option
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

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them, one a line; '-' is stdin. Shards that are stored already are compared
    with their origin. A shard that is named as a tar (.tar, .tgz, .tar.gz, …) and does not begin as one, often a login page, has failed and
    does not stay. Shards of other names are stored whatever they hold. Exit code 1 when a shard failed. Shards that found no room are
    counted and named in the end, and are no failure (exit code 0): the cache evicts for them only shards that no reader is known to need,
    and once it is full no further shard is begun.
    """
    work = named_batches(urls, lists)
    sidecar = locate(url, os.environ)
    warming = _Warming(sidecar, work)
    try:
        with ProgressView(quiet=quiet, as_json=as_json) as view:
            warming.run(view)
    except KeyboardInterrupt:
        notice(
            f"stopped: {warming.done} of {warming.shards} shards are done; what is stored stays, and the same command goes on from there"
        )
        raise
    finally:
        warming.failures.summary()
    if not as_json:
        _say_end(warming.totals, warming.without)
    return ExitCode.PART_FAILED if warming.totals["failed"] else ExitCode.DONE


class _Warming:
    """Each batch is one request. ``totals`` are shards by result, and ``bytes``; ``without`` found no room."""

    def __init__(self, sidecar: SidecarClient, work: list[Batch]) -> None:
        self.totals: Counter[str] = Counter()
        self.without: list[str] = []
        self.failures = Failures()
        self.shards = sum(len(batch.shards) for batch in work)
        self._sidecar = sidecar
        self._work = work

    @property
    def done(self) -> int:
        return sum(self.totals[result] for result in _RESULTS)

    def run(self, view: ProgressView) -> None:
        for batch in self._work:
            encoded = encode(batch.shards)
            try:
                for event in self._sidecar.warm(encoded.content_type, encoded.body, batch.headers, encoded.query):
                    view.event(event)
                    self._take(event, view)
            except SidecarUnreachable as error:
                if not self.done:
                    raise
                notice(f"{error}; the other shards are not warmed")
                self.totals["failed"] += self.shards - self.done
                return

    def _take(self, event: dict[str, Any], view: ProgressView) -> None:
        match event.get("event"):
            case "shard":
                self.totals[event["result"]] += 1
                if event["result"] == "failed":
                    self.failures.add(event)
                elif event["result"] == "no-room":
                    self.without.append(event["shard"])
                view.shards(self.done, self.shards, self.totals["bytes"])
            case "progress":
                view.shards(self.done, self.shards, self.totals["bytes"] + event["done_bytes"])
            case "end":
                self.totals["bytes"] += event["bytes"]


def _say_end(totals: Counter[str], without: list[str]) -> None:
    say(
        f"{many(totals['stored'], 'shard')} stored, {totals['present']} already here, {totals['no-room']} without room, "
        f"{totals['failed']} failed; {format_size(totals['bytes'])}"
    )
    for shard in without[:_NAMED]:
        notice(f"no room: {shard}")
    if without:
        others = f" (--json names the other {len(without) - _NAMED} too)" if len(without) > _NAMED else ""
        notice(f"{many(len(without), 'shard')} found no room{others}; a larger --cache-size, or 'forebay evict', makes some")
