"""Origins whose backends name the same shard differently: how often to ask again for a version that one of them denied.

Behind one name may stand several servers that made up their ETags from inodes or copy times (Apache, nginx): the version that one names,
the next denies. A version that was denied and is then shown again is no replaced shard. So a denied one is asked for again a few times,
on another connection, and where that happens often the origin is *flapping*, and asked more patiently. A shard that really was replaced
costs those few questions before its readers are told.

One body without Range was tried instead, and is weaker: a short Content-Length of a 200 is believed, where a Content-Range contradicts it.
Bytes are never put together on the strength of this: every answer that is used names the very version that is being fetched.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginOddity

__all__ = ["VersionFlips"]

log = logging.getLogger("forebay")

# Denials in a row before it is believed, of an origin that was never seen to flap: 2 backends that answer by chance hide a version once in
# a million reads of a segment, 4 once in 300, and are known soon after. A real replacement is told 1.6 s later than it could be.
TRIES = 20
KNOWN_TRIES = 100  # and of one that does: 8 hide it once in 600,000, 16 once in 600
STEP_S = 0.01  # the n-th question comes after n of these, up to
LONGEST_PAUSE_S = 0.1
# Each return of a denied version adds one to its origin's score, each answer that was not denied takes a sixteenth of it away. Two backends
# that take turns by chance come to 16; one answer in 300 denied by a mistake on the way, or overtaken by a replacement, to 0.05.
FORGOTTEN = 1 / 16
FLAPS = 2.0
SUSPECT = 0.5
REMEMBERED_S = 3600.0  # after it last had that score; a mended origin is asked by ranges again
MOST_ORIGINS = 1024
MOST_NAMES = 4096
MOST_FORMER = 16  # versions of a shard: as many backends are told apart


class VersionFlips:
    """By origin, and by shard which versions it is said to have had. What ``former`` and ``scores`` do not name need not be told."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self._clock = clock
        self._events = events
        self.scores: OrderedDict[str, tuple[float, float]] = OrderedDict()  # origin -> score, until when it flaps
        self.former: OrderedDict[str, OrderedDict[tuple[str, int | None], None]] = OrderedDict()
        self._advised: set[str] = set()

    def known(self, origin: str) -> bool:
        """Whether ``origin`` flaps."""
        return self.scores.get(origin, (0.0, 0.0))[1] > self._clock()

    def suspected(self, origin: str) -> bool:
        """Whether a version came back at ``origin`` of late."""
        return self.known(origin) or self.scores.get(origin, (0.0, 0.0))[0] >= SUSPECT

    def denied(self, entry: Entry) -> float | None:
        """The origin says that it has not the version of ``entry``: seconds to wait before it is asked again; None: believe it."""
        entry.trust.denials += 1
        if entry.in_use.stale or entry.trust.denials > (KNOWN_TRIES if self.known(entry.origin) else TRIES):
            return None
        return STEP_S if self.known(entry.origin) else min(LONGEST_PAUSE_S, STEP_S * entry.trust.denials)

    def shown(self, entry: Entry) -> None:
        """The origin shows the version of ``entry``."""
        if entry.trust.denials:
            entry.trust.denials = 0
            self._returned(entry.origin)
        elif entry.origin in self.scores:
            score, until = self.scores[entry.origin]
            self.scores[entry.origin] = score * (1 - FORGOTTEN), until

    def gone(self, entry: Entry) -> None:
        """The version of ``entry`` is believed to be replaced."""
        if entry.version.identity:
            former = self.former.setdefault(entry.name, OrderedDict())
            former.pop((entry.version.identity, entry.version.length), None)
            former[entry.version.identity, entry.version.length] = None
            if len(former) > MOST_FORMER:
                former.popitem(last=False)
            self.former.move_to_end(entry.name)
            if len(self.former) > MOST_NAMES:
                self.former.popitem(last=False)

    def opened(self, entry: Entry) -> None:
        """The origin named the version of ``entry`` when it was asked which there is."""
        former = self.former.get(entry.name)
        version = entry.version.identity, entry.version.length
        if former is not None and version in former:
            replaced = version != next(reversed(former))  # else no other came between: one answer had contradicted another
            del former[version]
            if replaced:
                self._returned(entry.origin)

    def _returned(self, origin: str) -> None:
        self._events.emit(OriginOddity(origin, "version-returned"))
        score, until = self.scores.get(origin, (0.0, 0.0))
        score += 1
        self.scores[origin] = score, self._clock() + REMEMBERED_S if score >= FLAPS else until
        self.scores.move_to_end(origin)
        if len(self.scores) > MOST_ORIGINS:
            self._advised.discard(self.scores.popitem(last=False)[0])
        if self.known(origin) and origin not in self._advised:
            self._advised.add(origin)
            log.warning(
                "origin %s names a shard by one ETag (or date), then by another, then by the first, as several servers behind one name do: "
                "each part is asked for until the right one answers, which costs requests. Let all of them say the same: files copied with "
                "their times (rsync -t), then Apache 'FileETag MTime Size', nginx as it is",
                origin,
            )
