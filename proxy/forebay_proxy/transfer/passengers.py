"""The readers aboard one flight: how far each has read, and which of them a body that passes through memory waits for.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, ExitStack

from forebay_proxy.core.errors import CacheError
from forebay_proxy.core.tasks import Broadcast

__all__ = ["Abandoned", "Passengers"]

STOPPED_S = 10.0  # a training step may take some seconds; a reader that stops for longer holds up no other reader
BOARDING_S = 2.0  # turns of a busy loop between an opening's answer and its reader's first step; nothing else waits for it


class Abandoned(CacheError):
    """No reader waits for the flight's bytes, and the disk has no room for them."""


class Passengers:
    """``followed``: a reader has boarded, though it may have gone on before the landing."""

    def __init__(self) -> None:
        self.followed = False
        self._positions: dict[object, int] = {}
        self._stopped: set[object] = set()  # readers that were waited for in vain
        self._moved = Broadcast()
        self._awaited = False  # a writer waits until one boards, moves or leaves; in most flights none does
        self._kept = ExitStack()

    def __len__(self) -> int:
        """How many readers are aboard."""
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<Passengers at {sorted(self._positions.values())}>"

    def board(self, reader: object, position: int) -> None:
        """``reader`` follows from ``position``, until it leaves."""
        self.followed = True
        self._positions[reader] = position
        self._tell()

    def leave(self, reader: object) -> None:
        del self._positions[reader]
        self._stopped.discard(reader)
        self._tell()

    def moved(self, reader: object, position: int) -> None:
        """A reader that is aboard has read up to ``position``."""
        self._positions[reader] = position
        if self._stopped:
            self._stopped.discard(reader)
        if self._awaited:
            self._tell()

    def _tell(self) -> None:
        self._awaited = False
        self._moved.send()

    async def _change(self) -> None:
        self._awaited = True
        await self._moved.wait()

    def pacemaker(self, *, once: bool) -> int:
        """The position of the reader for whom the window waits; there must be one.

        The fastest reader's; for a body that cannot be asked for twice (``once``), that of the slowest reader that still reads: a reader
        that falls out of the window could not be served any more.
        """
        waited_for = [position for reader, position in self._positions.items() if reader not in self._stopped] if once else []
        return min(waited_for) if waited_for else max(self._positions.values())

    async def somebody(self) -> None:
        """Wait ``BOARDING_S`` for a reader to board (the opening's reader hears of the flight one turn of the loop later). Raises
        ``Abandoned``.
        """
        try:
            async with asyncio.timeout(BOARDING_S):
                while not self._positions:
                    await self._change()
        except TimeoutError:
            raise Abandoned("the last reader left") from None

    async def somebody_moves(self, *, once: bool) -> None:
        """Wait until a reader boards, reads on or leaves; with ``once``, the slowest of several is waited for ``STOPPED_S`` at most."""
        if not once or len(self._positions) == 1:
            await self._change()
            return
        try:
            async with asyncio.timeout(STOPPED_S):
                await self._change()
        except TimeoutError:
            last = min(self._positions.values())
            self._stopped.update(reader for reader, position in self._positions.items() if position == last)

    def keep(self, what: AbstractContextManager[object]) -> None:
        """Hold ``what`` for those aboard, also when their flight has ended, until ``let_go``."""
        self._kept.enter_context(what)

    def let_go(self) -> None:
        """The flight has ended: what is kept for readers goes, once there is none."""
        if not self._positions:
            self._kept.close()
