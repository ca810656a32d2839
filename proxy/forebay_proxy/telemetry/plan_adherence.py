"""How well each reader keeps to its plan, and how long it has waited. Pure; a listener of events.

Kept by reader and not by plan: a reader announces a plan an epoch, and what it did in the one before is not forgotten with it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from forebay_proxy.core.events import Event, ReaderWaited, ShardOpened
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["MOST_READERS", "Followed", "PlanAdherence"]

MOST_READERS = 4096  # as many as may have plans; each costs about 200 bytes


@dataclass(slots=True)
class Followed:
    """One reader since it was first heard of: shards opened as planned, after passing some over, once more, unannounced; seconds waited."""

    planned: int = 0
    skipped: int = 0
    repeated: int = 0
    unplanned: int = 0
    waited_s: float = 0.0


class PlanAdherence:
    """All readers heard of; the one unheard for longest makes room. Not thread-safe: the event loop's only."""

    kinds = (ShardOpened, ReaderWaited)

    def __init__(self) -> None:
        self._readers: OrderedDict[ReaderName, Followed] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PlanAdherence {len(self._readers)} readers>"

    def listen(self, event: Event) -> None:
        if type(event) is ShardOpened:
            self._opened(event)
        elif type(event) is ReaderWaited and event.reader is not None:
            self._heard(event.reader).waited_s += event.seconds

    def of(self, reader: ReaderName) -> Followed:
        """What is known of ``reader``; zeros for one unheard of."""
        return self._readers.get(reader) or Followed()

    def _opened(self, fact: ShardOpened) -> None:
        followed = self._heard(fact.reader)
        match fact.how:
            case "planned":
                followed.planned += 1
            case "skipped":
                followed.skipped += 1
            case "repeated":
                followed.repeated += 1
            case "unplanned":
                followed.unplanned += 1

    def _heard(self, reader: ReaderName) -> Followed:
        followed = self._readers.get(reader)
        if followed is None:
            followed = self._readers[reader] = Followed()
            if len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)
        self._readers.move_to_end(reader)
        return followed
