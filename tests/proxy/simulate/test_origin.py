"""The simulated line: what a body takes, alone and with others, and who is asked first."""

from __future__ import annotations

import pytest

from forebay_proxy.simulate import origin as simulated
from forebay_proxy.simulate.clock import SimulatedClock
from forebay_proxy.simulate.origin import DEMAND, SimulatedFlight, SimulatedLine, SimulatedOrigin
from forebay_proxy.transfer import limiter


class Sky:
    """An origin, and when each request landed."""

    def __init__(self, line: SimulatedLine) -> None:
        self.clock = SimulatedClock()
        self.origin = SimulatedOrigin(self.clock, line)
        self.landed: dict[str, float] = {}

    def ask(self, name: str, size: int, need: float = 0.0) -> SimulatedFlight:
        flight = SimulatedFlight(size, need, lambda: None, lambda: self.landed.setdefault(name, self.clock.now))
        self.origin.ask(flight)
        return flight

    def finish(self) -> dict[str, float]:
        while self.clock.step():
            pass
        return self.landed


def test_one_body_takes_latency_and_its_rate() -> None:
    """50 MB at 100 MB/s after 0.1 s."""
    sky = Sky(SimulatedLine(connection_bytes_s=100e6, latency_s=0.1))
    sky.ask("a", 50_000_000)
    assert sky.finish() == {"a": pytest.approx(0.6)}
    assert sky.origin.sent_bytes == 50_000_000


def test_bodies_share_the_line_evenly() -> None:
    """Two of unequal size on 100 MB/s: the small one ends at half rate, the large one goes on alone."""
    sky = Sky(SimulatedLine(bytes_s=100e6, latency_s=0.0))
    sky.ask("small", 10_000_000)
    sky.ask("large", 50_000_000)
    assert sky.finish() == {"small": pytest.approx(0.2), "large": pytest.approx(0.6)}


def test_a_late_body_slows_those_on_their_way() -> None:
    """From its first byte on, and no sooner."""
    sky = Sky(SimulatedLine(bytes_s=100e6, latency_s=0.1))
    sky.ask("first", 20_000_000)
    sky.clock.at(0.1, lambda: sky.ask("second", 20_000_000) and None)
    assert sky.finish() == {"first": pytest.approx(0.4), "second": pytest.approx(0.5)}


def test_no_limit_at_all() -> None:
    """Only latency is left."""
    sky = Sky(SimulatedLine(latency_s=0.1))
    sky.ask("a", 10**9)
    sky.ask("b", 10)
    assert sky.finish() == {"a": 0.1, "b": 0.1}


def test_demand_goes_before_prefetch() -> None:
    """With every slot taken the next goes to the nearest need, and a quarter takes demand only."""
    sky = Sky(SimulatedLine(bytes_s=8e6, latency_s=0.0, connections=4))
    sky.origin.bandwidth.requests = 8  # as if the line were not what ends first
    for number in range(8):
        sky.ask(f"ahead {number}", 1_000_000, DEMAND + number)
    assert sky.origin.in_flight == 3
    sky.ask("demanded", 1_000_000, 0.0)
    assert sky.origin.in_flight == 4
    sky.finish()
    assert sky.landed["demanded"] < sky.landed["ahead 3"]


def test_a_boarded_prefetch_overtakes() -> None:
    """Its need changed while it waited; it leaves once."""
    sky = Sky(SimulatedLine(bytes_s=8e6, latency_s=0.0, connections=2))
    flights = [sky.ask(f"{number}", 1_000_000, DEMAND + number) for number in range(6)]
    flights[5].need = 0.0
    sky.origin.ask(flights[5])
    landed = sky.finish()
    assert landed["5"] < landed["1"]
    assert sky.origin.sent_bytes == 6_000_000


def test_the_models_constants_are_the_limiters() -> None:
    """What the simulator had to copy from the asynchronous floor."""
    assert (simulated.DEMAND, simulated.START_SLOTS) == (limiter.DEMAND, limiter.START_SLOTS)
