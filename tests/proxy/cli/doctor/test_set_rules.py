"""forebay doctor: what a person is told of a set; the rules it should keep; and what becomes of an epoch, against plain counting."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli import invoke

from forebay_proxy.cli.doctor.set_rules import EpochShare, Level, Readers, RuleFinding, SetFacts, epoch_shares, findings, samples_taken
from forebay_proxy.cli.options import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ShardForbidden
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.survey import Survey

PATTERN = "s3://b/{000..079}.tar"
RUN = ("--ranks", "2", "--workers", "4", "--batch", "8")
KNOWN = ("--samples", "100", "--shard-size", "200MB")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No sizes.json of this machine's."""
    monkeypatch.chdir(tmp_path)


def squeezed(line: str) -> str:
    """With two spaces between columns, however wide they are."""
    return re.sub("  +", "  ", line)


def test_a_good_set_is_a_zero() -> None:
    """A row a rule, the ways of sharing out, and the verdict last."""
    done = invoke("doctor", PATTERN, *RUN, *KNOWN)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split("  ") == ["ok", "samples a shard", "100 / 100.0 / 100 (least, mean, most; as given)"]
    assert ["shards, as webdataset splits", "500", "0", "0"] in [line.split("  ") for line in map(squeezed, lines)]
    assert lines[-1] == "nothing to mend"


def test_a_broken_rule_is_a_one() -> None:
    """It says what to do."""
    done = invoke("doctor", PATTERN, "--ranks", "8", "--workers", "12", *KNOWN)
    assert done.exit_code == 1
    assert "fault  shards a worker  80 shards for 8 x 12 = 96 readers: 16 workers without one" in done.stdout
    assert "-> at most 10 workers a rank, or 960 shards or more" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 fault to mend before the run"


def test_sizes_json_counts(tmp_path: Path) -> None:
    """By file name; shards that it does not name are taken for the mean, and that is said."""
    (tmp_path / "sizes.json").write_text(json.dumps({f"{number:03d}.tar": 90 + number for number in range(40)}))
    told = json.loads(invoke("doctor", PATTERN, *RUN, "--shard-size", "1GB", "--json").stdout)
    assert told == json.loads(invoke("doctor", PATTERN, *RUN, "--sizes", "sizes.json", "--shard-size", "1GB", "--json").stdout)
    assert (told["counted"], told["least_samples"], told["most_samples"], told["shards"]) == (40, 90, 129, 80)
    assert told["counted_by"] == "sizes.json, 40 of 80 shards"
    assert "40 shards taken for the mean: s3://b/040.tar, s3://b/041.tar, s3://b/042.tar and 37 more" in [
        rule["text"] for rule in told["rules"]
    ]
    assert {way["way"] for way in told["ways"]} >= {"resampled", "samples, tail='drop'"}


def test_lengths_are_asked_of_the_origin() -> None:
    """Of a few, with the settings that let it be asked."""

    def survey(shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
        assert (len(shards), count, settings.allow_origin) == (80, 32, ("s3://b",))
        return Survey({shard.name: 300 * 10**6 for shard in shards[:32]}, 32, 80)

    flags = ("--samples", "100", "--allow-origin", "s3://b", "--cache-size", "12GB")
    done = invoke("doctor", PATTERN, *RUN, *flags, seams=Seams(survey=survey))
    assert "ok  bytes a shard    300 MB / 300 MB / 300 MB (least, mean, most; 32 of 80 shards asked)" in done.stdout
    assert "12.0 GB hold 40 of 80 shards (50 % of 24.0 GB)" in done.stdout


def test_an_origin_that_refuses_is_a_row() -> None:
    """The other rules are looked at all the same."""

    def survey(shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
        raise ShardForbidden(shards[0].name, "403")

    done = invoke("doctor", PATTERN, *RUN, "--samples", "100", seams=Seams(survey=survey))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "1 thing not known")
    assert "not known" in done.stdout
    assert "s3://b/000.tar" in done.stdout


def test_nothing_counted_is_said_with_the_next_step() -> None:
    """What needs no counts is looked at; the table is left out."""
    done = invoke("doctor", PATTERN, *RUN, "--shard-size", "200MB")
    assert "not counted: no sizes.json is here" in done.stdout
    assert "'forebay index' with these URLs counts them" in done.stdout
    assert "an epoch, shared out by" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((PATTERN, "--workers", "4"), "belong together"),
        (("--ranks", "2", "--workers", "4"), "name at least one URL"),
        ((PATTERN, *RUN, "--sizes", "/no/such.json"), "/no/such.json is not there"),
        ((PATTERN, *RUN, "--sizes", "x", "--samples", "5"), "say the same thing"),
        ((PATTERN, *RUN, "--cache-size", "75%"), "write how many bytes, as 500GB"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    """In one line, with exit code 2."""
    done = invoke("doctor", *arguments)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


# The rules

READERS = Readers(2, 4, 8)
GOOD = SetFacts([f"s3://b/{number}.tar" for number in range(80)], [100] * 80, "as given", [200_000_000], "as given", 10**12)


def rules(facts: SetFacts, readers: Readers = READERS) -> dict[str, RuleFinding]:
    shares = epoch_shares(facts.all_counts, readers) if sum(facts.all_counts) else []
    return {one.rule: one for one in findings(facts, readers, shares)}


def shards(count: int) -> SetFacts:
    return replace(GOOD, names=[f"s3://b/{number}.tar" for number in range(count)], counts=[100] * count)


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
        (GOOD, "cache", Level.OK, "1.0 TB hold all of it (16.0 GB)"),
        (replace(GOOD, cache_bytes=4 * 10**9), "cache", Level.OK, "4.0 GB hold 20 of 80 shards (25 % of 16.0 GB)"),
    ],
)  # fmt: skip
def test_a_rule_that_is_not_kept(facts: SetFacts, rule: str, level: Level, told: str) -> None:
    """How it is kept, and the figures of it."""
    found = rules(facts)[rule]
    assert (found.level, told in found.text) == (level, True), found.text
    assert found.next_step or level is Level.OK


# An epoch

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)
SOME_READERS = st.builds(Readers, st.integers(1, 4), st.integers(0, 4), st.integers(1, 7))


def batches_of(shares: list[int], batch: int) -> list[int]:
    """The batches of a rank in the order in which a DataLoader hands them over: one of each worker in turn."""
    queues = [[min(batch, share - at) for at in range(0, share, batch)] for share in shares]
    return [queue[turn] for turn in range(max(map(len, queues), default=0)) for queue in queues if turn < len(queue)]


def by_way(counts: list[int], readers: Readers) -> dict[str, EpochShare]:
    return {share.way: share for share in epoch_shares(counts, readers)}


@given(st.lists(st.integers(0, 30), max_size=5), st.integers(0, 60), st.integers(1, 7))
def test_taken_in_turn(shares: list[int], steps: int, batch: int) -> None:
    """The first batches of a rank, whichever worker they are of."""
    assert samples_taken(shares, steps, batch) == sum(batches_of(shares, batch)[:steps])


@given(COUNTS, SOME_READERS)
def test_every_shard_is_somebodys(counts: list[int], readers: Readers) -> None:
    """Split as webdataset splits, each sample has one reader."""
    split = readers.split(counts)
    assert (len(split), {len(shares) for shares in split}) == (readers.ranks, {readers.a_rank})
    assert sum(map(sum, split)) == sum(counts)


@given(COUNTS, SOME_READERS)
def test_the_vote_loses_what_is_behind_the_shortest(counts: list[int], readers: Readers) -> None:
    """All that ranks have behind the step at which the first of them ends."""
    split = readers.split(counts)
    of_ranks = [batches_of(shares, readers.batch) for shares in split]
    voted = by_way(counts, readers)["shards, equal steps by a vote"]
    steps = min(map(len, of_ranks))
    assert (voted.least_steps, voted.most_steps, voted.lost) == (steps, steps, sum(sum(batches[steps:]) for batches in of_ranks))


@given(COUNTS, SOME_READERS)
def test_samples_are_shared_to_fewer_than_readers(counts: list[int], readers: Readers) -> None:
    """What does not divide is less than one sample a reader, and either comes twice or is lost."""
    repeat, drop = (by_way(counts, readers)[f"samples, tail='{tail}'"] for tail in ("repeat", "drop"))
    assert (repeat.lost, drop.repeated) == (0, 0)
    assert max(repeat.repeated, drop.lost) < readers.count
    assert (sum(counts) + repeat.repeated) % readers.count == (sum(counts) - drop.lost) % readers.count == 0


@pytest.mark.parametrize("shards", [1, 2, 100])
def test_a_resampled_epoch_misses_a_third(shards: int) -> None:
    """(1 - 1/n)^n, against drawing."""
    chance = random.Random(1)
    drawn = [shards - len({chance.randrange(shards) for _ in range(shards)}) for _ in range(3000)]
    missed = by_way([1000] * shards, Readers(1, 1))["resampled"].lost
    assert missed == pytest.approx(1000 * sum(drawn) / len(drawn), rel=0.05)
