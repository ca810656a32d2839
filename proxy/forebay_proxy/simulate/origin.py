"""A simulated origin: a latency, a rate per connection, a rate for all, and slots that grow as the limiter's do. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_proxy.simulate.clock import SimulatedClock
from forebay_proxy.transfer.bandwidth import BandwidthEstimate

__all__ = ["DEMAND", "SimulatedFlight", "SimulatedLine", "SimulatedOrigin"]

# As in limiter.py, which is of the asynchronous floor (a test compares them).
WAITED = 1.0
DEMAND = 1_000.0
START_SLOTS = 16
AHEAD_WAITING = 2
LEAST_LEFT_BYTES = 1e-3  # rounding: a body with less than this to come has ended


@dataclass(frozen=True, slots=True)
class SimulatedLine:
    """What lies between the cache and the bytes. Rates in bytes a second; None: no limit but the other one."""

    bytes_s: float | None = None
    connection_bytes_s: float | None = None
    latency_s: float = 0.03  # a request to an object store of the same region
    connections: int = 64  # the most requests at once; --origin-connections

    def rate(self, bodies: int) -> float:
        """Bytes a second that each of ``bodies`` gets."""
        rates = [self.connection_bytes_s] if self.connection_bytes_s else []
        if self.bytes_s:
            rates.append(self.bytes_s / bodies)
        return min(rates, default=float("inf"))


@dataclass(slots=True, eq=False)
class SimulatedFlight:
    """One request for one segment: ``answered`` when its first byte is there, ``landed`` when its last one is."""

    size: int
    need: float
    answered: Callable[[], None]
    landed: Callable[[], None]
    began_at: float | None = None  # when it left; None while it waits for a slot
    answered_at: float | None = None
    company: int = field(default=0)  # requests in the air when it left, itself included


class SharedLine:
    """The bodies on a line, which share it evenly, each at most at its connection's rate.

    As every body then moves at the same rate at any moment, one running sum (``_moved``: bytes that each body on the line has got since the
    start) tells when each ends: at the sum it began with, plus its size. Times are of the simulated clock, in seconds.
    """

    def __init__(self, line: SimulatedLine) -> None:
        self._line = line
        self._bodies: list[tuple[float, int, SimulatedFlight]] = []  # (the sum at which it ends, order, body)
        self._moved = 0.0
        self._moved_at = 0.0

    def __len__(self) -> int:
        """How many bodies are on the line."""
        return len(self._bodies)

    def move(self, now: float) -> int:
        """Bring the sum up to ``now``; the bytes that all bodies got meanwhile."""
        before, elapsed, self._moved_at = self._moved, now - self._moved_at, now
        if not self._bodies:
            return 0
        rate = self._line.rate(len(self._bodies))
        self._moved = self._bodies[0][0] if rate == float("inf") else self._moved + elapsed * rate
        return int((self._moved - before) * len(self._bodies))

    def begin(self, flight: SimulatedFlight, order: int) -> None:
        """Its first byte is there. ``order``: of those that end together."""
        heapq.heappush(self._bodies, (self._moved + flight.size, order, flight))

    def left_s(self) -> float:
        """Until the first body ends; there must be one."""
        return max(0.0, self._bodies[0][0] - self._moved) / self._line.rate(len(self._bodies))

    def end(self) -> list[SimulatedFlight]:
        """Take off the first body, which has come whole, and whatever else ends at the same moment."""
        ended: list[SimulatedFlight] = []
        while self._bodies and (not ended or self._bodies[0][0] <= self._moved + LEAST_LEFT_BYTES):
            ended.append(heapq.heappop(self._bodies)[2])
        return ended


class SimulatedOrigin:
    """Answers requests in the order of their need."""

    def __init__(self, clock: SimulatedClock, line: SimulatedLine) -> None:
        self.line = line
        self.sent_bytes = 0
        self.in_flight = 0
        self.bandwidth = BandwidthEstimate()
        self._in_air: dict[int, SimulatedFlight] = {}
        self._clock = clock
        self._slots = float(min(START_SLOTS, line.connections))
        self._waiting: list[tuple[float, int, SimulatedFlight]] = []
        self._serial = 0
        self._bodies = SharedLine(line)
        self._turn = 0  # only the newest timer counts

    def __repr__(self) -> str:
        return f"<SimulatedOrigin {self.in_flight}/{int(self._slots)} in flight, {len(self._waiting)} waiting>"

    @property
    def ahead(self) -> int:
        """How many requests ahead of need are worth having at once, as ``Limiter.ahead`` has it."""
        slots = max(1, int(self._slots) - max(1, int(self._slots) // 4))
        return min(slots + max(2, slots // 2), self.bandwidth.requests + AHEAD_WAITING)

    # Who may ask

    def ask(self, flight: SimulatedFlight) -> None:
        """Take the request; also called again when its need has changed."""
        self._serial += 1
        heapq.heappush(self._waiting, (flight.need, self._serial, flight))
        self._let_go()

    def _let_go(self) -> None:
        while self._waiting:
            need, _, flight = self._waiting[0]
            if flight.began_at is not None or flight.need != need:
                heapq.heappop(self._waiting)  # it left, or stands elsewhere by now
            elif self.in_flight < self._share(flight) and not self._held_back(flight):
                heapq.heappop(self._waiting)
                self._leave(flight)
            else:
                return

    def _share(self, flight: SimulatedFlight) -> int:
        reserved = 0 if flight.need < DEMAND else max(1, int(self._slots) // 4)
        return max(1, int(self._slots) - reserved)

    def _held_back(self, flight: SimulatedFlight) -> bool:
        """As ``Limiter._held_back``."""
        if flight.need < WAITED or self.in_flight < self.bandwidth.requests:
            return False
        waited = sum(each.need < WAITED for each in self._in_air.values())
        return not (flight.need < DEMAND and self.in_flight < START_SLOTS and waited < 2)

    def _leave(self, flight: SimulatedFlight) -> None:
        self._move()
        self.bandwidth.asked(self._clock.now)
        self.in_flight += 1
        self._in_air[id(flight)] = flight
        flight.began_at, flight.company = self._clock.now, self.in_flight
        self._clock.at(self._clock.now + self.line.latency_s, lambda: self._answer(flight))

    # What comes

    def _answer(self, flight: SimulatedFlight) -> None:
        flight.answered_at = self._clock.now
        if self.in_flight >= self._share(flight) - 1:
            self._slots = min(float(self.line.connections), self._slots + 1.0 / self._slots)
        self._move()
        self._serial += 1
        self._bodies.begin(flight, self._serial)
        self._set_timer()
        flight.answered()

    def _move(self) -> None:
        now, count = self._clock.now, len(self._bodies)
        came = self._bodies.move(now)
        if count:
            self.bandwidth.came(came, now)

    def _set_timer(self) -> None:
        self._turn += 1
        if self._bodies:
            turn = self._turn
            self._clock.at(self._clock.now + self._bodies.left_s(), lambda: self._end(turn))

    def _end(self, turn: int) -> None:
        """The first body has come whole, and whatever else ends at the same moment."""
        if turn != self._turn:
            return
        self._move()
        ended = self._bodies.end()
        self._set_timer()
        for flight in ended:
            self.bandwidth.ended(self._clock.now)
            del self._in_air[id(flight)]
            self.in_flight -= 1
            self.sent_bytes += flight.size
            flight.landed()
        self._let_go()
