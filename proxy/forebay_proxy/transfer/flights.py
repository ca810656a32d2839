"""Running fetches, single: one flight for a segment however many want it.

A flight is followed by its watermark, ``position``: every byte below it is readable, from the disk as far as ``on_disk.end``, from a memory
window beyond that. Readers *board*: a leaving reader cancels nothing in the air. Flights end by landing, by failing, or at shutdown. A
failed flight tells its readers and is forgotten: the board loses the flight before its readers wake, or a newcomer would board a dying one.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.errors import ForebayError, bare
from forebay_proxy.core.tasks import Broadcast, cancel_soon
from forebay_proxy.transfer.buffers import MemoryWindow
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.passengers import Passengers

__all__ = ["Flight", "Flights", "error_for_readers"]

log = logging.getLogger("forebay")


@dataclass(frozen=True, slots=True)
class Takeoff:
    """What a flight began with."""

    at: float  # of its maker's clock
    prefetch: bool  # no reader was waiting
    once: bool  # its bytes cannot be asked for a second time: nothing would tell another version's from these
    ahead_for: Hashable  # the reader whose plan asked for it, of a body that cannot be asked in pieces
    relay: bool  # of a part of a segment, which is not stored


@dataclass(slots=True)
class BytesOnDisk:
    """What a flight has brought to the disk: all below ``end``; what is from there to its watermark is in the window."""

    end: int
    file: object = None  # where; the shard may have got another one since
    segments: set[int] = field(default_factory=set)  # that are stored: such a one may have left again while the flight is on the board


class Flight:
    """One running fetch of ``[first, end)`` of a shard version; ``end`` None: to wherever the origin's body ends."""

    def __init__(
        self,
        first: int,
        end: int | None,
        need: float,
        began_at: float = 0.0,
        *,
        once: bool = False,
        ahead_for: Hashable = None,
        relay: bool = False,
    ) -> None:
        """``need`` is how soon its bytes are needed, see ``limiter``; the rest becomes its ``takeoff``."""
        self.takeoff = Takeoff(began_at, need >= DEMAND, once, ahead_for, relay)
        self.first = first
        self.end = end
        self.need = need
        self.position = first
        self.window = MemoryWindow(first)
        self.on_disk = BytesOnDisk(first)
        self.passengers = Passengers()
        self.error: BaseException | None = None
        self.done = False
        self.bypass = relay  # (part of) it passes through memory
        self._grown = Broadcast()

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "flying"
        return f"<Flight {self.first}-{self.end} at {self.position}, {len(self.passengers)} aboard, {state}>"

    # Readers

    @contextmanager
    def aboard(self, reader: object, position: int) -> Iterator[None]:
        """``reader`` follows this flight from ``position`` for the length of the ``with``."""
        self.passengers.board(reader, position)
        try:
            yield
        finally:
            self.passengers.leave(reader)
            if self.done:
                self.passengers.let_go()

    @property
    def has_come(self) -> bool:
        """Whether all of its bytes have arrived, and only have to be written."""
        return not self.done and self.end is not None and self.position >= self.end

    def in_file(self, position: int) -> bool:
        """Whether the byte at ``position`` (below the watermark) is in the file."""
        return position < self.on_disk.end

    def reaches(self, position: int) -> bool:
        """Whether everything from ``position`` on is, or will be, in the file or in the window."""
        return position >= self.window.start or self.window.start <= self.on_disk.end

    async def grown_beyond(self, position: int) -> bool:
        """Wait until the byte at ``position`` is readable; False if the flight ended before it (the shard's end).

        Raises the flight's error if it failed.
        """
        while self.position <= position:
            if self.error is not None:
                raise bare(self.error)
            if self.done:
                return False
            await self._grown.wait()
        return True

    # Landings

    def arrived(self, piece: bytes | memoryview) -> None:
        """``piece`` is readable, from memory; its buffer is not touched any more."""
        self.window.append(piece)
        self.position = self.window.end
        self._grown.send()

    def written(self, end: int) -> None:
        """Everything below ``end`` is in the file."""
        self.on_disk.end = end
        self.window.drop(end)

    async def pass_by(self, piece: bytes | memoryview, capacity_bytes: Callable[[], int]) -> None:
        """As ``arrived``, for bytes that will not be written: waits until the window has room, as its fastest reader moves on. Raises
        ``Abandoned`` when no reader is aboard.
        """
        self.bypass = True
        passengers, once = self.passengers, self.takeoff.once
        while True:
            if not passengers:
                await passengers.somebody()
            if self.window.room(len(piece), capacity_bytes(), passengers.pacemaker(once=once)):
                break
            await passengers.somebody_moves(once=once)
        self.arrived(piece)

    def ended(self, error: BaseException | None = None) -> None:
        """Stored, or failed with ``error``; every waiting reader is told."""
        self.error = None if error is None else bare(error)
        self.done = True
        self._grown.send()
        self.passengers.let_go()


class Flights:
    """The board: which flight brings which segment. Tasks belong to ``group``, which waits for them."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._board: dict[tuple[str, int], Flight] = {}
        # And what each flies, with its key, "" for a reader's private one.
        self._tasks: dict[asyncio.Task[None], tuple[str, Flight]] = {}
        self._ending = False

    def __len__(self) -> int:
        """How many flights are in the air: all on the board, and the private ones of readers."""
        return len(self._board) + sum(not key for key, _ in self._tasks.values())

    def find(self, key: str, index: int) -> Flight | None:
        """The flight on the board that brings segment ``index``; None without one."""
        return self._board.get((key, index))

    def of(self, key: str) -> list[Flight]:
        """The flights of one shard version on the board."""
        return [flight for (owner, _), flight in self._board.items() if owner == key]

    def all(self) -> list[Flight]:
        """All flights on the board; private ones are not."""
        return list(self._board.values())

    def post(self, key: str, index: int, flight: Flight) -> None:
        """Put a flight on the board without a task of its own (its opening flies it)."""
        self._board[key, index] = flight

    def take_off(self, flight: Flight, way: Coroutine[Any, Any, None], key: str = "", index: int = -1) -> None:
        """Fly ``way`` as a task; with a ``key`` the flight is on the board until it ends."""
        if key:
            self.post(key, index, flight)
        task = self._group.create_task(self._fly(flight, way, key, index), name=f"flight {key[:8]}/{index}")
        self._tasks[task] = key, flight
        task.add_done_callback(self._tasks.pop)
        if self._ending:
            cancel_soon(task)

    async def _fly(self, flight: Flight, way: Coroutine[Any, Any, None], key: str, index: int) -> None:
        error: BaseException | None = None
        try:
            await way
        except asyncio.CancelledError as cancelled:
            error = error_for_readers(cancelled)
            raise
        except ForebayError as failed:
            error = failed
        except Exception as failed:  # a fault of ours: its readers must be told all the same, and the log keeps it
            log.exception("a flight failed unexpectedly")
            error = failed
        finally:
            self.land(flight, error, key, index)

    def land(self, flight: Flight, error: BaseException | None, key: str = "", index: int = -1) -> None:
        """Take the flight off the board, then tell its readers."""
        if key and self._board.get((key, index)) is flight:
            del self._board[key, index]
        flight.ended(error)

    def cancel(self) -> None:
        """Shutdown: every flight ends now, and every later one at once; the task group waits for them."""
        self._ending = True
        self.drop(lambda key: False)

    async def ended(self, within_s: float, of: str | None = None) -> None:
        """Wait for those (``of`` one key) whose bytes have all come and are being written, and for no other."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for flight in self.all() if of is None else self.of(of):
                    if flight.has_come:
                        with suppress(Exception):  # its passengers have heard it
                            await flight.grown_beyond(flight.position)

    def arrived(self) -> set[str]:
        """Keys of what has come whole and is being written."""
        return {key for (key, _), flight in self._board.items() if flight.has_come}

    def drop(self, wanted: Callable[[str], bool]) -> None:
        """A drain: every flight ends now but those of a ``wanted`` key, those whose bytes have come and only have to be written, and
        private ones.
        """
        for task, (key, flight) in self._tasks.items():
            if self._ending or (key and not wanted(key) and not flight.has_come):
                cancel_soon(task)


def error_for_readers(error: BaseException) -> BaseException:
    """The error that the flight's readers get for ``error``: a cancellation is the flight's own, and would end their tasks."""
    return ForebayError("the sidecar is shutting down") if isinstance(error, asyncio.CancelledError) else error
