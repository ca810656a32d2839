"""When reads without a name began, by folder."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.policy.plans import bursts
from forebay_proxy.policy.plans.bursts import PAUSE_S, Bursts


def test_reads_that_follow_each_other_are_one_burst() -> None:
    """A pause longer than that ends it; a reader that stays inside makes none."""
    clock = FakeClock()
    reads = Bursts(clock)
    began = clock()
    for _ in range(5):
        with reads.inside("g"):
            clock.now += 100.0
        clock.now += PAUSE_S
    assert reads.began("g") == began
    clock.now += 0.1
    with reads.inside("g"):
        assert reads.began("g") == clock()
    assert reads.began("other") < began


def test_folders_are_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The one that was read longest ago is forgotten; who leaves it does no harm."""
    monkeypatch.setattr(bursts, "MOST", 3)
    reads = Bursts(FakeClock())
    with reads.inside("0"):
        for number in range(1, 5):
            with reads.inside(str(number)):
                pass
    assert repr(reads) == "<Bursts of 3 folders>"
