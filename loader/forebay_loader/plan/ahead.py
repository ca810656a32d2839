"""Read the URL stage a little ahead, announce what was read, yield that very list: plan and reality cannot drift.

``_Reading`` looks ahead; what it finds goes to the sidecar by ``PlanClient.announce``.

A list that is known in full (``known_lists``) is read and published before its first item is yielded: the origin sends the second shard
while the first is read. Other sources may hand out work, or delete it, as they are pulled. Of those the first item is yielded before the
second is pulled, and nothing is pulled past an item that will not be opened through the sidecar: that one is yielded first.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Optional, Union

from forebay_loader.base.argument_types import check_epoch, whole
from forebay_loader.base.notices import notice_once
from forebay_loader.base.timeouts import Limits
from forebay_loader.identity.reader_name import CLAIMS, next_opener, reader_name
from forebay_loader.identity.world import World
from forebay_loader.plan.known_lists import is_known_list
from forebay_loader.plan.plan_client import Coming, PlanClient, Subject, subject_of, told_epoch
from forebay_loader.stream.webdataset_openers import enable, enabled, source_of
from forebay_proxy.wire.commands.sources import Source

__all__ = ["Ahead", "Epoch", "ahead", "passed_on"]

DEFAULT_AHEAD = 16  # at 1 GB a shard and 100 MB/s a worker that is 160 s of warning; the list is a few kB
MAX_AHEAD = 4096  # a plan longer than this says nothing the sidecar could use: it would not fit any window


Epoch = Union[None, int, Callable[[], int], Any]  # the last: an object with ``value``, or with ``get_value()``, as trainers share one


def ahead(k: Optional[int] = None, *, set: Optional[str] = None, epoch: Epoch = None) -> Ahead:
    """A stage between the shard list and the opener that announces the next ``k`` shards to the sidecar.

    It takes dictionaries with ``url``, or texts, and yields them unchanged and in order. ``fb.tarfile_to_samples`` has this stage inside.
    Use it in pipelines with another opener, after ``fb.enable()``. An announcement that fails is a notice, never an error.

    Args:
        k: How many shards, at most 4096; 0 for none. The default is ``FOREBAY_AHEAD``, else 16.
        set: The pattern that all shards belong to, or a name for them. Jobs that say the same set share its cached bytes.
        epoch: A whole number, a callable, or an object with ``value`` or ``get_value()``. It is asked when an iteration begins. Without it
            a worker that lives for several epochs counts them.

    Returns:
        The stage.

    Raises:
        TypeError: ``k`` is no whole number, or ``epoch`` is nothing that can be asked.
        ValueError: ``k`` is below 0 or above 4096.

    Examples:
        >>> fb.enable()
        >>> pipeline = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, fb.ahead(), wds.tarfile_to_samples())
        >>> len(list(pipeline))
        15
    """
    return Ahead(k, set=set, epoch=epoch)


class Ahead:
    """The stage itself; can be pickled. Where Forebay was enabled, unpickling in a worker process enables it there."""

    def __init__(self, k: Optional[int] = None, *, set: Optional[str] = None, epoch: Epoch = None, world: Optional[World] = None) -> None:
        self._k = None if k is None else whole("ahead", k, "a number of shards, 0 for none")
        check_epoch(epoch)
        self._set = set
        self._epoch = epoch
        self._world = World.here() if world is None else world
        self._runs: tuple[int, int] = (0, 0)  # the process, and how often it began to read

    def __repr__(self) -> str:
        return f"<ahead {self._k if self._k is not None else 'FOREBAY_AHEAD'}>"

    def __call__(self, data: Iterable[Any], *, known: bool = False) -> Iterator[Any]:
        """``known``: ``data`` comes from a list that is known in full, as who has pulled from it before has seen."""
        self._world.tell_worker()  # before a splitter of webdataset's, which comes earlier in the pipeline but runs later, asks for it
        k = _from_environment() if self._k is None else min(self._k, MAX_AHEAD)
        items = iter(data)
        return _Reading(items, k, self._subject(), at_once=known or is_known_list(items)).run() if k else items

    def _subject(self) -> Subject:
        pid, before = os.getpid(), self._runs[1] if self._runs[0] == os.getpid() else 0
        self._runs = pid, before + 1
        # The first run of a process tells nothing: a worker that is started anew for each epoch has no other.
        epoch = told_epoch(self._epoch)
        return subject_of(self._set, before or None if epoch is None else epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {"k": self._k, "set": self._set, "epoch": self._epoch, "world": self._world.resolved(), "enabled": enabled()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._k, self._set, self._epoch, self._runs = state["k"], state["set"], state["epoch"], (0, 0)
        self._world = state["world"]
        limits: Optional[Limits] = state["enabled"]
        if limits is not None:
            enable(limits=limits)


def passed_on() -> int:
    """How many items the stages of this process have yielded: whether pulling one from a pipeline passes such a stage shows in it."""
    return _Reading.passed


class _Pulled(NamedTuple):
    """An item, and what will be fetched for it; None when it is not ours."""

    item: Any
    source: Optional[Source]


class _Reading:
    """One pass over a URL stage."""

    passed = 0  # items, over all readings of this process

    def __init__(self, items: Iterator[Any], k: int, subject: Subject, *, at_once: bool) -> None:
        self._items = items
        self._at_once = at_once  # nobody misses what is pulled early
        self._subject = subject
        self._announced = 0  # how many it told of, over the whole reading
        self._k = k
        self._refill_at = k - max(1, k // 4)  # a message for every few shards rather than for each
        self._waiting: deque[_Pulled] = deque()
        self._opener = next_opener()
        self._name = ""
        self._ended = False
        self._failure: Optional[Exception] = None  # of the source; raised once what came before it is used up
        self._announcer: Optional[PlanClient] = None

    def run(self) -> Iterator[Any]:
        """Yield every item in order; a failure of the source is raised after what it gave before."""
        try:
            first = None if self._at_once else self._pull()
            if first is not None:
                _Reading.passed += 1
                yield first.item
            while self._refill():
                _Reading.passed += 1
                yield self._waiting.popleft().item
        finally:
            self._leave()
            failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback leads to this frame: the two would keep each other and the pipeline

    def _refill(self) -> bool:
        """Read up to k ahead and announce it; whether anything is waiting."""
        if len(self._waiting) > self._refill_at:
            return True
        fresh = []
        while len(self._waiting) < self._k and (self._at_once or not self._waiting or self._waiting[-1].source is not None):
            pulled = self._pull()
            if pulled is None:
                break
            self._waiting.append(pulled)
            fresh.append(pulled)
        self._announce([pulled.source for pulled in fresh if pulled.source is not None])
        return bool(self._waiting)

    def _pull(self) -> Optional[_Pulled]:
        if self._ended:
            return None
        try:
            item = next(self._items)
        except StopIteration:  # not kept: its traceback holds every frame below, from Python 3.12 on the callers' too
            self._ended = True
            return None
        except Exception as error:
            self._ended, self._failure = True, error
            return None
        source = _source_of(item)
        if source is not None:
            self._name = self._name or reader_name(self._opener)
            CLAIMS.announce(source.text, self._name)
        return _Pulled(item, source)

    def _announce(self, fresh: list[Source]) -> None:
        if not fresh:
            return
        before, self._announced = self._announced, self._announced + len(fresh)
        try:
            if self._announcer is None:
                self._announcer = PlanClient(self._name, self._coming, self._subject)
            self._announcer.announce(Coming(before, fresh))
        except Exception as error:
            _tell_unannounced(error)

    def _coming(self) -> Coming:
        sources = self._sources()
        return Coming(self._announced - len(sources), sources)

    def _sources(self) -> list[Source]:
        return [pulled.source for pulled in tuple(self._waiting) if pulled.source is not None]

    def _leave(self) -> None:
        for source in self._sources():
            CLAIMS.forget(source.text, self._name)
        announcer, self._announcer = self._announcer, None  # it knows this reading by its method: a cycle
        if announcer is None or sys.is_finalizing():  # a traceback kept the reading until the interpreter ends: nothing can be looked up
            return
        try:
            announcer.withdraw()
        except Exception as error:
            _tell_unannounced(error)


def _source_of(item: Any) -> Optional[Source]:
    url = item.get("url") if isinstance(item, dict) else item
    try:
        return source_of(url) if isinstance(url, str) else None
    except Exception:  # a URL, or a rule of GOPEN_REWRITE, that makes no sense: the opener will say so when its turn comes
        return None


def _tell_unannounced(error: Exception) -> None:
    """An announcement is a help, never a condition: not even a fault in it may end a training."""
    notice_once("unannounced", f"what comes cannot be announced ({type(error).__name__}); shards are read all the same")


def _from_environment() -> int:
    text = os.environ.get("FOREBAY_AHEAD", "")
    if not text:
        return DEFAULT_AHEAD
    if text.isascii() and text.isdigit():
        return min(int(text), MAX_AHEAD)
    notice_once("ahead", f"FOREBAY_AHEAD={text!r} is not a number of shards; using {DEFAULT_AHEAD}")
    return DEFAULT_AHEAD
