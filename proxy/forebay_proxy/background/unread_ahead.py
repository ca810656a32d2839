"""Bytes of declared sets that are stored or in the air and that no reader has read yet: never more than half of the cache."""

from __future__ import annotations

from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.versions import Versions
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.policy.plans.registry import PlanRegistry

__all__ = ["UnreadAhead"]

SPARE = 2  # segments a reader
RECOUNTED = 64  # fetched shards that are checked for having been read, before each further one


class UnreadAhead:
    """Bytes by shard name. Not thread-safe: the event loop's only."""

    def __init__(self, room: SpaceManager, versions: Versions, plans: PlanRegistry) -> None:
        self.full = False  # something was refused: nothing more is begun before the next look
        self.readers = 0  # at a time, lately
        self._room = room
        self._versions = versions
        self._plans = plans
        self._here: dict[str, int] = {}  # fetched and not read: shard name -> bytes
        self._here_bytes = 0  # their sum
        self._coming: dict[str, int] = {}  # shards that are coming -> how many bytes of each have been asked for

    def __repr__(self) -> str:
        return f"<UnreadAhead {len(self._coming)} shards coming, {len(self._here)} unread>"

    @property
    def bytes(self) -> int:
        """Bytes that are here or were asked for."""
        return self._here_bytes + sum(self._coming.values())

    @property
    def coming(self) -> int:
        """How many shards are coming."""
        return len(self._coming)

    def is_coming(self, name: str) -> bool:
        """Whether the shard is being fetched."""
        return name in self._coming

    def is_asked(self, name: str) -> bool:
        """Whether something of the shard has been asked for."""
        return bool(self._coming.get(name))

    def begin(self, name: str) -> None:
        """The shard is about to be fetched."""
        self._coming[name] = 0

    def ask(self, name: str, size: int) -> None:
        """``size`` bytes of the shard are about to be asked for."""
        self._coming[name] = self._coming.get(name, 0) + size

    def request(self, name: str, size: int) -> None:
        """As ``ask``. Raises ``CacheFull`` where that may not be; then nothing else is begun before the next look."""
        if (self.full and not self.is_asked(name)) or not self.may_have(size):
            self.full = True
            raise CacheFull("half of the cache holds what nobody has read yet")
        self.ask(name, size)

    def look_again(self, readers: int) -> None:
        """Once a second: there may be room now. ``readers``: how many there are."""
        self.full = False
        self.readers = max(readers, self.readers - 1)

    def is_held_back(self) -> bool:
        """Whether nothing more may be begun now."""
        return self.full or not self.may_have(self._room.layout.segment_bytes) or not self.has_room(self.readers)

    def end(self, name: str) -> None:
        """The fetch of the shard is over: what of it is here and unread counts from now on."""
        self._coming.pop(name, None)
        entry = self._versions.current.get(name)
        if entry is not None and entry.segments.unread:
            size = sum(entry.segments.bytes_of(index) for index in entry.segments.unread)
            self._here_bytes += size - self._here.pop(name, 0)
            self._here[name] = size

    def may_have(self, size: int) -> bool:
        """Whether ``size`` bytes more may be stored or in the air unread; bytes that plans prefetched count first."""
        room = self._room
        ahead, most = self.bytes + size, room.ledger.capacity_bytes // 2
        return ahead + room.read_ahead.unread_bytes <= most

    def has_room(self, readers: int) -> bool:
        """Whether there is room beside what so many readers need for their next shards.

        The readers' next shards may be others than those fetched here: without that room they would evict unread segments, which would be
        fetched twice.
        """
        segments = 1 + len(self._coming) + SPARE * max(1, readers)
        return self._room.admission.has_spare(self._room.layout.segment_bytes * segments)

    def recount(self) -> None:
        """Stop counting shards that were read or evicted; ``RECOUNTED`` of them each time."""
        for _ in range(min(RECOUNTED, len(self._here))):
            name = next(iter(self._here))
            size = self._here.pop(name)
            if self._is_ahead(name):
                self._here[name] = size
            else:
                self._here_bytes -= size

    def _is_ahead(self, name: str) -> bool:
        """Whether segments of the shard are unread and will be read: those that a reader skipped, or left unread, will not."""
        entry = self._versions.current.get(name)
        if entry is None or not entry.segments.unread:
            return False
        if entry.in_use.readers or self._plans.epochs.last_opened(name) is None:
            return True
        return any(not self._plans.epochs.has_read(key, name, self._plans.clock()) for key in self._plans.epochs.sets.containing(name))
