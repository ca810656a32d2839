"""Two stages for any pipeline of webdataset: one opens shards through the sidecar, the other also reads their tars.

A resumed pass may start in the middle of a shard. The shard's index then gives the place of the sample, in its file or by range requests.
"""

from __future__ import annotations

import importlib
import inspect
import os
import time
import weakref
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Callable, Iterable, Iterator, Literal, Optional, Sequence

from forebay_loader.base.argument_types import check_reading
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import LoaderError, ProxyUnreachable
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.identity.reader_name import ensure_job
from forebay_loader.meter.profile_ranges import ranged
from forebay_loader.meter.skips.recorded_handler import Handler, Place, RecordedHandler, asked
from forebay_loader.meter.skips.skip_pass import SkipPass, current, lone_pass
from forebay_loader.plan.ahead import Ahead, Epoch
from forebay_loader.resume.begun_shards import ITEM, BegunShards, version_of
from forebay_loader.resume.cursor import Cursor, cursor_here
from forebay_loader.samples.index_client import source_in
from forebay_loader.samples.index_samples import indexed_samples
from forebay_loader.samples.indexed_shard import IndexedShard
from forebay_loader.samples.open_sample import reraise
from forebay_loader.samples.tar import Samples, SampleStart, check_rule
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.shard_request import shown
from forebay_loader.stream.shard_stream import ShardStream
from forebay_loader.stream.webdataset_openers import gopen_module, open_source, source_of, tell_left_alone
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source

__all__ = ["Expected", "ShardOpenings", "TarSamples", "entered_at", "first_left", "indexed_shard", "tarfile_to_samples"]


_LOOK_S = 0.05


class Expected:
    """Whether a sidecar was ever configured where this stage was built or runs. Pickled with the stage, so that
    later workers know it too.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._seen = _named()
        self._clock = clock

    def check(self, source: Source, limits: Limits) -> None:
        """Raise ``ProxyUnreachable`` if no sidecar was ever seen and ``source`` is remote. Waits up to ``limits.open_s`` for a sidecar that
        is starting.
        """
        if self._seen or source.url.scheme == "file":
            return
        until_s = self._clock() + (0.0 if DEAD.known() else limits.open_s)
        while not _named():
            if self._clock() >= until_s:
                DEAD.found()  # so that the next shard does not wait again
                COUNTS.add("failed")
                raise ProxyUnreachable(
                    f"shard {shown(source)}: no sidecar runs for this user on this node; start one with `forebay serve` or `forebay run`, "
                    "use `with fb.sidecar():`, or set FOREBAY_URL to where one is"
                )
            time.sleep(_LOOK_S)
        self._seen = True


def _named() -> bool:
    """Whether a variable or run file names a sidecar, running or not. If it does not run, reading falls back to the origin."""
    return bool(os.environ.get("FOREBAY_URL") or os.environ.get("FOREBAY_SOCKET")) or find_endpoint() is not None


def tarfile_to_samples(
    handler: Optional[Handler] = None,
    select_files: Optional[Callable[[str], bool]] = None,
    rename_files: Optional[Callable[[str], str]] = None,
    *,
    on_tar_fault: Literal["raise", "warn"] = "raise",
    ahead: Optional[int] = None,
    set: Optional[str] = None,
    epoch: Epoch = None,
    limits: Limits = DEFAULT_LIMITS,
) -> TarSamples:
    """``wds.tarfile_to_samples(…)`` for a ``wds.DataPipeline``: shards come through the sidecar and are announced ahead.

    Args:
        handler: Gets each exception of opening, reading and grouping. If it returns True, the worker goes on with the next shard. None
            raises the exception.
        select_files: Gets a member's name and says whether it is wanted.
        rename_files: Gets a member's name and returns another.
        on_tar_fault: What happens at a tar without its end marker, with data after it, or with an unreadable header. ``"raise"`` raises
            ``fb.TarFault``; ``"warn"`` logs it once and reads on, as webdataset does.
        ahead: How many coming shards to announce, as ``k`` of ``fb.ahead``.
        set: The pattern that all shards belong to, as in ``fb.ahead``.
        epoch: As in ``fb.ahead``.
        limits: The timeouts of a worker, in seconds.

    Returns:
        The stage. It takes dictionaries with ``url`` and yields samples: dictionaries with ``__key__``, ``__url__`` and a bytes value for
        each member.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has an invalid value.
        fb.ProxyUnreachable: While reading: there is no sidecar, and the shard has no other source.
        fb.ShardReadError: While reading: a shard is absent or refused.
        fb.ShardChanged: While reading: a shard was replaced.
        fb.TarFault: While reading: a shard is not a complete tar.

    Examples:
        >>> pipeline = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, fb.tarfile_to_samples(), wds.decode())
        >>> len(list(pipeline))
        15
    """
    check_reading(handler, select_files, rename_files, limits)
    ensure_job()
    files = {"select_files": select_files, "rename_files": rename_files, "on_tar_fault": on_tar_fault}
    return TarSamples(ShardOpenings(handler, Ahead(ahead, set=set, epoch=epoch), limits), files)


class ShardOpenings:
    """The stage that turns URLs into open streams. ``handler`` decides about exceptions, as in webdataset; None raises them."""

    def __init__(self, handler: Optional[Handler], ahead: Ahead, limits: Limits) -> None:
        self.handler = handler
        self._ahead = ahead
        self.limits = limits
        self._expected = Expected()

    def __call__(self, data: Iterable[Any], skips: Optional[SkipPass] = None, cursor: Optional[Cursor] = None) -> Iterator[dict[str, Any]]:
        """``skips`` is the pass that this call is part of. ``cursor`` is the position of that pass."""
        skips = skips or lone_pass()
        if cursor is None:
            return skips.opening(self._opened(self._ahead(data), skips))  # now: a splitter may ask for the rank
        items = cursor.taking(self._ahead(cursor.left(data)))
        return skips.opening(_noted(self._opened(items, skips, cursor.shards), cursor))

    def _opened(self, data: Iterable[Any], skips: SkipPass, begun: Optional[BegunShards] = None) -> Iterator[dict[str, Any]]:
        """``begun`` knows which version of each shard to open."""
        handler = None if self.handler is None else RecordedHandler(self.handler, skips)
        for item in data:
            try:
                opened = self.open(item, "" if begun is None else begun.version(item[ITEM]))
            except Exception as error:
                url = item["url"] if isinstance(item, dict) else item
                error.args = (*error.args, url)  # as url_opener does
                if handler is None:
                    raise
                if not asked(handler, error, Place("open", "shard", url, function="open")):
                    break
                continue
            yield opened

    def open(self, item: Any, version: str) -> dict[str, Any]:
        """Return ``item`` with an open ``stream``, in ``version`` (an ETag) if that is cached. Raises the errors of opening."""
        sample = item if isinstance(item, dict) else {"url": item}
        source = source_of(sample["url"])
        if source is None:
            tell_left_alone(sample["url"])
            return _stock_open(sample)
        self._expected.check(source, self.limits)
        return {**sample, "stream": open_source(source, self.limits, version)}


class TarSamples:
    """``ShardOpenings``, followed by the samples of the tars. ``handler`` gets errors of opening, reading and grouping; ``files`` are
    arguments of ``Samples``.
    """

    reads_shards = True  # later stages get samples

    def __init__(self, opening: ShardOpenings, files: dict[str, Any]) -> None:
        check_rule(files.get("on_tar_fault", "raise"))
        self.opening = opening
        self._files = files
        self.counts = False  # True: no later stage of ours counts the samples
        ends_with_shards()  # fills a cache here, once, rather than in each worker

    def __call__(self, data: Iterable[Any]) -> Iterator[dict[str, Any]]:
        skips = current()
        if skips is not None:
            skips.reads = True
            samples = self._of_pass(data, skips, cursor_here())
            return skips.counting(samples) if self.counts else iter(samples)
        skips = lone_pass()
        return skips.until_end(skips.counting(self.read(self.opened(data, skips), skips)))

    def _of_pass(self, data: Iterable[Any], skips: SkipPass, cursor: Optional[Cursor]) -> Iterator[dict[str, Any]]:
        opened = self.opened(data, skips, cursor)
        if cursor is None:
            return self.read(opened, skips)
        if cursor.done or cursor.began is not None:
            opened = self._entered(opened, cursor)
        return cursor.counting(self.read(opened, skips, cursor))

    def opened(self, data: Iterable[Any], skips: SkipPass, cursor: Optional[Cursor] = None) -> Iterator[dict[str, Any]]:
        """Each item of ``data``, with its open ``stream``."""
        return self.opening(data, skips, cursor)

    def read(self, opened: Iterable[dict[str, Any]], skips: SkipPass, cursor: Optional[Cursor] = None) -> Iterator[dict[str, Any]]:
        """The samples of the open shards."""
        handler = RecordedHandler(self.opening.handler or reraise, skips)
        reading = Samples(handler, markers=ends_with_shards(), **self._files)
        if cursor is not None:
            cursor.waits = partial(_waits, weakref.ref(reading))
        return iter(ranged("read", reading.read(opened)))

    def _entered(self, opened: Iterable[dict[str, Any]], cursor: Cursor) -> Iterator[dict[str, Any]]:
        """The open shards, each with the number of the sample to start at."""
        for one in opened:
            start = cursor.entered(one[ITEM])
            if not start and cursor.done:
                start = first_left(cursor.done.get(cursor.shards.items.shards[one[ITEM]], ()))
                cursor.shards.items.firsts[one[ITEM]] = start  # its ordinals begin there: a sample with an earlier ordinal may still wait
            yield self._at(one, start, None, sure=self.opening.handler is None) if start else one

    def samples(self, opened: dict[str, Any], start: int, stop: Optional[int], skips: SkipPass) -> Iterator[dict[str, Any]]:
        """Samples ``start`` to ``stop`` of one open shard: by its index if it has one, else by reading up to them."""
        samples = self.read([self._at(opened, start, stop)], skips)
        return samples if stop is None else islice(samples, stop - start)

    def _at(self, opened: dict[str, Any], start: int, stop: Optional[int], *, sure: bool = False) -> dict[str, Any]:
        if not start:
            return opened
        enter = partial(entered_at, dict(opened), start, stop, self.opening.limits) if not self.selects else None
        return {**opened, "start": SampleStart(start, enter, sure)}

    @property
    def selects(self) -> bool:
        """Whether some members, and so perhaps whole samples, are left out. The numbers of the index would then not fit: it counts all
        samples.
        """
        return self._files.get("select_files") is not None or self._files.get("rename_files") is not None


def _waits(reading: "weakref.ref[Samples]") -> bool:
    """Whether ``reading`` holds back a sample. The reference is weak since its handler refers to the pass that asks."""
    found = reading()
    return found is not None and found.waits()


def _noted(opened: Iterator[dict[str, Any]], cursor: Cursor) -> Iterator[dict[str, Any]]:
    """``opened``. If a shard's version is not that of the state, that is an error which no handler sees."""
    for one in opened:
        try:
            cursor.shards.opened(one)
        except ValueError:
            one["stream"].close()
            raise
        yield one


def ends_with_shards() -> bool:
    """Whether a sample ends with its shard in the installed webdataset. It does since the ``{}`` marker, which 0.2.86 does not have."""
    return _has_markers(importlib.import_module("webdataset.tariterators").tar_file_expander)


@lru_cache(maxsize=4)
def _has_markers(expander: Callable[..., Any]) -> bool:
    return "eof_value" in inspect.signature(expander).parameters


def _stock_open(sample: dict[str, Any]) -> dict[str, Any]:
    """Open a shard that the sidecar does not serve exactly as this version of webdataset does."""
    cache = importlib.import_module("webdataset.cache")
    streaming = getattr(cache, "StreamingOpen", None)
    if streaming is not None:
        opened: dict[str, Any] = next(iter(streaming()([sample])))  # its default handler raises
        return {**sample, **opened}
    return {**sample, "stream": gopen_module().gopen(os.fspath(sample["url"]))}


def entered_at(opened: dict[str, Any], start: int, stop: Optional[int], limits: Limits) -> Optional[Iterator[dict[str, Any]]]:
    """Samples ``start`` to ``stop`` of an open shard, without reading the samples before them; None if it has no index."""
    stream = opened["stream"]
    if isinstance(stream, Descriptor):
        found = indexed_samples(opened, start, stop, limits)
        return None if found is None else _closing(found, stream)
    if not isinstance(stream, ShardStream):
        return None
    shard = indexed_shard(opened["url"], limits, version_of(stream))
    if shard is None or shard.etag != version_of(stream):
        return None
    stream.close()  # costs nothing: the sidecar keeps the segments that it has fetched
    return _closing(shard.samples(start, stop), shard)


def indexed_shard(url: Any, limits: Limits, version: str = "") -> Optional[IndexedShard]:
    """The shard with its index, in ``version`` (an ETag) if that is cached; None if it has no index or the sidecar does not read it."""
    if not isinstance(url, str) or source_in(url) is None:
        return None
    try:
        return IndexedShard(url, limits=limits, version=version)
    except LoaderError:
        return None


def first_left(done: Sequence[tuple[int, int]]) -> int:
    """The first sample that is not in the ranges ``done``."""
    return done[0][1] if done and done[0][0] == 0 else 0


def _closing(samples: Iterator[Any], opened: Any) -> Iterator[Any]:
    try:
        yield from islice(samples, None)
    finally:
        opened.close()
