"""Room for what a count fetches: counted shards leave for the others, first those that were fetched for the count alone.

With ``--video`` a shard may leave before the scan of clips comes to it. That costs a second fetch of its clips and nothing else: the scan
reads through the sidecar. To keep such shards until they are scanned was left aside: a count faster than the scan would find no room.
"""

from __future__ import annotations

import time

from forebay_proxy.cli.client import SidecarClient

__all__ = ["PAUSE_S", "CountRoom"]

PAUSE_S = 2.0
_EVICTED_AT_ONCE = 1000  # names a request
_DISK_TRIES = 60  # in a row, while the sidecar tries whether its disk works again, which it does once a minute or sooner
_STATUS_S = 60.0  # a count of hours must not end because a busy sidecar takes its time


class CountRoom:
    """What of the cache may leave, by the names of shards."""

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
