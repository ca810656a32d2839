"""Tells the log when readers wait long, for which origin and why, while it lasts; and when it is over. Pure but for its logger."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from forebay_proxy.core.shard import shown
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.waits import Wait, Waits

__all__ = ["LONG_S", "LongWaits"]

LONG_S = 5.0  # what a person takes for stuck; a cold opening far away takes a second
AGAIN_S = 60.0  # an outage of an hour is sixty lines, each with its latest cause

log = logging.getLogger("forebay")


@dataclass(slots=True)
class _WaitTold:
    """An origin whose readers wait long. Moments are on the clock of ``Waits``."""

    since: float
    told_at: float
    readers: int


class LongWaits:
    """Looks once a second. One warning an origin and minute, however many readers wait for it, and however often they begin anew.

    Not thread-safe: the event loop's only.
    """

    def __init__(self, waits: Waits, board: OriginBoard, clock: Callable[[], float]) -> None:
        self._waits = waits
        self._board = board
        self._clock = clock
        self._told: dict[str, _WaitTold] = {}
        self._lately: dict[str, float] = {}  # origins whose readers went on, and when they were told of last

    def look(self) -> None:
        now = self._clock()
        long: dict[str, list[Wait]] = {}
        for wait in self._waits:
            if now - wait.since >= LONG_S:
                long.setdefault(wait.origin, []).append(wait)
        for origin, waits in long.items():
            self._tell(origin, waits, now)
        self._lately = {origin: at for origin, at in self._lately.items() if now - at < AGAIN_S}
        for origin in self._told.keys() - long.keys():
            told = self._told.pop(origin)
            self._lately[origin] = told.told_at
            log.info("readers of %s go on: up to %d at once waited, for %.0f s in all", origin, told.readers, now - told.since)

    def _tell(self, origin: str, waits: list[Wait], now: float) -> None:
        first = min(waits, key=lambda wait: wait.since)
        told = self._told.get(origin)
        if told is None and now - self._lately.get(origin, float("-inf")) < AGAIN_S:
            return  # slow, rather than down: each shard of hours may wait some seconds
        if told is not None:
            told.readers = max(told.readers, len(waits))
            if now - told.told_at < AGAIN_S:
                return
        self._told[origin] = _WaitTold(told.since if told else first.since, now, told.readers if told else len(waits))
        others = f" and {len(waits) - 1} more readers" if len(waits) > 1 else ""
        log.warning("shard %s%s: waiting for %.0f s; %s", shown(first.shard), others, now - first.since, why(first, self._board))


def why(wait: Wait, board: OriginBoard) -> str:
    """What keeps ``wait`` waiting, in words without any URL but the origin's."""
    error = board.error_since(wait.origin, wait.since)
    if error:
        return f"{wait.origin}: {error}; it is asked again"
    state = board.get(wait.origin)
    if state is None or state.last_answer_at is None:
        return f"{wait.origin} has not answered yet"
    return f"{wait.origin} is slow: no error, its bytes are on their way or wait for their turn"
