"""What is remembered of shards whose bytes were wrong."""

from __future__ import annotations

import pytest
from support.house import FakeClock

from forebay_proxy.cache.resident.suspects import MOST, REFUSED_S, SPOILT_S, UNASKED_S, SuspectVersions
from forebay_proxy.core.errors import DigestDiffers

A = "https://o/a.tar"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_time_is_worth_a_second_fetch(clock: FakeClock) -> None:
    """The next is not, unless a good fetch or much time came between."""
    distrust = SuspectVersions(clock)
    assert [distrust.spoilt(A), distrust.spoilt(A), distrust.spoilt(A)] == [True, False, False]
    distrust.trusted(A)
    assert [distrust.spoilt(A), distrust.spoilt(A)] == [True, False]
    clock.advance(SPOILT_S + 1)
    assert distrust.spoilt(A)


def test_a_rotten_disk_does_not_count_against_the_origin(clock: FakeClock) -> None:
    """The ETag changes all the same."""
    distrust = SuspectVersions(clock)
    assert distrust.spoilt(A, by_origin=False)
    assert distrust.spoilt(A)
    assert distrust.count(A) == 2


def test_each_time_is_another_etag(clock: FakeClock) -> None:
    """Also after a good fetch: the old one was promised for wrong bytes."""
    distrust = SuspectVersions(clock)
    assert distrust.count(A) == 0
    for number in range(1, 4):
        distrust.spoilt(A)
        distrust.trusted(A)
        assert distrust.count(A) == number


def test_a_refusal_is_remembered_for_a_while(clock: FakeClock) -> None:
    """Then the shard is fetched once more."""
    distrust = SuspectVersions(clock)
    distrust.recall(A)
    distrust.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    with pytest.raises(DigestDiffers):
        distrust.recall(A)
    distrust.recall("https://o/b.tar")
    clock.advance(REFUSED_S + 1)
    distrust.recall(A)


def test_a_fetch_that_nobody_asked_for_is_refused_for_longer(clock: FakeClock) -> None:
    """However late it comes: it would cost the whole shard again."""
    distrust = SuspectVersions(clock)
    distrust.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    clock.advance(UNASKED_S - 1)
    with pytest.raises(DigestDiffers):
        distrust.recall(A, ahead=True)
    clock.advance(1)
    distrust.recall(A, ahead=True)


def test_names_are_bounded(clock: FakeClock) -> None:
    """The oldest is forgotten."""
    distrust = SuspectVersions(clock)
    for number in range(MOST + 10):
        distrust.spoilt(f"https://o/{number}")
    assert len(distrust._spoilt) == MOST
    assert distrust.count("https://o/0") == 0


def test_nothing_is_kept_of_who_was_refused_nor_for_ever(clock: FakeClock) -> None:
    """Each is told a copy; names that are refused no longer leave, and there is a bound on them."""
    distrust = SuspectVersions(clock)
    distrust.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    told = []
    for _ in range(3):
        with pytest.raises(DigestDiffers) as caught:
            distrust.recall(A)
        told.append(caught.value)
    assert len({id(error) for error in told}) == 3
    assert distrust._refused[A][0].__traceback__ is None
    for number in range(MOST + 10):
        distrust.refuse(f"{A}{number}", told[0])
        distrust.spoilt(f"{A}{number}")
    assert len(distrust._refused) == len(distrust._spoilt) == MOST
    clock.advance(max(UNASKED_S, SPOILT_S) + 1)
    distrust.expire()
    assert len(distrust._refused) == len(distrust._spoilt) == 0
