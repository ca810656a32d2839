"""Where readers hand in their plans: into ``Plans``, and the prefetcher is told."""

from __future__ import annotations

from forebay_proxy.events import Events, PlanChanged
from forebay_proxy.plan import Plans
from forebay_proxy.prefetch import Prefetcher
from forebay_proxy.shard import Shard
from forebay_proxy.wire.plan import ReaderName

__all__ = ["PlanDesk"]


class PlanDesk:
    """``PUT``, ``POST`` and ``DELETE`` of ``/v1/plans/…``."""

    def __init__(self, plans: Plans, prefetcher: Prefetcher, events: Events) -> None:
        self._plans = plans
        self._prefetcher = prefetcher
        self._events = events

    def replace(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        self._plans.replace(reader, shards, epoch, set_name)
        self._changed(reader, "replaced")

    def append(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        self._plans.append(reader, shards, epoch, set_name)
        self._changed(reader, "extended")

    def withdraw(self, reader: ReaderName) -> bool:
        withdrawn = self._plans.withdraw(reader)
        if withdrawn:
            self._changed(reader, "withdrawn")
        return withdrawn

    def _changed(self, reader: ReaderName, what: str) -> None:
        self._events.emit(PlanChanged(reader.job, what))
        self._prefetcher.wake()
