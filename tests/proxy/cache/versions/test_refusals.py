"""What is remembered of shards that an origin refused, or whose bytes were wrong."""

from __future__ import annotations

import pytest
from support.house import FakeClock

from forebay_proxy.cache.versions import refusals
from forebay_proxy.cache.versions.refusals import (
    MOST_SUSPECTS,
    REFUSED_S,
    REMEMBERED_S,
    SPOILT_S,
    UNASKED_S,
    RefusalCache,
    SuspectVersions,
)
from forebay_proxy.core.errors import DigestDiffers, OriginUnavailable, ShardForbidden, ShardNotFound

A = "https://o/a.tar"


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


def test_the_refusals_kept_have_a_bound() -> None:
    """Made-up names cost no memory without end."""
    known = RefusalCache(FakeClock())
    for name in map(str, range(refusals.REMEMBERED_MOST + 1)):
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
    assert len(suspects.known) == MOST_SUSPECTS
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
    assert suspects.refused[A][0].__traceback__ is None
    for number in range(MOST_SUSPECTS + 10):
        suspects.refuse(f"{A}{number}", told[0])
        suspects.spoilt(f"{A}{number}")
    assert len(suspects.refused) == len(suspects.known) == MOST_SUSPECTS
    clock.advance(max(UNASKED_S, SPOILT_S) + 1)
    suspects.expire()
    assert len(suspects.refused) == len(suspects.known) == 0
