"""``forebay index``: have the sample index of each shard made, and write down how many samples there are."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from itertools import filterfalse
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, SidecarRefused, locate
from forebay_proxy.cli.index.sizes_json import Conflict, SizesJson, file_name
from forebay_proxy.cli.index.video_scan import VideoScan, is_clip
from forebay_proxy.cli.options import from_option, json_option, url_option
from forebay_proxy.cli.output import many, notice, say, say_json
from forebay_proxy.cli.progress import Failures, ProgressView
from forebay_proxy.cli.sources import Batch, named_batches
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName, encode
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["PAUSE_S", "CountRoom", "index"]


PAUSE_S = 2.0
_EVICTED_AT_ONCE = 1000  # names a request
_DISK_TRIES = 60  # in a row, while the sidecar tries whether its disk works again, which it does once a minute or sooner
_STATUS_S = 60.0  # a count of hours must not end because a busy sidecar takes its time


class CountRoom:
    """What of the cache may leave, by the names of shards: counted ones, first those that were fetched for the count alone.

    With ``--video`` a shard may leave before the scan of clips comes to it, which costs a second fetch of its clips and nothing else.
    """

    def __init__(self, sidecar: SidecarClient) -> None:
        self._sidecar = sidecar
        self._fetched: list[str] = []  # for this count, and counted
        self._present: list[str] = []  # counted too, and here before
        self._parts: dict[str, None] = {}  # what was fetched in part for this count: there was no room for the rest
        self._disk_tries = 0

    def counted(self, name: str, *, fetched: bool) -> None:
        """It has been counted, or cannot be; ``fetched``: it came for this count."""
        (self._fetched if fetched else self._present).append(name)

    def in_part(self, name: str) -> None:
        """There was no room for all of it."""
        self._parts[name] = None

    def whole(self, name: str) -> None:
        """All of it is here."""
        self._parts.pop(name, None)

    def let_go(self) -> bool:
        """Whether anything left that has been counted: what was here before only where nobody reads, or has said what will be read."""
        if self.evict(self._fetched):
            return True
        status = self._sidecar.status(_STATUS_S)
        return not status.get("readers") and not status.get("plans_total") and self.evict(self._present)

    def evict_parts(self, but: str) -> bool:
        """Whether bytes of shards that were fetched in part left; ``but``: the shard that stays."""
        return self.evict([name for name in self._parts if name != but])

    def evict(self, names: list[str]) -> bool:
        """Whether bytes left; ``names`` is emptied."""
        freed = 0
        while names:
            some = names[:_EVICTED_AT_ONCE]
            del names[:_EVICTED_AT_ONCE]
            freed += self._sidecar.evict({"shards": some})["bytes"]
            for name in some:
                self._parts.pop(name, None)
        return freed > 0

    def disk_is_waited_for(self) -> bool:
        """Whether the sidecar's disk failed, so that room says nothing, and may be back now; waits ``PAUSE_S`` then."""
        if self._disk_tries >= _DISK_TRIES or self._sidecar.status(_STATUS_S)["cache"].get("disk_state") != "down":
            return False
        self._disk_tries += 1
        time.sleep(PAUSE_S)
        return True

    def disk_works(self) -> None:
        """A shard was counted."""
        self._disk_tries = 0


# So many shards are fetched before their indexes are asked for: enough for an origin's latency not to count, few enough to be here still
# where the set is larger than the cache.
_TOGETHER = 16
_NOT_YET = 409
_TRIES = 5  # for an index that cannot be made now: a part of the shard left meanwhile, or the disk is slow
_NAMED = 3  # shards with something amiss; --json names all
_NO_ROOM = "run it again when other jobs have ended, or give the sidecar a larger --cache-size"

Event = dict[str, Any]
Counted = Callable[[str, tuple[tuple[str, str], ...]], None]  # told each shard that is counted, and the headers that it needs


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
@click.option("--quiet", is_flag=True, help="No progress; what has no index is still named.")
@json_option
@url_option
def index(urls: tuple[str, ...], lists: tuple[str, ...], sizes: str, table: str, quiet: bool, as_json: bool, url: str | None) -> int:
    """Make the sample index of shards ahead, and count their samples.

    \b
    Examples:
      forebay index 's3://bucket/shard-{000000..000999}.tar'
      forebay index shards.txt --sizes /data/laion/sizes.json
      forebay index 'https://host/{00..99}.tar' --sizes '' --json
      forebay index --video films.clips 's3://bucket/films-{000..099}.tar'

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them, one a line; '-' is stdin. A shard without an index is fetched into
    the cache for it, once; the index stays when the shard leaves. Where the set is larger than the cache, counted shards leave for the
    others. Replaced shards are counted again. With all indexes known the ranks of a job share
    samples instead of shards, and end their epochs together. Exit code 1 when a shard has no index: only whole, plain tars have one. The
    sizes are written only when all of them are known. They are added to an existing file; a file with other sizes of the same names is left
    alone.

    With --video clips are scanned as their shards are counted, in a process of their own, which needs forebay[video]; URLs may be of clips
    too. A stopped scan goes on from there: clips that the table knows are not looked at again, and its others stay in it. Exit code
    1 when a clip cannot be read.
    """
    work, clips = _apart(named_batches(urls, lists), video=bool(table))
    sizes = sizes if work else ""  # clips alone have no samples to count
    names = _file_names(work) if sizes else {}
    if sizes:
        SizesJson(Path(sizes)).check()
    sidecar = locate(url, os.environ)
    with ProgressView(quiet=quiet, as_json=as_json) as view, VideoScan(table, sidecar, view).begun() as scan:
        tally = _Tally(view, sum(len(batch.shards) for batch in work))
        counting = _Counting(sidecar, tally, scan.add)
        try:
            for batch in work:
                counting.batch(batch)
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


class _Tally:
    """``counts`` are samples by shard, ``without`` why others have none; ``shards`` is how many there are. Each is told to ``view``."""

    def __init__(self, view: ProgressView, shards: int) -> None:
        self.counts: dict[str, int] = {}
        self.without: dict[str, str] = {}
        self.amiss = 0  # shards
        self.failures = Failures()
        self.shards = shards
        self._view = view
        self._bytes = 0  # fetched for shards that are whole by now

    def __contains__(self, shard: str) -> bool:
        """Whether ``shard`` is counted, or refused for good."""
        return shard in self.counts or shard in self.without

    def progress(self, more_bytes: int = 0) -> None:
        """``more_bytes``: fetched by what is still going on."""
        self._view.shards(len(self.counts) + len(self.without), self.shards, self._bytes + more_bytes)

    def fetched(self, count_bytes: int) -> None:
        """So many bytes came, of shards that have been told."""
        self._bytes += count_bytes

    def count(self, shard: str, name: str, samples: int, amiss: str) -> None:
        """``shard``, which the sidecar calls ``name``, has so many ``samples``; ``amiss``: what is wrong with them."""
        self.counts[shard] = samples
        if amiss:
            self.amiss += 1
            if self.amiss <= _NAMED:
                notice(f"shard {name}: {amiss}")
        self._told({"event": "shard", "shard": name, "samples": samples, **({"amiss": amiss} if amiss else {})})

    def refuse(self, shard: str, name: str, why: str, cause: str | None = None, step: str = "") -> None:
        """``shard`` has no count. ``cause``: ``why`` without what is the shard's own; ``step``: what to do next."""
        self.without[shard] = why
        self.failures.add({"shard": name, "error": why, "cause": cause or why.removeprefix(f"shard {name}: "), "next_step": step})
        self._told({"event": "shard", "shard": name, "samples": None, "error": why})

    def _told(self, event: dict[str, Any]) -> None:
        self._view.event(event)
        self.progress()


class _Counting:
    """Asks for indexes, and has fetched what is not all here."""

    def __init__(self, sidecar: SidecarClient, tally: _Tally, counted: Counted) -> None:
        self._sidecar = sidecar
        self._tally = tally
        self._counted = counted
        # A job of its own: what is here is compared with its origin before its count is believed.
        self._reader = str(ReaderName(f"index-{os.getpid()}-{secrets.token_hex(4)}", "0", "0", f"{os.getpid()}.1"))
        self._together = _TOGETHER
        self._outage = False  # of an origin, in these shards
        self._room = CountRoom(sidecar)
        self._tried: Counter[str] = Counter()  # shards that were all here, and had no index yet

    def batch(self, batch: Batch) -> None:
        for first in range(0, len(batch.shards), _TOGETHER):
            self._some(batch.shards[first : first + _TOGETHER], batch.headers)

    def _some(self, shards: Sequence[str], headers: tuple[tuple[str, str], ...]) -> None:
        self._outage = False
        waiting = [shard for shard in shards if self._outage or not self._count(shard, headers, last=False)]
        while waiting:
            asked = waiting[: self._together]
            crowded = self._fetched(asked, headers)
            again = [shard for shard in asked if not (shard in self._tally or shard in crowded)]
            waiting = [*crowded, *waiting[len(asked) :], *again]
            self._tried.update(again)
            if crowded:
                self._make_room(asked, crowded)
                waiting = [shard for shard in waiting if shard not in self._tally.without]
            elif again == waiting:
                time.sleep(PAUSE_S)

    def _make_room(self, asked: Sequence[str], crowded: dict[str, Event]) -> None:
        """Let something leave for ``crowded``, or ask for fewer at a time; refuse what is alone and finds no room."""
        freed, whole = self._room.let_go(), sum(shard in self._tally.counts for shard in asked)
        if whole:
            self._together = whole  # what is begun beyond that would be fetched in parts, which leave again
        elif self._room.disk_is_waited_for():
            return
        elif len(asked) > 1:  # parts of each keep the others out
            self._together = 1
            self._room.evict([_name(shard) for shard in crowded])
        elif not freed and not self._room.evict_parts(_name(asked[0])):
            told = crowded[asked[0]]
            self._tally.refuse(asked[0], _name(asked[0]), str(told.get("error")), told.get("cause"), str(told.get("next_step") or _NO_ROOM))
            self._room.counted(_name(asked[0]), fetched=True)  # what is here of it

    def _fetched(self, shards: Sequence[str], headers: tuple[tuple[str, str], ...]) -> dict[str, Event]:
        """Have ``shards`` fetched, and count their samples; returns the shards that found no room, with the last event of each."""
        if self._together < _TOGETHER:
            self._room.let_go()  # there was no room before: there is none now but for what has been counted
        crowded: dict[str, Event] = {}
        shard_of = {_name(shard): shard for shard in shards}
        encoded = encode(shards)
        for event in self._sidecar.warm(encoded.content_type, encoded.body, headers, encoded.query):
            shard = shard_of.get(str(event.get("shard")), "")
            if event.get("event") == "progress":
                self._tally.progress(event["done_bytes"])
            elif event.get("event") == "end":
                self._tally.fetched(event["bytes"])
            elif shard and event.get("result") in ("stored", "present"):
                self._room.whole(_name(shard))
                self._room.counted(_name(shard), fetched=event["result"] == "stored")
                self._count(shard, headers, last=True)
            elif shard and event.get("result") == "no-room":
                crowded[shard] = event
                if event.get("bytes"):
                    self._room.in_part(_name(shard))
            elif shard:
                why, step = str(event.get("error") or event.get("result")), str(event.get("next_step", ""))
                self._tally.refuse(shard, _name(shard), why, event.get("cause"), step)
        for shard in shards:
            if shard not in self._tally and shard not in crowded:
                self._count(shard, headers, last=True)
        return crowded

    def _count(self, shard: str, headers: tuple[tuple[str, str], ...], *, last: bool) -> bool:
        """Whether it is known now, one way or the other; ``last``: all of it was fetched, so it is asked for a few times at most."""
        target, headers = parse_origin_url(shard).proxy_path(), (*headers, ("Forebay-Reader", self._reader))
        try:
            count, _, amiss = self._sidecar.samples(target, headers)
            if not last:
                self._room.counted(_name(shard), fetched=False)
        except SidecarRefused as refused:
            if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not last:
                self._outage = True  # each of the others would wait as long; their fetches wait together, and say why
                return False
            if refused.status == _NOT_YET and (not last or self._tried[shard] < _TRIES - 1):
                return False
            self._tally.refuse(shard, _name(shard), str(refused), step=refused.next_step)
            return True
        self._room.disk_works()
        self._tally.count(shard, _name(shard), count, amiss)
        self._counted(shard, headers[:-1])  # without the reader of this count
        return True


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


def _end(tally: _Tally, names: dict[str, str], sizes: str, *, as_json: bool) -> bool:
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


def _written(tally: _Tally, names: dict[str, str], sizes: str) -> bool:
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
            first, second = list(_named(names, name))[:2]
            step = "index each folder by itself, with a --sizes of its own, or give --sizes ''"
            raise ConfigError(f"two shards have the name {name}, and sizes go by name: {first} and {second}", next_step=step)
    return names


def _named(names: dict[str, str], name: str) -> Iterator[str]:
    return (shard.partition("?")[0] for shard, other in names.items() if other == name)
