"""forebay plan: what a person is told before the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.cli import invoke

from forebay_proxy.cli.options import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ShardNotFound
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.survey import Survey, sample_of

PATTERN = "s3://b/{000..099}.tar"
RUN = ("--cache-size", "50GB", "--origin-bandwidth", "2Gbit", "--rate", "800MB/s", "--workers", "8")


@dataclass
class Asked:
    """Stands in for the origins: every shard is ``length`` bytes long."""

    length: int = 10**9
    count: int = 0
    allowed: tuple[str, ...] = ()

    def __call__(self, shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
        asked = sample_of(shards, count)
        self.count += len(asked)
        self.allowed = settings.allow_origin
        return Survey({shard.name: self.length for shard in asked}, len(asked), len(shards))


def test_an_estimate() -> None:
    """Working set, hits beside LRU's, times, and the verdict last; nobody is asked where the length is given."""
    asked = Asked()
    result = invoke("plan", PATTERN, "--shard-size", "1GB", *RUN, seams=Seams(survey=asked))
    assert (result.exit_code, asked.count) == (0, 0)
    lines = result.stdout.splitlines()
    assert lines[0].split("  ")[-1].strip() == "100 GB in 100 shards (as given)"
    assert any(line.endswith("takes 800 MB/s, with 8 readers (--workers)") for line in lines)
    assert any(line.endswith("gives 250 MB/s (2 Gbit/s)") for line in lines)
    assert any("LRU" in line and "15.3 GB (15 %)" in line for line in lines)
    assert lines[-1].startswith("origin-bound: the accelerator waits 38 % of the time; a cache of 68.9 GB would end that")


def test_lengths_are_asked_of_the_origin() -> None:
    """Of a sample, and it is said; the flag that a refusal names is one of this verb."""
    asked = Asked()
    result = invoke("plan", PATTERN, *RUN, seams=Seams(survey=asked))
    assert asked.count == 32
    assert "100 GB in 100 shards (estimated: 32 of 100 shards asked)" in result.stdout
    flags = ("--ask", "100", "--allow-origin", "http://127.0.0.1:9")
    assert "(asked of the origin)" in invoke("plan", PATTERN, *RUN, *flags, seams=Seams(survey=asked)).stdout
    assert asked.allowed == ("http://127.0.0.1:9",)


def test_an_estimate_for_programs() -> None:
    """One JSON document; bytes, seconds, ratios."""
    value = json.loads(invoke("plan", PATTERN, "--shard-size", "1GB", *RUN, "--json").stdout)
    assert (value["dataset_bytes"], value["shards"], value["cache_bytes"]) == (100 * 10**9, 100, 50 * 10**9)
    assert value["hit_bytes"] + value["origin_bytes"] == value["dataset_bytes"]
    assert value["epoch_s"] == pytest.approx(value["origin_bytes"] / 0.25e9)


def test_a_replay(tmp_path: Path) -> None:
    """A row a policy, with its epochs."""
    path = tmp_path / "list.txt"
    path.write_text("https://o/set/{00..31}.tar\n")
    flags = ("--shard-size", "32MiB", "--cache-size", "512MiB", "--shuffle", "1", "--epochs", "2")
    result = invoke("plan", "--replay", str(path), *flags)
    assert result.exit_code == 0, result.stderr
    head, *rest = result.stdout.splitlines()
    assert head.startswith("list: 32 shards, 1.1 GB (as given); 1 reader announcing 16 shards; cache:")
    table = rest[rest.index("") :]
    assert [line.split()[0] for line in table[1:4]] == ["policy", "ours", "lru"]
    assert table[2].endswith(" %")
    assert max(map(len, table)) <= 80
    value = json.loads(invoke("plan", "--replay", str(path), *flags, "--json").stdout)
    ours, _ = value["policies"]
    assert (ours["policy"], len(ours["epochs"]), ours["read_bytes"]) == ("ours", 2, 2 * 2**30)


def test_a_log_keeps_its_readers() -> None:
    """From stdin; flags that would say otherwise are refused."""
    lines = [
        {
            "time": f"2026-01-01T00:00:0{number}Z", "reader": f"j/0/{number % 2}/1.0", "shard": f"s3://b/{number // 2}.tar", "length": 1000,
            "method": "GET", "status": 200,
        }
        for number in range(4)
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    value = json.loads(invoke("plan", "--replay", "-", "--cache-size", "1GB", "--json", stdin=text).stdout)
    ours = value["policies"][0]
    assert (value["kind"], ours["readers"], ours["origin_bytes"]) == ("access log", 2, 2000)
    refused = invoke_refused("plan", "--replay", "-", "--cache-size", "1GB", "--shuffle", "1", stdin=text)
    assert "--shuffle is for a list of shards" in refused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name at least one URL"),
        ((PATTERN, "--shard-size", "1GB", "--rate", "1GB/s", "--origin-bandwidth", "1GB/s"), "an estimate needs --cache-size 500GB too"),
        ((PATTERN, "--shard-size", "1GB", "--cache-size", "1GB", "--rate", "1GB/s"), "an estimate needs --origin-bandwidth 10Gbit too"),
        ((PATTERN,), "needs --cache-size 500GB and --origin-bandwidth 10Gbit and --rate 800MB/s too"),
        ((PATTERN, *RUN, "--cache-size", "75%"), "write how many bytes, as 500GB"),
        ((PATTERN, *RUN, "--rate", "10Gb"), "'10Gb' is not a rate"),
        ((PATTERN, "--replay", "-"), "--replay names what is read"),
        ((PATTERN, *RUN, "--ahead", "none"), "'none' is not a number of shards"),
        (("--replay", "-", "--cache-size", "1GB", "--shard-size", "900TB"), "hours of replaying"),
        (("--replay", "-", "--cache-size", "1GB", "--shard-size", "1MB", "--rate", "1GB/s"), "--rate is for an estimate"),
        (("nosuch.txt", *RUN), "neither a URL nor a file of URLs that is there"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    """In one line, with exit code 2."""
    assert said in invoke_refused("plan", *arguments, stdin="s3://b/{0..9}.tar")


def invoke_refused(*arguments: str, stdin: str | None = None) -> str:
    """The message of a command line that is refused."""
    result = invoke(*arguments, stdin=stdin)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_an_origin_that_refuses() -> None:
    """The verb ends with the origin's own words."""

    def survey(shards: Sequence[Shard], settings: Settings, count: int) -> Survey:
        raise ShardNotFound(shards[0].name, "404")

    result = invoke("plan", PATTERN, *RUN, seams=Seams(survey=survey))
    assert result.exit_code == 2
    assert "s3://b/000.tar" in result.stderr
