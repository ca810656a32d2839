"""What an origin said or showed holds for a while: that a version is its own, that it refused, that bytes were wrong."""

from __future__ import annotations

import pytest
from support.house import FakeClock, shard_of

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.versions import freshness
from forebay_proxy.cache.versions.freshness import (
    MOST_SUSPECTS,
    NO_JOB_S,
    REFUSED_S,
    REMEMBERED_S,
    SPOILT_S,
    UNASKED_S,
    Freshness,
    RefusalCache,
    SuspectVersions,
)
from forebay_proxy.core.errors import DigestDiffers, OriginUnavailable, ShardForbidden, ShardNotFound
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Pin, PinKind, Version

A = "https://o/a.tar"


def entry_of(name: str = "https://o/set/a.tar") -> Entry:
    return Entry("k" * 64, shard_of(name), Version("etag:1", Pin(PinKind.ETAG, '"1"'), 10), DEFAULT_LAYOUT, ranged=True)


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


@pytest.mark.parametrize("error", [ShardForbidden("s", "no"), ShardNotFound("s", "no")])
def test_a_refusal_is_told_again_until_its_time_is_over(error: Exception) -> None:
    """To that credential, and for that shard."""
    clock = FakeClock()
    known = RefusalCache(clock)
    known.remember("s", "mac", error)  # type: ignore[arg-type]
    known.recall("s", "another")
    known.recall("t", "mac")
    with pytest.raises(type(error)):
        known.recall("s", "mac")
    clock.advance(REMEMBERED_S)
    known.recall("s", "mac")
    assert len(known) == 0


def test_trouble_is_no_refusal() -> None:
    """It may be over at once."""
    known = RefusalCache(FakeClock())
    known.remember("s", "", OriginUnavailable("s", "503"))
    known.recall("s", "")


def test_a_refusal_that_is_said_again_lasts_from_then_on() -> None:
    """And those before it still leave in the order of their ends."""
    clock = FakeClock()
    known = RefusalCache(clock)
    for name in "sts":
        known.remember(name, "", ShardNotFound(name, "no"))
        clock.advance(REMEMBERED_S / 4)
    clock.advance(REMEMBERED_S / 2)
    known.recall("t", "")
    with pytest.raises(ShardNotFound):
        known.recall("s", "")


def test_the_refusals_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up names cost no memory without end."""
    monkeypatch.setattr(freshness, "REMEMBERED_MOST", 2)
    known = RefusalCache(FakeClock())
    for name in "abc":
        known.remember(name, "", ShardNotFound(name, "no"))
    assert len(known) == 1


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_time_is_worth_a_second_fetch(clock: FakeClock) -> None:
    """The next is not, unless a good fetch or much time came between."""
    suspects = SuspectVersions(clock)
    assert [suspects.spoilt(A), suspects.spoilt(A), suspects.spoilt(A)] == [True, False, False]
    suspects.trusted(A)
    assert [suspects.spoilt(A), suspects.spoilt(A)] == [True, False]
    clock.advance(SPOILT_S + 1)
    assert suspects.spoilt(A)


def test_a_rotten_disk_does_not_count_against_the_origin(clock: FakeClock) -> None:
    """The ETag changes all the same."""
    suspects = SuspectVersions(clock)
    assert suspects.spoilt(A, by_origin=False)
    assert suspects.spoilt(A)
    assert suspects.count(A) == 2


def test_each_time_is_another_etag(clock: FakeClock) -> None:
    """Also after a good fetch: the old one was promised for wrong bytes."""
    suspects = SuspectVersions(clock)
    assert suspects.count(A) == 0
    for number in range(1, 4):
        suspects.spoilt(A)
        suspects.trusted(A)
        assert suspects.count(A) == number


def test_a_refusal_is_remembered_for_a_while(clock: FakeClock) -> None:
    """Then the shard is fetched once more."""
    suspects = SuspectVersions(clock)
    suspects.recall(A)
    suspects.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    with pytest.raises(DigestDiffers):
        suspects.recall(A)
    suspects.recall("https://o/b.tar")
    clock.advance(REFUSED_S + 1)
    suspects.recall(A)


def test_a_fetch_that_nobody_asked_for_is_refused_for_longer(clock: FakeClock) -> None:
    """However late it comes: it would cost the whole shard again."""
    suspects = SuspectVersions(clock)
    suspects.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    clock.advance(UNASKED_S - 1)
    with pytest.raises(DigestDiffers):
        suspects.recall(A, ahead=True)
    clock.advance(1)
    suspects.recall(A, ahead=True)


def test_names_are_bounded(clock: FakeClock) -> None:
    """The oldest is forgotten."""
    suspects = SuspectVersions(clock)
    for number in range(MOST_SUSPECTS + 10):
        suspects.spoilt(f"https://o/{number}")
    assert len(suspects._spoilt) == MOST_SUSPECTS
    assert suspects.count("https://o/0") == 0


def test_nothing_is_kept_of_who_was_refused_nor_for_ever(clock: FakeClock) -> None:
    """Each is told a copy; names that are refused no longer leave, and there is a bound on them."""
    suspects = SuspectVersions(clock)
    suspects.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    told = []
    for _ in range(3):
        with pytest.raises(DigestDiffers) as caught:
            suspects.recall(A)
        told.append(caught.value)
    assert len({id(error) for error in told}) == 3
    assert suspects._refused[A][0].__traceback__ is None
    for number in range(MOST_SUSPECTS + 10):
        suspects.refuse(f"{A}{number}", told[0])
        suspects.spoilt(f"{A}{number}")
    assert len(suspects._refused) == len(suspects._spoilt) == MOST_SUSPECTS
    clock.advance(max(UNASKED_S, SPOILT_S) + 1)
    suspects.expire()
    assert len(suspects._refused) == len(suspects._spoilt) == 0
