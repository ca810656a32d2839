"""What is remembered of shards that an origin refused, or whose bytes were wrong."""

from __future__ import annotations

import pytest
from support.house import FakeClock

from forebay_proxy.cache.versions.shard_faults import MOST, REFUSED_S, REMEMBERED_S, SPOILT_S, UNASKED_S, ShardFaults
from forebay_proxy.core.errors import DigestDiffers, OriginUnavailable, ShardForbidden, ShardNotFound

A = "https://o/a.tar"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.parametrize("error", [ShardForbidden("s", "no"), ShardNotFound("s", "no")])
def test_a_refusal_is_told_again_until_its_time_is_over(clock: FakeClock, error: Exception) -> None:
    """To that credential, and for that shard. One that is said again lasts from then on."""
    known = ShardFaults(clock)
    for _ in range(2):
        known.origin_refused("s", "mac", error)  # type: ignore[arg-type]
        clock.advance(REMEMBERED_S - 1)
    known.recall("s", "another")
    known.recall("t", "mac")
    with pytest.raises(type(error)):
        known.recall("s", "mac")
    clock.advance(1)
    known.recall("s", "mac")


def test_trouble_is_no_refusal(clock: FakeClock) -> None:
    """It may be over at once."""
    known = ShardFaults(clock)
    known.origin_refused("s", "", OriginUnavailable("s", "503"))
    known.recall("s", "")


def test_the_first_time_is_worth_a_second_fetch(clock: FakeClock) -> None:
    """The next is not, unless a good fetch or much time came between."""
    known = ShardFaults(clock)
    assert [known.spoilt(A), known.spoilt(A), known.spoilt(A)] == [True, False, False]
    known.trusted(A)
    assert [known.spoilt(A), known.spoilt(A)] == [True, False]
    clock.advance(SPOILT_S + 1)
    assert known.spoilt(A)


def test_a_rotten_disk_does_not_count_against_the_origin(clock: FakeClock) -> None:
    """The ETag changes all the same."""
    known = ShardFaults(clock)
    assert known.spoilt(A, by_origin=False)
    assert known.spoilt(A)
    assert known.count(A) == 2


def test_each_time_is_another_etag(clock: FakeClock) -> None:
    """Also after a good fetch: the old one was promised for wrong bytes."""
    known = ShardFaults(clock)
    assert known.count(A) == 0
    for number in range(1, 4):
        known.spoilt(A)
        known.trusted(A)
        assert known.count(A) == number


def test_wrong_bytes_are_remembered_for_a_while(clock: FakeClock) -> None:
    """Then the shard is fetched once more; ahead of need much later, as it would cost the whole shard again."""
    known = ShardFaults(clock)
    known.recall(A, "")
    known.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    with pytest.raises(DigestDiffers):
        known.recall(A, "")
    known.recall("https://o/b.tar", "")
    clock.advance(REFUSED_S)
    known.recall(A, "")
    clock.advance(UNASKED_S - REFUSED_S - 1)
    with pytest.raises(DigestDiffers):
        known.recall(A, "", ahead=True)
    clock.advance(1)
    known.recall(A, "", ahead=True)


def test_nothing_is_kept_of_who_was_refused_nor_for_ever(clock: FakeClock) -> None:
    """Each is told a copy; what holds no longer leaves, and there is a bound on names: the oldest is forgotten."""
    known = ShardFaults(clock)
    known.refuse(A, DigestDiffers(A, "it is wrong", again=True))
    told = []
    for _ in range(3):
        with pytest.raises(DigestDiffers) as caught:
            known.recall(A, "")
        told.append(caught.value)
    assert len({id(error) for error in told}) == 3
    assert known._wrong._items[A][0].__traceback__ is None
    tables = (known._refusals, known._wrong, known._spoilt)
    for number in range(MOST + 10):
        known.refuse(f"{A}{number}", told[0])
        known.spoilt(f"{A}{number}")
        known.origin_refused(f"{A}{number}", "", ShardNotFound(A, "no"))
    assert [len(table) for table in tables] == [MOST] * 3
    assert (known.count(f"{A}0"), known.count(f"{A}{MOST}")) == (0, 1)
    clock.advance(max(UNASKED_S, SPOILT_S) + 1)
    known.expire()
    assert [len(table) for table in tables] == [0] * 3
