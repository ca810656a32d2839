"""What readers need of the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forebay_proxy.buffers import Buffers
from forebay_proxy.entry import Entry
from forebay_proxy.flights import Flight
from forebay_proxy.gate import Gate
from forebay_proxy.shard import Shard
from forebay_proxy.shelf import Shelf
from forebay_proxy.wire.plan import ReaderName

if TYPE_CHECKING:
    from forebay_proxy.reading import Reading

__all__ = ["Hall"]


class Hall(Protocol):
    """The cache, as a reading and what it holds see it."""

    buffers: Buffers
    shelf: Shelf
    gate: Gate

    def launch(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> Flight:
        """A flight for a missing segment; bypasses when no room can be granted."""
        ...

    def launch_ahead(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> bool:
        """The same for a segment beyond the position; False where that would need a bypass."""
        ...

    def flight_of(self, entry: Entry, index: int) -> Flight | None: ...

    def private_flight(self, entry: Entry, position: int, shard: Shard) -> Flight: ...

    def breadth(self, entry: Entry, bypassing: bool) -> int: ...

    def lease(self, entry: Entry, index: int) -> None: ...

    def release(self, entry: Entry, index: int) -> None: ...

    async def move(self, reading: Reading) -> None:
        """Put a reader that was given nothing yet into the shard as it is fetched once more."""
        ...

    def read_segment(self, entry: Entry, index: int) -> None:
        """A reader has begun a stored segment."""
        ...

    def hurry(self, entry: Entry, flight: Flight, need: float) -> None:
        """A flight is needed as soon as ``need`` says."""
        ...

    def boarded(self) -> None:
        """A reader follows a flight that others asked for."""
        ...

    def waited(self, reader: ReaderName | None, entry: Entry, seconds: float) -> None: ...
