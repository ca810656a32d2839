"""``forebay index``: have the sample index of each shard made, and write down how many samples there are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from forebay_proxy.client import Sidecar, SidecarRefused
from forebay_proxy.errors import ConfigError
from forebay_proxy.exit_codes import ExitCode
from forebay_proxy.verbs.counted import Conflict, Counted
from forebay_proxy.verbs.locate import locate
from forebay_proxy.verbs.options import json_option, url_option
from forebay_proxy.verbs.output import notice, say, say_json
from forebay_proxy.verbs.sources import Batch, batches, is_list, read_list
from forebay_proxy.verbs.warm import progress_view
from forebay_proxy.verbs.warm_progress import View
from forebay_proxy.wire.plan import encode
from forebay_proxy.wire.urls import parse_origin_url

__all__ = ["index"]

# So many shards are fetched before their indexes are asked for: enough for an origin's latency not to count, few enough to be here still
# where the set is larger than the cache.
_TOGETHER = 16
_NOT_YET = 409


@click.command()
@click.argument("urls", nargs=-1)
@click.option("--from", "lists", multiple=True, metavar="FILE", help="Also the URLs in FILE, one a line; '-' is stdin.")
@click.option(
    "--sizes", metavar="PATH", default="sizes.json", show_default=True,
    help="Where to write the number of samples of each shard, by file name, as OpenCLIP reads it; '' writes none.",
)  # fmt: skip
@click.option("--quiet", is_flag=True, help="No progress; what has no index is still named.")
@json_option
@url_option
def index(urls: tuple[str, ...], lists: tuple[str, ...], sizes: str, quiet: bool, as_json: bool, url: str | None) -> int:
    """Make the sample index of shards ahead, and count their samples.

    \b
    Examples:
      forebay index 's3://bucket/shard-{000000..000999}.tar'
      forebay index shards.txt --sizes /data/laion/sizes.json
      forebay index 'https://host/{00..99}.tar' --sizes '' --json

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them, one a line; '-' is stdin. A shard whose index is not known is fetched
    into the cache for it, once; the index stays when the shard leaves. With all indexes known the ranks of a job share samples instead of
    shards, and end their epochs together. Exit code 1 when a shard has no index: only whole, plain tars have one. The sizes are written
    only when all of them are known, and added to those of a file that is there; one that says otherwise of the same names is left alone.
    """
    files = [*lists, *filter(is_list, urls)]
    work = batches(chain((text for text in urls if not is_list(text)), *(read_list(path) for path in files)))
    if not work:
        raise click.UsageError("name at least one URL, or a list with --from")
    names = _file_names(work) if sizes else {}
    if sizes:
        Counted(Path(sizes)).check()
    sidecar = locate(url, os.environ)
    with progress_view(quiet=quiet, as_json=as_json) as view:
        counting = _Counting(sidecar, view, sum(len(batch.shards) for batch in work))
        for batch in work:
            counting.batch(batch)
    written = _end(counting, names, sizes, as_json=as_json)
    return ExitCode.PART_FAILED if counting.without or (sizes and not written) else ExitCode.DONE


class _Counting:
    """Asks for indexes, and has fetched what is not all here. ``counts`` are samples by shard, ``without`` why others have none."""

    def __init__(self, sidecar: Sidecar, view: View, shards: int) -> None:
        self.counts: dict[str, int] = {}
        self.without: dict[str, str] = {}
        self._sidecar = sidecar
        self._view = view
        self._shards = shards
        self._bytes = 0

    def batch(self, batch: Batch) -> None:
        for first in range(0, len(batch.shards), _TOGETHER):
            self._some(batch.shards[first : first + _TOGETHER], batch.headers)

    def _some(self, shards: Sequence[str], headers: tuple[tuple[str, str], ...]) -> None:
        missing = tuple(shard for shard in shards if not self._count(shard, headers, last=False))
        if not missing:
            return
        encoded = encode(missing)
        for event in self._sidecar.warm(encoded.content_type, encoded.body, headers, encoded.query):
            if event.get("event") == "progress":
                self._view.progress(len(self.counts) + len(self.without), self._shards, self._bytes + event["done_bytes"])
            elif event.get("event") == "end":
                self._bytes += event["bytes"]
            elif event.get("result") in ("stored", "present"):
                self._count(event["shard"], headers, last=True)
            elif event.get("event") == "shard":
                self._refused(event["shard"], str(event.get("error") or event.get("result")))
        for shard in missing:
            if shard not in self.counts and shard not in self.without:
                self._count(shard, headers, last=True)

    def _count(self, shard: str, headers: tuple[tuple[str, str], ...], *, last: bool) -> bool:
        """Whether it is known now, one way or the other; ``last``: what is not, never will be."""
        try:
            count = self._sidecar.samples(parse_origin_url(shard).proxy_path(), headers)
        except SidecarRefused as refused:
            if refused.status == _NOT_YET and not last:
                return False
            self._refused(shard, str(refused))
            return True
        self.counts[shard] = count
        self._told({"event": "shard", "shard": shard, "samples": count})
        return True

    def _refused(self, shard: str, why: str) -> None:
        self.without[shard] = why
        notice(why if shard.partition("?")[0] in why else f"{shard.partition('?')[0]}: {why}")
        self._told({"event": "shard", "shard": shard, "samples": None, "error": why})

    def _told(self, event: dict[str, Any]) -> None:
        self._view.event(event)
        self._view.progress(len(self.counts) + len(self.without), self._shards, self._bytes)


def _end(counting: _Counting, names: dict[str, str], sizes: str, *, as_json: bool) -> bool:
    """Whether the sizes were written."""
    samples, shards = sum(counting.counts.values()), len(counting.counts)
    written = bool(sizes) and _written(counting, names, sizes)
    if as_json:
        say_json(
            {"event": "end", "shards": shards, "samples": samples, "without": len(counting.without), "sizes": sizes if written else None}
        )
        return written
    fewest, most = min(counting.counts.values(), default=0), max(counting.counts.values(), default=0)
    say(f"{samples} samples in {shards} shards ({fewest} to {most} each){f'; {sizes} written' if written else ''}")
    return written


def _written(counting: _Counting, names: dict[str, str], sizes: str) -> bool:
    """Add the counts to the file if all of them are known, and it says nothing else of these shards."""
    if counting.without:
        notice(f"{sizes} is not written: {len(counting.without)} of {len(names)} shards have no index")
        return False
    try:
        others = Counted(Path(sizes)).add({names[shard]: count for shard, count in counting.counts.items()})
    except Conflict as conflict:
        step = "is it of another set, or older than its shards? Move it away, or name another file with --sizes"
        notice(f"{sizes} is not written: {conflict}; {step}")
        return False
    if others:
        notice(f"{sizes} told of {others} other shards, which stay in it")
    return True


def _file_names(work: Sequence[Batch]) -> dict[str, str]:
    """The file name of each shard. Raises ``ConfigError`` where two have the same: sizes by name could not tell them apart."""
    names = {shard: _file_name(shard) for batch in work for shard in batch.shards}
    for name, count in Counter(names.values()).most_common(1):
        if count > 1:
            first, second = list(_named(names, name))[:2]
            step = "index each folder by itself, with a --sizes of its own, or give --sizes ''"
            raise ConfigError(f"two shards have the name {name}, and sizes go by name: {first} and {second}", next_step=step)
    return names


def _named(names: dict[str, str], name: str) -> Iterator[str]:
    return (shard.partition("?")[0] for shard, other in names.items() if other == name)


def _file_name(shard: str) -> str:
    return unquote(parse_origin_url(shard).path.rpartition("/")[2])
