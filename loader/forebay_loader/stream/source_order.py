"""The sources of one shard, in order: which one is in use, how long it has failed, and why the earlier ones were given up.

If the sidecar hangs and there is another source, the stream leaves the sidecar at once; if not, it waits. If the other source is in
trouble, the stream returns to the sidecar as soon as that answers. If the other source fails for good, the stream waits for the sidecar
before it raises that error.
"""

from __future__ import annotations

import random
import time
from typing import Optional

from forebay_loader.base.activity import ORIGIN, PROXY, here
from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.notices import warn_node
from forebay_loader.base.timeouts import Limits
from forebay_loader.stream.direct_origin import DirectSource
from forebay_loader.stream.shard_request import shown
from forebay_loader.stream.sources import ByteSource, OpenerSource, OwnOpener, SidecarSource
from forebay_loader.transport.body import Progress, Unanswered
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.hung_sidecar import HUNG, Bearing, hung, turns
from forebay_loader.transport.source_timeout import DEAD, SourceTimeout
from forebay_proxy.wire.commands.sources import Source

__all__ = ["SourceOrder"]


class SourceOrder:
    """The sources that lead to ``source``: the sidecar, the http(s) origin, webdataset's own opener. One of them is always the present one.

    ``progress`` is what has arrived from all of them. ``take_next`` and ``cope`` raise ``ShardReadError`` or ``ProxyUnreachable`` if no
    source is left.
    """

    def __init__(self, source: Source, reader: str, own_open: Optional[OwnOpener], limits: Limits, progress: Progress) -> None:
        self.name = shown(source)
        self.scheme = source.url.scheme
        self._limits = limits
        self._progress = progress
        self._source_timeout = SourceTimeout(limits)
        self._bearing = Bearing(self.name, self._source_timeout, alone=False)
        self._sources = _sources(source, reader, own_open, limits, self._bearing)
        self._bearing.alone = len(self._sources) == 1
        self._hung: Optional[ByteSource] = None  # the sidecar, left because it hung
        self._returned = False  # the sidecar answered again, and the stream went back to it
        self._other: Optional[LoaderError] = None  # the error to raise if the sidecar that hung does not come back
        self._outage = False  # the sidecar has reported for long that the origin is in trouble
        self._told = False  # the wait has been logged
        self._causes: list[str] = []  # of the sources that were given up

    def __repr__(self) -> str:
        return f"<SourceOrder of {self.name}: {', '.join(each.name for each in self._sources)}>"

    @property
    def present(self) -> ByteSource:
        """The source that is asked now."""
        return self._sources[0]

    @property
    def through_sidecar(self) -> bool:
        return isinstance(self._sources[0], SidecarSource)

    @property
    def outlives_fork(self) -> bool:
        """Whether a forked child may use the open body of the present source: it is not one of our connections."""
        return isinstance(self._sources[0], OpenerSource)

    def arrived(self) -> None:
        """A byte came from the present source: forget its trouble."""
        self._source_timeout.arrived()

    def cope(self, trouble: Unanswered) -> None:
        """Wait a little before the same source is asked again, or change to the next one."""
        activity = here()
        activity.wait(ORIGIN if trouble.reached or not self.through_sidecar else PROXY, self.name, self._progress.position)
        try:
            self._cope(trouble)
        finally:
            activity.over()

    def _cope(self, trouble: Unanswered) -> None:
        way = self._sources[0]
        if trouble.silent and not trouble.hung and self._source_timeout.bears_silence():
            if way.turns():
                return
            trouble = hung() if isinstance(way, SidecarSource) else trouble
        if trouble.hung:
            HUNG.found()
            if not self._bearing():  # nobody knows when it continues
                self._hung = None if self._bearing.alone else way
                self.take_next(str(trouble))
                return
        elif self._is_back():
            return
        limit_s = self._limit_of(way, trouble)
        pause_s = self._source_timeout.pause(trouble, limit_s)
        if pause_s is None:
            self.take_next(str(trouble), reached=trouble.reached)
            return
        if self._source_timeout.troubled_s >= self._limits.tell_s and not self._told:
            self._told = True  # a mistyped host would otherwise look like a training that hangs
            warn_node(f"{self.name}: {trouble}; asking the {way.name} again, for up to {limit_s:g} s")
        time.sleep(pause_s)

    def _limit_of(self, way: ByteSource, trouble: Unanswered) -> float:
        """How long ``way`` may fail before it is given up, in seconds."""
        if isinstance(way, OpenerSource):
            return 0.0
        if isinstance(way, SidecarSource) and self._bearing.began:
            return self._source_timeout.troubled_s + self._bearing.left_s
        if self._progress.position or trouble.reached or not isinstance(way, SidecarSource):
            return self._limits.resume_s
        if self._bearing.alone and (DEAD.lived or find_endpoint() is not None):
            return self._limits.resume_s  # wait each time: otherwise a restart of the sidecar would end the training or skip the shard
        return 0.0 if DEAD.known() else self._limits.open_s

    def take_next(self, cause: str, *, lost: bool = True, reached: bool = False) -> None:
        """Leave the present source for good.

        ``lost``: it died or stayed in trouble; False if it refused the shard. ``reached``: it did answer.
        """
        left = self._sources.pop(0)
        if self._outage and lost:
            self._sources = []  # the origin has failed too: a third source would wait as long again
        if not self._sources:
            self._sources = [left]
            error = self._no_way(left, cause, reached)
            if self.waits_instead(error):
                return
            error = self._other or error
            self.failed(error)
            raise error
        self._outage = lost and reached and isinstance(left, SidecarSource)
        if not self._outage:  # after an outage the time for retries is used up: the next source is asked once
            self._source_timeout.another()
        if reached or not isinstance(left, SidecarSource):
            self._causes.append(f"the {left.name} said: {cause}")
        if not lost or not isinstance(left, SidecarSource):
            return
        DEAD.found()
        COUNTS.add("fallback_total")
        hint = "" if reached or HUNG.known() else " Is it running? `forebay status` tells."
        warn_node(f"{self.name}: {cause}; going on without the sidecar, by {self._sources[0].name}.{hint}")
        time.sleep(random.uniform(0.0, self._limits.jitter_s))  # noqa: S311  # spreads a herd, keeps no secret

    def _is_back(self) -> bool:
        """Whether a sidecar that hung answers again while another source is in trouble. Then it becomes the first source, once for each
        stream.
        """
        if self._hung is None or self._returned or HUNG.known() or not turns():
            return False
        self._sources.insert(0, self._hung)
        self._hung, self._returned = None, True
        self._source_timeout.another()
        return True

    def waits_instead(self, error: LoaderError) -> bool:
        """Whether to wait for a sidecar that hung, before ``error`` of another source is raised."""
        way, self._hung, progress = self._hung, None, self._progress
        if way is None or (progress.length is not None and progress.position > progress.length):
            return False
        self._other = error.with_traceback(None)  # its traceback would keep this stream alive
        error.__cause__ = error.__context__ = None
        if _is_final(self._sources[0], error):
            self._bearing.at_most(self._limits.resume_s - HUNG.for_s)
        if not self._bearing.left_s:
            return False
        self._sources = [way]
        self._bearing.alone = self._bearing.began = True
        self._source_timeout.another()
        warn_node(f"{self.name}: {error}; waiting for the sidecar, which hung, for up to {self._bearing.left_s:.0f} s")
        return True

    def _no_way(self, left: ByteSource, cause: str, reached: bool) -> LoaderError:
        if isinstance(left, SidecarSource):
            cause = f"{cause}; waited {self._source_timeout.waited_s:.0f} s"
            if self._other is not None:
                self._causes.append(cause)
            kind = ShardReadError if reached else ProxyUnreachable  # it answered, so the trouble is at its origin
            return kind(f"shard {self.name}: {cause}; webdataset has no opener of its own for {self.scheme} URLs")
        return ShardReadError(f"shard {self.name}: {cause}; {left.name} was the last way to it")

    def failed(self, error: LoaderError) -> None:
        """The stream ends with ``error``: add the causes before it, and count it."""
        error.follows(self._causes)
        COUNTS.add("changed" if isinstance(error, ShardChanged) else "failed")


def _is_final(way: ByteSource, error: LoaderError) -> bool:
    """Whether the origin itself has refused the shard or does not have it. A sidecar could help only with its own credentials or from its
    cache.

    False if the shard was replaced: a sidecar may still have the version that was begun.
    """
    return isinstance(way, DirectSource) and isinstance(error, ShardReadError) and not isinstance(error, ShardChanged) and error.status > 0


def _sources(source: Source, reader: str, own_open: Optional[OwnOpener], limits: Limits, bearing: Bearing) -> list[ByteSource]:
    found: list[ByteSource] = [SidecarSource(source, reader, limits, bearing)]
    if source.url.scheme in ("http", "https"):
        found.append(DirectSource(source, limits))
    if own_open is not None:
        found.append(OpenerSource(source, own_open))
    return found
