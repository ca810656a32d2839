"""How many requests in the air one origin's line is worth, and how many ranges of one reader. Pure.

What is under way = rate x time under way (Little 1961). More than twice that brings no byte sooner, it only divides the line, and then
every body takes long, also the one a reader waits for. What the estimate gains: on a line of 1.1 times the need, one, two or four readers
keep an accelerator 98 % busy, with the slots of the limiter alone 72, 80 and 89 % (simulated). An origin that answers every request gives
those slots no reason to be fewer, however thin its line is.

While the line is shared no single body tells its rate. So it is written down what came in all while so many requests were in the air. The
*knee* is the smallest number of requests that brought as much as any number did: below it each further request adds bytes, beyond it
requests share the line (BBR looks for the same point of a path: Cardwell et al. 2016). Fewer are tried until less comes, and from then on
twice the knee is allowed: where that brings more, the knee is further up, and so on. Where fewer cannot be tried, as readers ask for so
many by themselves, more are, until it is known what so many bring.

The ranges of one reader follow from the rate of one connection. Object stores give a connection tens of MB/s, and sixteen of them fill a
loader's need. At an origin that is near, further ranges bring no byte sooner, and leave the processor's cache between being received,
written and sent (measured on loopback: 0.35-0.47 GB/s with sixteen ranges, 0.47-0.79 with two).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

__all__ = ["BandwidthEstimate", "ConnectionRate"]

FEWEST = 4  # whatever was measured: two on the line, and two on their way to it
UNKNOWN = 2  # before anything was measured, 0.2 s: so many of each reader are asked for by itself
WINDOW_S = 0.15  # two round trips: the bytes under way and the bytes that came are compared over so long
ENOUGH_BYTES = 2 * 2**20  # in a window: a quarter of a segment,
ENOUGH_BODIES = 4  # or so many that are smaller
PROOF = 2  # windows in which fewer brought less: one may have had a gap of its own
FORCED = 4  # requests beyond what is allowed: fewer cannot be tried, readers ask for so many by themselves
TELLING = 1.4  # times the knee: what so many bring tells whether they add or share
NEWEST = 5  # windows of a number whose median counts; after a pause, bytes that waited come at twice the line's rate
CERTAIN = 3  # windows, and no single one decides what a number brings
OLD_S = 20.0  # what was measured so long ago is tried anew
SAME = 0.8  # of the best: as much as it; single windows are 15 % off
CHANGED = 0.5  # of what fewer requests brought: it is another line now
MOST_RANGES = 16  # at 50 MB/s a connection 16 ranges make 0.8 GB/s; more only delays the nearest
FEW_RANGES = 2  # the next segment is in the air while one is read
FAST_BYTES_S = 100e6  # more than the 50-90 MB/s object stores give a connection: such an origin is near
WEIGHT = 0.5  # of the newest figure: two shards to notice that an origin became slow
LEAST_BYTES = 2**20  # a smaller body says more about its first byte than about its rate
ALONE = 2  # a figure counts only if at most so many requests shared the origin: else it tells of the sharing


@dataclass(frozen=True, slots=True)
class _Seen:
    """What came while so many requests were in the air: bytes a second in the newest windows, and when last."""

    rates: tuple[float, ...]
    at: float

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def windows(self) -> int:
        return len(self.rates)


class BandwidthEstimate:
    """One origin's line. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self.requests = UNKNOWN  # in the air, all together, that are worth having
        self.came_at = 0.0  # when the last bytes were here
        self._rates: dict[int, _Seen] = {}  # requests in the air -> what came meanwhile
        self._knee = 0
        self._forced = 0  # requests beyond what was allowed, since the knee is there
        self._in_air = 0
        self._began_at = 0.0  # this window
        self._looked_at = 0.0
        self._area = 0.0  # of this window: requests x seconds
        self._came = 0  # and bytes
        self._bodies = 0

    def __repr__(self) -> str:
        rates = ", ".join(f"{count}: {seen.rate / 1e6:.0f}" for count, seen in sorted(self._rates.items()))
        return f"<BandwidthEstimate {self._in_air}/{self.requests} requests, MB/s by requests {{{rates}}}>"

    def asked(self, now: float) -> None:
        """A request leaves."""
        if not self._in_air:
            self._begin(now)
        self._look(now)
        self._forced += self._in_air >= self.requests
        self._in_air += 1

    def came(self, size: int, now: float) -> None:
        """Some bytes are here."""
        self._came += size
        self.came_at = now

    def ended(self, now: float) -> None:
        """A request has come to its end, or the line is not what it waits for any more."""
        self._bodies += 1
        self._look(now)
        self._in_air -= 1

    def _begin(self, now: float) -> None:
        self._began_at = self._looked_at = now
        self._area, self._came, self._bodies = 0.0, 0, 0

    def _look(self, now: float) -> None:
        self._area += self._in_air * (now - self._looked_at)
        self._looked_at = now
        if not self._came:  # the way to the first byte is no part of what the line carries
            self._begin(now)
        seconds = now - self._began_at
        if seconds >= WINDOW_S and (self._came >= ENOUGH_BYTES or self._bodies >= ENOUGH_BODIES):
            self._note(max(1, round(self._area / seconds)), self._came / seconds, now)
            self._begin(now)

    def _note(self, count: int, rate: float, now: float) -> None:
        known = self._rates.get(count)
        seen = _Seen((*(known.rates if known else ()), rate)[-NEWEST:], now)
        lower = [fewer.rate for number, fewer in self._rates.items() if number <= count]
        if seen.windows >= PROOF and any(seen.rate < CHANGED * fewer for fewer in lower):
            self._rates = {}
        self._rates = {number: other for number, other in self._rates.items() if now - other.at < OLD_S} | {count: seen}
        self.requests = self._worth()

    def _worth(self) -> int:
        certain = [seen.rate for seen in self._rates.values() if seen.windows >= CERTAIN]
        least = SAME * max(certain or (seen.rate for seen in self._rates.values()))
        knee = min(count for count, seen in self._rates.items() if seen.rate >= least)
        if knee != self._knee:
            self._knee, self._forced = knee, 0
        if knee < FEWEST or any(self._proves(count, knee) for count in self._rates):
            return max(FEWEST, 2 * knee)
        if self._forced < FORCED or any(seen.windows >= CERTAIN for count, seen in self._rates.items() if count >= TELLING * knee):
            return max(1, knee * 2 // 3)
        return knee + max(2, (knee + 1) // 2)

    def _proves(self, count: int, knee: int) -> bool:
        """Whether ``count`` requests, not much fewer than ``knee``, were seen to bring less; one window in which each brought less may be a
        gap of its own."""
        fewer = self._rates[count]
        return knee <= 2 * count < 2 * knee and (fewer.windows >= PROOF or fewer.rate * knee >= SAME * self._rates[knee].rate * count)


class ConnectionRate:
    """One origin's rate per connection. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self.connection_bytes_s: float | None = None
        self.ranges = MOST_RANGES  # how many one reader should have in the air

    def __repr__(self) -> str:
        rate = "?" if self.connection_bytes_s is None else f"{self.connection_bytes_s / 1e6:.0f}"
        return f"<ConnectionRate {rate} MB/s a connection, {self.ranges} ranges>"

    def measured(self, size: int, seconds: float, company: int) -> None:
        """A body brought ``size`` bytes in ``seconds``, while ``company`` requests (it included) were in the air."""
        if size < LEAST_BYTES or company > ALONE:
            return
        newest = size / max(seconds, 1e-6)
        before = newest if self.connection_bytes_s is None else self.connection_bytes_s
        self.connection_bytes_s = before + WEIGHT * (newest - before)
        self.ranges = FEW_RANGES if self.connection_bytes_s >= FAST_BYTES_S else MOST_RANGES
