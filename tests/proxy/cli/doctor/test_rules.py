"""The rules a set should keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay_proxy.cli.doctor.epoch_shares import Readers, epoch_shares
from forebay_proxy.cli.doctor.rules import Level, RuleFinding, SetFacts, findings

READERS = Readers(2, 4, 8)
GOOD = SetFacts([f"s3://b/{number}.tar" for number in range(80)], [100] * 80, "as given", [200_000_000], "as given", 10**12)


def rules(facts: SetFacts, readers: Readers = READERS) -> dict[str, RuleFinding]:
    shares = epoch_shares(facts.all_counts, readers) if sum(facts.all_counts) else []
    return {one.rule: one for one in findings(facts, readers, shares)}


def shards(count: int) -> SetFacts:
    return replace(GOOD, names=[f"s3://b/{number}.tar" for number in range(count)], counts=[100] * count)


def test_a_good_set() -> None:
    """Nothing to do; and nothing is said of a cache that nobody named."""
    found = rules(GOOD)
    assert {one.level for one in found.values()} == {Level.OK}
    assert {one.next_step for one in found.values()} == {""}
    assert "cache" not in rules(replace(GOOD, cache_bytes=0))


@pytest.mark.parametrize(
    ("facts", "rule", "level", "told"),
    [
        (replace(GOOD, counts=[100] * 79 + [0]), "empty shards", Level.FAULT, "1 shard without a sample: s3://b/79.tar"),
        (replace(GOOD, counts=[100] * 79 + [300]), "samples a shard", Level.ADVICE, "2.93 times the mean"),
        (replace(GOOD, counts=[None] * 80, counted_by="no sidecar runs"), "samples a shard", Level.UNKNOWN, "not counted: no sidecar runs"),
        (replace(GOOD, counts=[100] * 79 + [99]), "steps a rank", Level.OK, "500 on every rank"),
        (replace(GOOD, counts=[100] * 79 + [104]), "steps a rank", Level.ADVICE, "rank 1 takes 1 more than rank 0"),
        (replace(GOOD, names=["s3://b/0.tar"] * 80), "list", Level.ADVICE, "1 shard listed more than once: s3://b/0.tar"),
        (shards(79), "shards a worker", Level.ADVICE, "9.88 each: 1 % of a sample's place"),
        (shards(24), "shards a worker", Level.ADVICE, "3 each: 11 % of a sample's place in the epoch stays"),
        (shards(7), "shards a worker", Level.FAULT, "7 shards for 2 x 4 = 8 readers: 1 worker without one"),
        (shards(1), "shards a worker", Level.FAULT, "1 ranks have none"),
        (replace(GOOD, lengths=[10**7]), "bytes a shard", Level.ADVICE, "takes as long as 50 % of the bytes at 50 MB/s"),
        (replace(GOOD, lengths=[3 * 10**9]), "bytes a shard", Level.ADVICE, "3.0 GB / 3.0 GB / 3.0 GB"),
        (replace(GOOD, lengths=[], measured_by="the origin answered 403"), "bytes a shard", Level.UNKNOWN, "the origin answered 403"),
        (replace(GOOD, cache_bytes=10**8), "cache", Level.FAULT, "100 MB for 8 readers, each of which holds 2 segments of 8 MiB: 134 MB"),
        (replace(GOOD, cache_bytes=4 * 10**9), "cache", Level.OK, "4.0 GB hold 20 of 80 shards (25 % of 16.0 GB)"),
    ],
)  # fmt: skip
def test_a_rule_that_is_not_kept(facts: SetFacts, rule: str, level: Level, told: str) -> None:
    """How it is kept, and the figures of it."""
    found = rules(facts)[rule]
    assert (found.level, told in found.text) == (level, True), found.text
    assert found.next_step or level is Level.OK


def test_unknown_counts_are_taken_for_the_mean() -> None:
    """So that the table is there before the last shard is counted."""
    assert replace(GOOD, counts=[90, None, 110] + [None] * 77).all_counts == [90, 100, 110] + [100] * 77
