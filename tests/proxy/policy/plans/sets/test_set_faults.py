"""What of declared sets cannot be fetched."""

from __future__ import annotations

from forebay_proxy.core.errors import CacheFull, NotTarArchive, OriginUnavailable, ShardNotFound
from forebay_proxy.policy.plans.sets.set_faults import FAILED_S, MOST_CAUSES, MOST_FAILED, MOST_KNOWN, SetFaults
from forebay_proxy.policy.plans.sets.shard_sets import PatternSet

SET = PatternSet.of("https://o/{0..9999}.tar")


def nobody(name: str) -> bool:
    return False


def name(number: int) -> str:
    return f"https://o/{number}.tar"


def test_equal_causes_are_one_and_the_most_frequent_comes_first() -> None:
    """Each with its count, a shard, and what to do; of other sets nothing."""
    faults = SetFaults()
    faults.add(name(1), NotTarArchive(name(1), "a page"), 10.0)
    for number in (2, 3):
        faults.add(name(number), ShardNotFound(name(number), "404", next_step="look"), 10.0)
    faults.add("https://other/1.tar", ShardNotFound("https://other/1.tar", "404"), 10.0)
    assert faults.rows(SET, nobody) == [
        {"count": 2, "shard": name(2), "cause": "404", "next_step": "look"},
        {"count": 1, "shard": name(1), "cause": "a page", "next_step": NotTarArchive.usual_step},
    ]
    assert [each["count"] for each in faults.rows(SET, lambda shard: shard == name(2))] == [1, 1]
    for number in range(10, 20):
        faults.add(name(number), CacheFull(f"cause {number}"), 10.0)
    assert len(faults.rows(SET, nobody)) == MOST_CAUSES


def test_each_is_left_alone_until_its_time() -> None:
    """And no longer once it is here, or where it never failed."""
    faults = SetFaults()
    faults.add(name(1), CacheFull("x"), 10.0)
    assert (faults.leaves_alone(name(1), 9.9), faults.leaves_alone(name(1), 10.0)) == (True, False)
    assert not faults.leaves_alone(name(2), 0.0)
    assert faults.rows(SET, nobody)  # it has not come yet
    faults.mended(name(1))
    assert not faults.leaves_alone(name(1), 0.0)
    assert faults.rows(SET, nobody) == []


def test_only_so_many_are_known() -> None:
    """Those that failed last."""
    faults = SetFaults()
    for number in range(MOST_KNOWN):
        faults.add(name(number), CacheFull("x"), 10.0)
    faults.add(name(0), CacheFull("x"), 10.0)  # again
    faults.add(name(MOST_KNOWN), CacheFull("x"), 10.0)
    assert faults.rows(SET, nobody)[0]["count"] == MOST_KNOWN
    assert [faults.leaves_alone(name(number), 0.0) for number in (0, 1, 2, MOST_KNOWN)] == [True, False, True, True]


def test_an_origin_that_fails_again_and_again_is_left_alone() -> None:
    """For a while; one shard that comes begins the row anew, and so does the pause."""
    faults = SetFaults()
    for number in range(2 * MOST_FAILED - 1):
        if number == MOST_FAILED - 1:
            faults.mended("s3://b/0")
        faults.fail(f"s3://b/{number}", OriginUnavailable("s", "503"), 5.0, FAILED_S)
        assert faults.leaves_all_alone(5.0) == (number == 2 * MOST_FAILED - 2)
    assert not faults.leaves_all_alone(5.0 + FAILED_S)
    faults.fail("s3://b/x", OriginUnavailable("s", "503"), 5.0 + FAILED_S, FAILED_S)
    assert not faults.leaves_all_alone(5.0 + FAILED_S)


def test_one_that_fails_is_left_alone_for_so_long() -> None:
    """From now on, and told."""
    faults = SetFaults()
    faults.fail(name(1), OriginUnavailable(name(1), "503"), 5.0, 7.0)
    assert (faults.leaves_alone(name(1), 11.9), faults.leaves_alone(name(1), 12.0)) == (True, False)
    assert [row["cause"] for row in faults.rows(SET, nobody)] == ["503"]
