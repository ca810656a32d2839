"""Running fetches, single: one flight for a segment however many want it.

A flight is followed by its watermark, ``position``: every byte below it is readable, from the disk as far as ``stored_end``, from a memory
window beyond that. Readers *board*: a leaving reader cancels nothing in the air. Flights end by landing, by failing, or at shutdown. A
failed flight tells those who wait now and is forgotten: it is off the board before they wake, or a newcomer would board a dying one.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

from forebay_proxy.core.errors import CacheError, ForebayError, bare
from forebay_proxy.core.tasks import Broadcast, cancel_soon
from forebay_proxy.transfer.buffers import MemoryWindow
from forebay_proxy.transfer.limiter import DEMAND

__all__ = ["Abandoned", "Flight", "Flights", "error_for_readers"]

log = logging.getLogger("forebay")

STOPPED_S = 10.0  # a training step may take some seconds; a reader that stops for longer holds up no other reader
BOARDING_S = 2.0  # turns of a busy loop between an opening's answer and its reader's first step; nothing else waits for it


class Abandoned(CacheError):
    """No reader waits for the flight's bytes, and the disk has no room for them."""


class Flight:
    """One running fetch of ``[first, end)`` of a shard version; ``end`` None: to wherever the origin's body ends."""

    def __init__(self, first: int, end: int | None, need: float, began_at: float = 0.0) -> None:
        self.began_at = began_at
        self.first = first
        self.end = end
        self.need = need
        self.position = first
        self.stored_end = first  # bytes below it are in the file, those from it to ``position`` in the window
        self.stored: set[int] = set()  # segments it has stored: such a one may have left again while the flight is still on the board
        self.window = MemoryWindow(first)
        self.file: object = None  # where what is below ``stored_end`` was written; the shard may have got another one since
        self.error: BaseException | None = None
        self.done = False
        self.bypass = False  # (part of) it passes through memory
        self.once = False  # its bytes cannot be asked for a second time: nothing would tell another version's from these
        self.prefetch = need >= DEMAND  # no reader was waiting when it took off
        self.ahead_for: Hashable = None  # the reader whose plan asked for it, of a body that cannot be asked in pieces
        self.followed = False  # a reader has boarded it, though it may have gone on before the landing
        self._readers: dict[object, int] = {}
        self._stopped: set[object] = set()  # readers that were waited for in vain
        self._kept = ExitStack()  # what its window takes of the memory budget: until it has ended and the last reader has left
        self._grown = Broadcast()
        self._moved = Broadcast()

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.done else "flying"
        return f"<Flight {self.first}-{self.end} at {self.position}, {len(self._readers)} aboard, {state}>"

    # Readers

    @contextmanager
    def aboard(self, reader: object, position: int) -> Iterator[None]:
        """``reader`` follows this flight from ``position`` for the length of the ``with``."""
        self.followed = True
        self._readers[reader] = position
        self._moved.send()
        try:
            yield
        finally:
            del self._readers[reader]
            self._stopped.discard(reader)
            self._moved.send()
            self._over()

    def moved(self, reader: object, position: int) -> None:
        """A boarded reader has read up to ``position``."""
        self._readers[reader] = position
        self._stopped.discard(reader)
        if self.bypass:
            self._moved.send()

    @property
    def has_come(self) -> bool:
        """Whether all of its bytes have arrived, and only have to be written."""
        return not self.done and self.end is not None and self.position >= self.end

    @property
    def aboard_count(self) -> int:
        """How many readers are aboard."""
        return len(self._readers)

    @property
    def waiting_count(self) -> int:
        return len(self._grown)

    def in_file(self, position: int) -> bool:
        """Whether the byte at ``position`` (below the watermark) is in the file."""
        return position < self.stored_end

    def reaches(self, position: int) -> bool:
        """Whether everything from ``position`` on is, or will be, in the file or in the window."""
        return position >= self.window.start or self.window.start <= self.stored_end

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
        self.stored_end = end
        self.window.drop(end)

    async def pass_by(self, piece: bytes | memoryview, capacity_bytes: Callable[[], int]) -> None:
        """As ``arrived``, for bytes that will not be written: waits until the window has room, as its fastest reader moves on. Raises
        ``Abandoned`` when no reader is aboard.
        """
        self.bypass = True
        while True:
            if not self._readers:
                await self._somebody()
            if self.window.room(len(piece), capacity_bytes(), self._pacemaker()):
                break
            await self._somebody_moves()
        self.arrived(piece)

    def _pacemaker(self) -> int:
        """The position of the reader for whom the window waits.

        The fastest reader's; for a body that cannot be asked for twice, that of the slowest reader that still reads: a reader that falls
        out of the window could not be served any more.
        """
        waited_for = [position for reader, position in self._readers.items() if reader not in self._stopped] if self.once else []
        return min(waited_for) if waited_for else max(self._readers.values())

    async def _somebody_moves(self) -> None:
        if not self.once or len(self._readers) == 1:
            await self._moved.wait()
            return
        try:
            async with asyncio.timeout(STOPPED_S):
                await self._moved.wait()
        except TimeoutError:
            last = min(self._readers.values())
            self._stopped.update(reader for reader, position in self._readers.items() if position == last)

    async def _somebody(self) -> None:
        """Wait ``BOARDING_S`` for a reader to board (the opening's reader hears of the flight one turn of the loop later). Raises
        ``Abandoned``.
        """
        try:
            async with asyncio.timeout(BOARDING_S):
                while not self._readers:
                    await self._moved.wait()
        except TimeoutError:
            raise Abandoned("the last reader left") from None

    def ended(self, error: BaseException | None = None) -> None:
        """Stored, or failed with ``error``; every waiting reader is told."""
        self.error = None if error is None else bare(error)
        self.done = True
        self._grown.send()
        self._over()

    def keep(self, what: AbstractContextManager[object]) -> None:
        """Hold ``what`` until the flight has ended and the last reader has left it: its window stays until then."""
        self._kept.enter_context(what)

    def _over(self) -> None:
        if self.done and not self._readers:
            self._kept.close()


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
