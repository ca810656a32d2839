"""The readers that wait for bytes: for which, and since when: counted while a wait lasts, not only once it is over. Pure.

A reader waits in two places: for an origin's first answer (an *opening*, all its retries included) and for bytes inside a shard. Both are
reader wait. A wait of five minutes must not be a zero for five minutes, so ``look``, once a second, counts what every wait has grown by;
the end of a wait counts the rest. The sum of all ``ReaderWaited`` is therefore right at every second, and exact at the end.

A reader that waits in vain asks again, as the loader does after 30 s without a byte. To whoever asks since when, that is one wait.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import ReaderWaited
from forebay_proxy.core.shard import shown
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["LONG_S", "OPENING", "READING", "LongWaits", "Wait", "Waits"]


OPENING, READING = "opening", "reading"
MINUTE_S = 60
AGAIN_S = 10.0  # a reader that asks again does so after a pause of a second or two


@dataclass(slots=True)
class Wait:
    """One reader's wait. Moments are on the clock of ``Waits``; ``shard`` is a name, not for logs as it is.

    ``since``: when the reader began to wait for that shard; ``asked_at``: when it asked this time.
    """

    reader: ReaderName | None
    shard: str
    origin: str
    what: str  # OPENING or READING
    since: float
    asked_at: float
    counted_until: float

    @property
    def seconds(self) -> float:
        """How long it had lasted when it was counted last; once it is over, all of it."""
        return self.counted_until - self.asked_at


class Waits:
    """The waits of now, and what share of the last minute the readers waited."""

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock
        self._now: dict[int, Wait] = {}
        self._in_vain: dict[tuple[ReaderName | None, str], tuple[float, float]] = {}  # waits of late: since when, and when they ended
        self._waited_s = 0.0  # since the last look
        self._minute: deque[tuple[float, int]] = deque(maxlen=MINUTE_S)  # by look: seconds waited, readers there were

    def __repr__(self) -> str:
        return f"<Waits {len(self._now)} now>"

    def __len__(self) -> int:
        return len(self._now)

    def __iter__(self) -> Iterator[Wait]:
        """The waits of now, the longest first."""
        return iter(tuple(self._now.values()))

    def openings(self) -> int:
        """How many readers wait for an origin's first answer."""
        return sum(wait.what == OPENING for wait in self._now.values())

    def readers(self) -> set[ReaderName | None]:
        """Who waits now; None: somebody without a name."""
        return {wait.reader for wait in self._now.values()}

    def seconds(self, wait: Wait) -> float:
        """How long ``wait`` has lasted by now, all times that its reader has asked in vain included."""
        return self._clock() - wait.since

    @contextmanager
    def waiting(self, reader: ReaderName | None, shard: str, origin: str, what: str) -> Iterator[Wait]:
        """``reader`` waits for the length of the ``with``."""
        now = self._clock()
        wait = Wait(reader, shard, origin, what, self._since(reader, shard, now), now, now)
        self._now[id(wait)] = wait
        try:
            yield wait
        except BaseException:
            self._in_vain[reader, shard] = wait.since, self._clock()
            raise
        finally:
            del self._now[id(wait)]
            self._count(wait)

    def look(self, readers: int) -> None:
        """Once a second: count what the waits have grown by. ``readers``: how many there are, waiting or not."""
        for wait in self._now.values():
            self._count(wait)
        now = self._clock()
        self._in_vain = {place: moments for place, moments in self._in_vain.items() if now - moments[1] < AGAIN_S}
        self._minute.append((self._waited_s, readers))
        self._waited_s = 0.0

    def share(self) -> float | None:
        """The part of their time that readers of the last minute waited, 0 to 1; None where no reader read in that minute."""
        readers = sum(count for _, count in self._minute)
        return min(1.0, sum(seconds for seconds, _ in self._minute) / readers) if readers else None

    def _since(self, reader: ReaderName | None, shard: str, now: float) -> float:
        """Since when ``reader`` has waited for ``shard``: that it has left its last question may be noticed only after its next one."""
        same = [wait.since for wait in self._now.values() if (wait.reader, wait.shard) == (reader, shard)] if reader else []
        since, ended_at = self._in_vain.pop((reader, shard), (now, now))
        return min([*same, since if now - ended_at < AGAIN_S else now])

    def _count(self, wait: Wait) -> None:
        now = self._clock()
        seconds, wait.counted_until = now - wait.counted_until, now
        if seconds > 0:
            self._waited_s += seconds
            self._events.emit(ReaderWaited(wait.reader.job if wait.reader else "", seconds, wait.reader))


# Tells the log when readers wait long, for which origin and why, while it lasts; and when it is over. Pure but for its logger.
LONG_S = 5.0  # what a person takes for stuck; a cold opening far away takes a second
TELL_AGAIN_S = 60.0  # an outage of an hour is sixty lines, each with its latest cause

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
        self._lately = {origin: at for origin, at in self._lately.items() if now - at < TELL_AGAIN_S}
        for origin in self._told.keys() - long.keys():
            told = self._told.pop(origin)
            self._lately[origin] = told.told_at
            log.info("readers of %s go on: up to %d at once waited, for %.0f s in all", origin, told.readers, now - told.since)

    def _tell(self, origin: str, waits: list[Wait], now: float) -> None:
        first = min(waits, key=lambda wait: wait.since)
        told = self._told.get(origin)
        if told is None and now - self._lately.get(origin, float("-inf")) < TELL_AGAIN_S:
            return  # slow, rather than down: each shard of hours may wait some seconds
        if told is not None:
            told.readers = max(told.readers, len(waits))
            if now - told.told_at < TELL_AGAIN_S:
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
