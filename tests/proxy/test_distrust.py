"""What is remembered of shards whose bytes were wrong."""

from __future__ import annotations

import pytest
from support.house import FakeClock

from forebay_proxy.distrust import MOST, REFUSED_S, SPOILT_S, UNASKED_S, Distrust
from forebay_proxy.errors import DigestDiffers

A = "https://o/a.tar"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_the_first_time_is_worth_a_second_fetch(clock: FakeClock) -> None:
    """The next is not, unless a good fetch or much time came between."""
    distrust = Distrust(clock)
    assert [distrust.spoilt(A), distrust.spoilt(A), distrust.spoilt(A)] == [True, False, False]
    distrust.trusted(A)
    assert [distrust.spoilt(A), distrust.spoilt(A)] == [True, False]
    clock.advance(SPOILT_S + 1)
    assert distrust.spoilt(A)


def test_a_rotten_disk_does_not_count_against_the_origin(clock: FakeClock) -> None:
    """The ETag changes all the same."""
    distrust = Distrust(clock)
    assert distrust.spoilt(A, by_origin=False)
    assert distrust.spoilt(A)
    assert distrust.count(A) == 2


def test_each_time_is_another_etag(clock: FakeClock) -> None:
    """Also after a good fetch: the old one was promised for wrong bytes."""
    distrust = Distrust(clock)
    assert distrust.count(A) == 0
    for number in range(1, 4):
        distrust.spoilt(A)
        distrust.trusted(A)
        assert distrust.count(A) == number


def test_a_refusal_is_remembered_for_a_while(clock: FakeClock) -> None:
    """Then the shard is fetched once more."""
    distrust = Distrust(clock)
    distrust.recall(A)
    distrust.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    with pytest.raises(DigestDiffers):
        distrust.recall(A)
    distrust.recall("https://o/b.tar")
    clock.advance(REFUSED_S + 1)
    distrust.recall(A)


def test_a_fetch_that_nobody_asked_for_is_refused_for_longer(clock: FakeClock) -> None:
    """However late it comes: it would cost the whole shard again."""
    distrust = Distrust(clock)
    distrust.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    clock.advance(UNASKED_S - 1)
    with pytest.raises(DigestDiffers):
        distrust.recall(A, ahead=True)
    clock.advance(1)
    distrust.recall(A, ahead=True)


def test_names_are_bounded(clock: FakeClock) -> None:
    """The oldest is forgotten."""
    distrust = Distrust(clock)
    for number in range(MOST + 10):
        distrust.spoilt(f"https://o/{number}")
    assert len(distrust._spoilt) == MOST
    assert distrust.count("https://o/0") == 0
