"""How long the next shard of a job is expected to be."""

from __future__ import annotations

from forebay_proxy.policy.schedule.shard_lengths import LENGTH_WEIGHT, ShardLengths


def test_the_newest_count_most() -> None:
    """And the first is all there is to go by."""
    lengths = ShardLengths()
    lengths.learn("a", 100)
    assert lengths.expected("a", 7) == 100
    lengths.learn("a", 200)
    assert lengths.expected("a", 7) == 100 + int(100 * LENGTH_WEIGHT)


def test_each_job_has_its_own() -> None:
    """Of one of which nothing is known, what the asker says; and all are forgotten when nobody reads."""
    lengths = ShardLengths()
    lengths.learn("a", 100)
    assert (lengths.expected("b", 7), "a" in lengths, "b" in lengths) == (7, True, False)
    lengths.clear()
    assert "a" not in lengths
