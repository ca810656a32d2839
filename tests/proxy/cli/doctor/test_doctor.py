"""forebay doctor: what a person is told of a set."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.cli import invoke

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
        ((PATTERN, "--workers", "4"), "Missing option '--ranks'"),
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
