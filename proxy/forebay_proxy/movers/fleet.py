"""The movers of one sidecar: started, looked after, replaced, and which of them takes the next body.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forebay_proxy.movers.link import MoverLink

__all__ = ["Fleet", "FleetLevels"]

log = logging.getLogger("forebay")

FIRST_PAUSE_S = 0.1  # one that was killed is back before its readers notice
LONGEST_PAUSE_S = 30.0  # one that cannot live here costs a process start in half a minute
HEALTHY_S = 60.0  # one that lived so long was not killed by what it is


@dataclass(frozen=True, slots=True)
class FleetLevels:
    """``wanted``: as the settings say; ``alive``: now; ``landings``: bodies in them now; ``moved_bytes``: since the start; ``restarts``:
    why movers were lost, and how often.
    """

    wanted: int
    alive: int
    landings: int
    moved_bytes: int
    restarts: dict[str, int]


class Fleet:
    """So many movers; none at all is a fleet too: then everything goes through the loop."""

    def __init__(
        self,
        count: int,
        *,
        start: Callable[[], Awaitable[MoverLink]] = MoverLink.start,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = count
        self._start = start
        self._sleep = sleep
        self._clock = clock
        self._links: list[MoverLink] = []
        self._past_bytes = 0  # moved by those that are gone
        self._restarts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Fleet {len(self._links)}/{self.count}, {sum(self._restarts.values())} restarts>"

    def pick(self) -> MoverLink | None:
        """The mover with the least to do; None where there is none now."""
        return min((link for link in self._links if not link.why_lost), key=lambda link: link.landings, default=None)

    def levels(self) -> FleetLevels:
        """For metrics and the status."""
        alive = [link for link in self._links if not link.why_lost]
        moved = self._past_bytes + sum(link.moved_bytes for link in self._links)
        return FleetLevels(self.count, len(alive), sum(link.landings for link in alive), moved, dict(self._restarts))

    async def run(self) -> None:
        """Keep them alive until cancelled; then they end."""
        async with asyncio.TaskGroup() as group:
            for place in range(self.count):
                group.create_task(self._keep(), name=f"mover {place}")

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            began = self._clock()
            why = await self._live()
            self._restarts[why] += 1
            pause_s = FIRST_PAUSE_S if self._clock() - began >= HEALTHY_S else pause_s
            log.warning("a mover process was lost (%s); its bodies go on through the event loop, a new one starts in %.1f s", why, pause_s)
            await self._sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _live(self) -> str:
        """One mover's life; why it ended."""
        try:
            link = await self._start()
        except OSError:
            return "start"
        self._links.append(link)
        try:
            return await link.ended()
        finally:
            self._links.remove(link)
            self._past_bytes += link.moved_bytes
