"""Who uses one shard version now: readers inside, flights in the air, segments on their way out, and why it may be used no longer."""

from __future__ import annotations

import asyncio

from forebay_proxy.core.errors import ShardError
from forebay_proxy.transfer.flights import Flight

__all__ = ["VersionUse"]


class VersionUse:
    """What keeps a shard version here, and what ends it. Not thread-safe: the event loop's only."""

    __slots__ = ("departing", "fault", "flying", "leaving", "readers", "stale", "stream", "stuck_until")

    def __init__(self) -> None:
        self.readers = 0
        self.flying = 0  # flights that have not ended, and preparations that outlast theirs
        self.stream: Flight | None = None  # the one body of an origin without Range
        self.leaving: dict[int, asyncio.Future[None]] = {}  # segments being removed; resolved when that is done, or undone
        self.departing: dict[int, int] = {}  # their checksums, should they stay after all
        self.stuck_until = 0.0  # monotonic seconds: something could not be removed, which is not tried again before
        self.stale = False  # the origin has another version now: this one serves who is inside, then leaves
        self.fault: ShardError | None = None  # why nobody may read on

    def __repr__(self) -> str:
        return f"<VersionUse {self.readers} readers, {self.flying} flying, {len(self.leaving)} leaving{', stale' if self.stale else ''}>"

    @property
    def idle(self) -> bool:
        """Nobody is inside, nothing is in the air, nothing is being removed."""
        return not self.readers and not self.flying and not self.leaving

    @property
    def streaming(self) -> bool:
        """Whether the one body of an origin without Range is in the air."""
        return self.stream is not None and not self.stream.done
