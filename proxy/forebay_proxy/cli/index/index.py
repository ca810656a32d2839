"""``forebay index``: have the sample index of each shard made, and write down how many samples there are."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import filterfalse
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, SidecarRefused, locate
from forebay_proxy.cli.index.sizes_json import Conflict, SizesJson, file_name
from forebay_proxy.cli.index.video_scan import VideoScan, is_clip, list_clips, local_clip
from forebay_proxy.cli.options import from_option, json_option, url_option
from forebay_proxy.cli.output import many, notice, say, say_json
from forebay_proxy.cli.progress import Failures, ProgressView
from forebay_proxy.cli.sources import Batch, named_batches
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName, encode
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["PAUSE_S", "index"]


PAUSE_S = 2.0
_EVICTED_AT_ONCE = 1000  # names a request
_DISK_TRIES = 60  # in a row, while the sidecar tries whether its disk works again, which it does once a minute or sooner
_STATUS_S = 60.0  # a count of hours must not end because a busy sidecar takes its time
# So many shards are fetched before their indexes are asked for: enough for an origin's latency not to count, few enough to be here still
# where the set is larger than the cache.
_TOGETHER = 16
_NOT_YET = 409
_TRIES = 5  # for an index that cannot be made now: a part of the shard left meanwhile, or the disk is slow
_NAMED = 3  # shards with something amiss; --json names all
_NO_ROOM = "run it again when other jobs have ended, or give the sidecar a larger --cache-size"

Event = dict[str, Any]
Headers = tuple[tuple[str, str], ...]


@click.command()
@click.argument("urls", nargs=-1)
@from_option
@click.option(
    "--sizes", metavar="PATH", default="sizes.json", show_default=True,
    help="Where to write the number of samples of each shard, by file name, as OpenCLIP reads it; '' writes none.",
)  # fmt: skip
@click.option(
    "--video", "table", metavar="PATH", default="",
    help="Also look at every clip in the shards once, and write what is known of them (keyframes, motion, loudness) to this table.",
)  # fmt: skip
@click.option("--list", "lists_clips", is_flag=True, help="Print what the table of --video knows of each clip, and scan nothing.")
@click.option("--quiet", is_flag=True, help="No progress; what has no index is still named.")
@json_option
@url_option
def index(
    urls: tuple[str, ...], lists: tuple[str, ...], sizes: str, table: str, lists_clips: bool, quiet: bool, as_json: bool, url: str | None
) -> int:
    """Make the sample index of shards ahead, and count their samples.

    \b
    Examples:
      forebay index 's3://bucket/shard-{000000..000999}.tar'
      forebay index shards.txt --sizes /data/laion/sizes.json
      forebay index 'https://host/{00..99}.tar' --sizes '' --json
      forebay index --video films.clips 's3://bucket/films-{000..099}.tar'
      forebay index --video films.clips films/*.mp4
      forebay index --video films.clips --list

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them, one a line; '-' is stdin. A shard without an index is fetched into
    the cache for it, once; the index stays when the shard leaves. Where the set is larger than the cache, counted shards leave for the
    others. Replaced shards are counted again. With all indexes known the ranks of a job share
    samples instead of shards, and end their epochs together. Exit code 1 when a shard has no index: only whole, plain tars have one. The
    sizes are written only when all of them are known. They are added to an existing file; a file with other sizes of the same names is left
    alone.

    With --video clips are scanned as their shards are counted, in a process of their own, which needs forebay[video]; URLs may be of clips
    too, and paths of clips below the sidecar's --file-root. A stopped scan goes on from there: clips that the table knows are not looked at
    again, and its others stay in it. Exit code 1 when a clip cannot be read.
    """
    if lists_clips:
        if not table or urls or lists:
            raise click.UsageError("--list takes --video TABLE, and no URLs")
        return list_clips(table, as_json=as_json)
    urls = tuple(map(local_clip, urls)) if table else urls
    work, clips = _apart(named_batches(urls, lists), video=bool(table))
    sizes = sizes if work else ""  # clips alone have no samples to count
    names = _file_names(work) if sizes else {}
    if sizes:
        SizesJson(Path(sizes)).check()
    sidecar = locate(url, os.environ)
    with ProgressView(quiet=quiet, as_json=as_json) as view, VideoScan(table, sidecar, view).begun() as scan:
        tally = _Counting(sidecar, view, sum(len(batch.shards) for batch in work), scan.add)
        try:
            for batch in work:
                for first in range(0, len(batch.shards), _TOGETHER):
                    tally.add(batch.shards[first : first + _TOGETHER], batch.headers)
            for batch in clips:
                for clip in batch.shards:
                    scan.add(clip, batch.headers)
            scan.end()
        except KeyboardInterrupt:
            notice(f"stopped: {len(tally.counts)} of {tally.shards} shards are counted; the sidecar keeps their indexes")
            raise
        finally:
            tally.failures.summary()
            scan.failures.summary()
    written = bool(work) and _end(tally, names, sizes, as_json=as_json)
    scan.say(as_json=as_json)
    return ExitCode.PART_FAILED if tally.without or scan.failures or (sizes and not written) else ExitCode.DONE


class _Counting:
    """Asks for indexes, and has fetched what is not all here; where there is no room for that, counted shards leave.

    ``counts`` are samples by shard, ``without`` why others have none; ``shards`` is how many there are. ``counted`` is told each shard that
    is counted, and the headers that it needs. With ``--video`` a shard may leave before the scan of clips comes to it, which costs a second
    fetch of its clips and nothing else.
    """

    def __init__(self, sidecar: SidecarClient, view: ProgressView, shards: int, counted: Callable[[str, Headers], None]) -> None:
        self.counts: dict[str, int] = {}
        self.without: dict[str, str] = {}
        self.amiss = 0  # shards
        self.failures = Failures()
        self.shards = shards
        self._sidecar, self._view, self._counted = sidecar, view, counted
        self._bytes = 0  # fetched for shards that are whole by now
        # A job of its own: what is here is compared with its origin before its count is believed.
        self._reader = str(ReaderName(f"index-{os.getpid()}-{secrets.token_hex(4)}", "0", "0", f"{os.getpid()}.1"))
        self._together = _TOGETHER
        self._outage = False  # of an origin, in these shards
        self._tried: Counter[str] = Counter()  # shards that were all here, and had no index yet
        # What may leave, by the names of shards: what was fetched for this count first.
        self._fetched: list[str] = []  # for this count, and counted
        self._present: list[str] = []  # counted too, and here before
        self._parts: dict[str, None] = {}  # what was fetched in part for this count: there was no room for the rest
        self._disk_tries = 0

    def add(self, shards: Sequence[str], headers: Headers) -> None:
        """Count all of these."""
        self._outage = False
        waiting = [shard for shard in shards if self._outage or not self._count(shard, headers, last=False)]
        while waiting:
            asked = waiting[: self._together]
            crowded = self._fetch(asked, headers)
            again = [shard for shard in asked if not (self._is_known(shard) or shard in crowded)]
            waiting = [*crowded, *waiting[len(asked) :], *again]
            self._tried.update(again)
            if crowded:
                self._make_room(asked, crowded)
                waiting = [shard for shard in waiting if shard not in self.without]
            elif again == waiting:
                time.sleep(PAUSE_S)

    def _is_known(self, shard: str) -> bool:
        return shard in self.counts or shard in self.without

    def _fetch(self, shards: Sequence[str], headers: Headers) -> dict[str, Event]:
        """Have ``shards`` fetched, and count their samples; returns the shards that found no room, with the last event of each."""
        if self._together < _TOGETHER:
            self._let_go()  # there was no room before: there is none now but for what has been counted
        crowded: dict[str, Event] = {}
        shard_of = {_name(shard): shard for shard in shards}
        encoded = encode(shards)
        for event in self._sidecar.warm(encoded.content_type, encoded.body, headers, encoded.query):
            name, result = str(event.get("shard")), event.get("result")
            shard = shard_of.get(name, "")
            if event.get("event") == "progress":
                self._progress(event["done_bytes"])
            elif event.get("event") == "end":
                self._bytes += event["bytes"]
            elif shard and result in ("stored", "present"):
                self._parts.pop(name, None)
                (self._fetched if result == "stored" else self._present).append(name)
                self._count(shard, headers, last=True)
            elif shard and result == "no-room":
                crowded[shard] = event
                if event.get("bytes"):
                    self._parts[name] = None
            elif shard:
                self._refuse(shard, str(event.get("error") or result), event.get("cause"), str(event.get("next_step", "")))
        for shard in shards:
            if not self._is_known(shard) and shard not in crowded:
                self._count(shard, headers, last=True)
        return crowded

    def _count(self, shard: str, headers: Headers, *, last: bool) -> bool:
        """Whether it is known now, one way or the other; ``last``: all of it was fetched, so it is asked for a few times at most."""
        name, asked = _name(shard), (*headers, ("Forebay-Reader", self._reader))
        try:
            samples, _, amiss = self._sidecar.samples(parse_origin_url(shard).proxy_path(), asked)
        except SidecarRefused as refused:
            if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not last:
                self._outage = True  # each of the others would wait as long; their fetches wait together, and say why
                return False
            if refused.status == _NOT_YET and (not last or self._tried[shard] < _TRIES - 1):
                return False
            self._refuse(shard, str(refused), None, refused.next_step)
            return True
        if not last:
            self._present.append(name)
        self._disk_tries = 0
        self.counts[shard] = samples
        if amiss:
            self.amiss += 1
            if self.amiss <= _NAMED:
                notice(f"shard {name}: {amiss}")
        self._tell({"event": "shard", "shard": name, "samples": samples, **({"amiss": amiss} if amiss else {})})
        self._counted(shard, headers)
        return True

    def _refuse(self, shard: str, why: str, cause: str | None, step: str) -> None:
        """``shard`` has no count. ``cause``: ``why`` without what is the shard's own; ``step``: what to do next."""
        name = _name(shard)
        self.without[shard] = why
        self.failures.add({"shard": name, "error": why, "cause": cause or why.removeprefix(f"shard {name}: "), "next_step": step})
        self._tell({"event": "shard", "shard": name, "samples": None, "error": why})

    def _tell(self, event: Event) -> None:
        self._view.event(event)
        self._progress()

    def _progress(self, more_bytes: int = 0) -> None:
        """``more_bytes``: fetched by what is still going on."""
        self._view.shards(len(self.counts) + len(self.without), self.shards, self._bytes + more_bytes)

    # Room

    def _make_room(self, asked: Sequence[str], crowded: dict[str, Event]) -> None:
        """Let something leave for ``crowded``, or ask for fewer at a time; refuse what is alone and finds no room."""
        freed, whole, name = self._let_go(), sum(shard in self.counts for shard in asked), _name(asked[0])
        if whole:
            self._together = whole  # what is begun beyond that would be fetched in parts, which leave again
        elif self._disk_tries < _DISK_TRIES and self._sidecar.status(_STATUS_S)["cache"].get("disk_state") == "down":
            self._disk_tries += 1  # room says nothing now, and the disk may be back soon
            time.sleep(PAUSE_S)
        elif len(asked) > 1:  # parts of each keep the others out
            self._together = 1
            self._evict([_name(shard) for shard in crowded])
        elif not freed and not self._evict([part for part in self._parts if part != name]):
            told = crowded[asked[0]]
            self._refuse(asked[0], str(told.get("error")), told.get("cause"), str(told.get("next_step") or _NO_ROOM))
            self._fetched.append(name)  # what is here of it

    def _let_go(self) -> bool:
        """Whether anything left that has been counted: what was here before only where nobody reads, or has said what will be read."""
        if self._evict(self._fetched):
            return True
        status = self._sidecar.status(_STATUS_S)
        return not status.get("readers") and not status.get("plans_total") and self._evict(self._present)

    def _evict(self, names: list[str]) -> bool:
        """Whether bytes left; ``names`` is emptied."""
        freed = 0
        while names:
            some = names[:_EVICTED_AT_ONCE]
            del names[:_EVICTED_AT_ONCE]
            freed += self._sidecar.evict({"shards": some})["bytes"]
            for name in some:
                self._parts.pop(name, None)
        return freed > 0


def _apart(work: Sequence[Batch], *, video: bool) -> tuple[list[Batch], list[Batch]]:
    """Shards, and with --video clips that are no shards."""
    if not video:
        return list(work), []
    clips = [replace(batch, shards=tuple(filter(is_clip, batch.shards))) for batch in work]
    shards = [replace(batch, shards=tuple(filterfalse(is_clip, batch.shards))) for batch in work]
    return [batch for batch in shards if batch.shards], [batch for batch in clips if batch.shards]


def _name(shard: str) -> str:
    """As the sidecar calls it: without what is a signature."""
    return Shard.of(parse_origin_url(shard)).name


def _end(tally: _Counting, names: dict[str, str], sizes: str, *, as_json: bool) -> bool:
    """Whether the sizes were written."""
    samples, shards = sum(tally.counts.values()), len(tally.counts)
    written = bool(sizes) and _written(tally, names, sizes)
    if as_json:
        known = {"shards": shards, "samples": samples, "without": len(tally.without), "amiss": tally.amiss}
        say_json({"event": "end", **known, "sizes": sizes if written else None})
        return written
    if not shards:
        say("no shard was counted")
        return written
    if tally.amiss:
        say(f"samples of {many(tally.amiss, 'shard')} are not whole, and counted in their parts: see above (--json names each shard)")
    fewest, most = min(tally.counts.values(), default=0), max(tally.counts.values(), default=0)
    say(f"{many(samples, 'sample')} in {many(shards, 'shard')} ({fewest} to {most} each){f'; {sizes} written' if written else ''}")
    return written


def _written(tally: _Counting, names: dict[str, str], sizes: str) -> bool:
    """Add the counts to the file if all of them are known, and it says nothing else of these shards."""
    if tally.without:
        notice(f"{sizes} is not written: {len(tally.without)} of {len(names)} shards have no index")
        return False
    try:
        others = SizesJson(Path(sizes)).add({names[shard]: count for shard, count in tally.counts.items()})
    except Conflict as conflict:
        step = "is it of another set, or older than its shards? Move it away, or name another file with --sizes"
        notice(f"{sizes} is not written: {conflict}; {step}")
        return False
    if others:
        notice(f"{sizes} told of {others} other shards, which stay in it")
    return True


def _file_names(work: Sequence[Batch]) -> dict[str, str]:
    """The file name of each shard. Raises ``ConfigError`` where two have the same: sizes by name could not tell them apart."""
    names = {shard: file_name(shard) for batch in work for shard in batch.shards}
    for name, count in Counter(names.values()).most_common(1):
        if count > 1:
            first, second = [shard.partition("?")[0] for shard, other in names.items() if other == name][:2]
            step = "index each folder by itself, with a --sizes of its own, or give --sizes ''"
            raise ConfigError(f"two shards have the name {name}, and sizes go by name: {first} and {second}", next_step=step)
    return names
