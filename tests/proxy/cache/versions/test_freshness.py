"""Which stored versions are read without asking the origin first."""

from __future__ import annotations

import pytest
from support.house import FakeClock, shard_of

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.versions.freshness import NO_JOB_S, Freshness
from forebay_proxy.core.shard import Pin, PinKind, Version


def entry_of(name: str = "https://o/set/a.tar") -> Entry:
    return Entry("k" * 64, shard_of(name), Version("etag:1", Pin(PinKind.ETAG, '"1"'), 10), ranged=True)


def test_a_comparison_holds_for_its_job() -> None:
    """However long it takes; another job asks anew."""
    clock, entry = FakeClock(), entry_of()
    freshness = Freshness("job", clock)
    freshness.checked(entry, "one")
    clock.advance(1e6)
    assert [freshness.is_fresh(entry, job) for job in ("one", "two")] == [True, False]


def test_without_a_job_it_holds_for_a_minute() -> None:
    """Within one burst of readings."""
    clock, entry = FakeClock(), entry_of()
    freshness = Freshness("job", clock)
    with freshness.bursts.inside(entry.group):
        freshness.checked(entry, "")
        clock.advance(NO_JOB_S / 2)
        assert freshness.is_fresh(entry, "")
        clock.advance(NO_JOB_S / 2)
        assert not freshness.is_fresh(entry, "")


def test_another_burst_asks_anew() -> None:
    """It may be another run."""
    clock, entry = FakeClock(), entry_of()
    freshness = Freshness("job", clock)
    with freshness.bursts.inside(entry.group):
        freshness.checked(entry, "")
    clock.advance(NO_JOB_S / 2)
    with freshness.bursts.inside(entry.group):
        assert not freshness.is_fresh(entry, "")


@pytest.mark.parametrize(("revalidate", "fresh"), [("never", True), (10.0, False), (11.0, True)])
def test_after_ten_seconds(revalidate: str | float, *, fresh: bool) -> None:
    """By the clock, whichever job asks; never means never."""
    clock, entry = FakeClock(), entry_of()
    freshness = Freshness(revalidate, clock)
    freshness.checked(entry, "one")
    clock.advance(10.0)
    assert freshness.is_fresh(entry, "two") == fresh


def test_what_can_never_change_is_fresh() -> None:
    """A commit names its bytes."""
    entry = entry_of("hf://datasets/o/n@0123456789abcdef0123456789abcdef01234567/a.tar")
    assert Freshness(0.0, FakeClock()).is_fresh(entry, "")


def test_a_silent_origin_is_left_alone_for_a_minute() -> None:
    """And no other is."""
    clock = FakeClock()
    freshness = Freshness("job", clock)
    freshness.silenced("https://o")
    assert [freshness.is_silent(origin) for origin in ("https://o", "https://p")] == [True, False]
    clock.advance(NO_JOB_S)
    assert not freshness.is_silent("https://o")
