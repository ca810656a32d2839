"""The verdict, by what is known: how bad, why, and what to type."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.quantities import parse_size
from forebay_proxy.wire.protocol.meter import CAUSES as METERED
from forebay_proxy.wire.protocol.verdict import ACT, CAUSES, FINE, LOOK, Levels, OriginLevels, verdict

O = "https://o"  # noqa: E741
SERVES = OriginLevels(O, rate_bytes_s=90e6, in_flight=8)
DOWN = OriginLevels(O, error="503 Service Unavailable", failing_s=40.0, refusals={503: 12})
LIMITED = OriginLevels(O, error="429", refusals={429: 7}, rate_bytes_s=1e6)
REFUSES = OriginLevels(O, refusals={503: 40}, rate_bytes_s=1e6, failing_s=1.0)  # others are served
TURNS: dict[str, Any] = {"origin": SERVES, "passes": True, "turnover": 0.9}
AS_STARTED: dict[str, Any] = {
    "serve": {"--port": "--port 7070", "--cache-dir": "--cache-dir /a", "--cache-size": "--cache-size 9MB"}, "stop": "forebay stop"
}  # fmt: skip
WAITS = (2, 12.0, "s3://b/7.tar")


def trained(wall_s: float = 60.0, **stall_s: float) -> dict[str, Any]:
    return {"stall_s": stall_s, "wall_s": wall_s, "who": "train rank 3", "workers": 4, "readers": 8, "waited_share": 0.5}


@pytest.mark.parametrize(
    ("levels", "severity", "cause", "line"),
    [
        (Levels(**trained(origin=30), origin=SERVES), ACT, "origin rate", "forebay warm 'PATTERN'"),
        (Levels(**trained(origin=30), origin=SERVES, pattern="s3://b/{0..9}.tar"), ACT, "origin rate", "forebay warm 's3://b/{0..9}.tar'"),
        (Levels(**trained(origin=30), **TURNS, pattern="s3://it's/"), ACT, "cache too small", "forebay plan 'PATTERN'"),
        (Levels(**trained(origin=6), origin=SERVES), LOOK, "origin rate", "forebay warm 'PATTERN'"),
        (Levels(**trained(origin=30), origin=SERVES, announced=False), ACT, "nothing announced", "forebay run -- python train.py"),
        (Levels(**trained(origin=30), origin=OriginLevels(O, latency_share=0.7)), ACT, "origin latency", "export FOREBAY_AHEAD=64"),
        (Levels(**trained(origin=30), origin=LIMITED), ACT, "origin limit", "forebay check 'URL'"),
        (Levels(**trained(origin=30), **TURNS, needed_bytes=1_234_000_000), ACT, "cache too small", "--cache-size 1.4GB"),
        (Levels(**trained(origin=30), **TURNS), ACT, "cache too small", "forebay plan 'PATTERN'"),
        (Levels(**trained(origin=30)), ACT, "origin", "forebay status"),  # only the sidecar knows why
        (Levels(**trained(origin=30), origin=REFUSES, shard="s3://b/1.tar"), ACT, "origin limit", "forebay check 's3://b/1.tar'"),
        (Levels(**trained(origin=30), origin=replace(REFUSES, failing_s=6.0)), ACT, "origin down", "forebay check 'URL'"),
        (Levels(**trained(origin=30), origin=replace(SERVES, failing_s=0.3)), ACT, "origin rate", "forebay warm 'PATTERN'"),  # one reset
        (Levels(**trained(origin=30), origin=SERVES, turnover=0.9), ACT, "origin rate", "forebay warm 'PATTERN'"),  # a first pass
        (Levels(**trained(origin=40), origin=DOWN, waiting=WAITS), ACT, "origin down", "forebay check 's3://b/7.tar'"),
        (Levels(**trained(origin=0.5), origin=DOWN, waiting=WAITS), LOOK, "origin down", "forebay check 's3://b/7.tar'"),
        (Levels(origin=DOWN, waiting=WAITS, readers=2), ACT, "origin down", "forebay check 's3://b/7.tar'"),
        (Levels(**trained(origin=40), origin=LIMITED, waiting=WAITS), ACT, "origin limit", "forebay check 's3://b/7.tar'"),
        (Levels(**trained(proxy=30)), ACT, "proxy", "top -p $(forebay ps --json | jq -r '.[0].pid')"),
        (
            Levels(**trained(origin=30), **TURNS, **AS_STARTED, needed_bytes=10**9),
            ACT,
            "cache too small",
            "forebay stop && forebay serve --port 7070 --cache-dir /a --cache-size 1.1GB",
        ),
        (Levels(**trained(disk=30)), ACT, "disk", "forebay doctor"),
        (Levels(**trained(decode=30)), ACT, "decode", "num_workers=8"),
        (Levels(**trained(map=30), idle_cores=2.0), ACT, "user code", "num_workers=6"),
        (Levels(**trained(map=30), idle_cores=0.4), ACT, "user code", ""),
        (Levels(**trained(read=30)), ACT, "read", "num_workers=8"),
        (Levels(**trained(collate=30)), ACT, "collate", "num_workers=8"),
        (Levels(**trained(transfer=30)), ACT, "transfer", "prefetch_factor=4"),
        (Levels(**trained(start=30)), ACT, "start", "persistent_workers=True"),
        (Levels(**trained(other=30)), ACT, "not known", ""),
        (Levels(**trained(origin=0.7), origin=SERVES), FINE, "trainer", ""),
        (Levels(**trained(origin=0.7), disk="no space left"), LOOK, "disk", "forebay doctor"),
        (Levels(unequal="rank 1 has ended"), ACT, "ranks", CAUSES["ranks"][1]),
        (Levels(readers=2, waited_share=0.4, origin=SERVES), LOOK, "origin rate", "forebay warm 'PATTERN'"),
        (Levels(readers=2, waited_share=0.01, origin=SERVES), FINE, "", ""),
        (Levels(), FINE, "", ""),
        (Levels(refused=("shard s3://b/a.tar: 403", 3.2)), LOOK, "origin refuses", "forebay check 's3://b/a.tar'"),
        (Levels(refused=("shard https://o/a.tar?…: 403", 3.2)), LOOK, "origin refuses", "forebay check 'URL'"),
    ],
)
def test_each_cause(levels: Levels, severity: str, cause: str, line: str) -> None:
    said = verdict(levels)
    assert (said.severity, said.cause, said.line) == (severity, cause, line)


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        (Levels(**trained(decode=30, map=10)), "training waited 67 % of the last minute, most of it for decoding (train rank 3)"),
        (Levels(**trained(map=40), function="augment (train.py:41)"),
         "training waited 67 % of the last minute, nearly all of it for your own code in augment (train.py:41) (train rank 3)"),
        (Levels(**trained(origin=30), origin=replace(LIMITED, refusals={503: 12, 429: 3})),
         "training waited 50 % of the last minute, nearly all of it for the origin, which limits us (https://o, it answered 12 x 503 and "
         "3 x 429 in the last minute: slow down, 1.0 MB/s now, 0 requests open) (train rank 3)"),
        (
            Levels(**trained(origin=40), origin=DOWN, waiting=WAITS),
            "2 readers have waited 40 s for https://o: 503 Service Unavailable (12 x 503 in the last minute); "
            "training waited 67 % of the last minute",
        ),
        (
            Levels(**trained(origin=0.72), origin=SERVES),
            "training hardly waits for data, 1.2 % of the last minute",
        ),
        (
            Levels(readers=2, waited_share=0.41, origin=SERVES),
            "readers waited 41 % of the last minute for the origin, which brings no more (https://o, 90.0 MB/s now, 8 requests open); "
            "whether training waits is not known: only readers are visible",
        ),
        (Levels(**trained(1.3, proxy=0.1), origin=SERVES), "training has waited 0.1 s in 1.3 s: too early to judge"),
        (Levels(**trained(decode=50) | {"ended": True, "readers": 0}),
         "training has ended; it waited 83 % of its last minute, most of that for decode (train rank 3)"),
        (Levels(refused=("shard s3://b/a.tar: 403", 3.2)),
         "nobody has read in the last minute; who asked last, 3 s ago, was told: shard s3://b/a.tar: 403"),
    ],
)  # fmt: skip
def test_the_sentence(levels: Levels, sentence: str) -> None:
    assert verdict(levels).sentence == sentence


@pytest.mark.parametrize(
    ("needed_bytes", "size"), [(1, "1MB"), (8_000_000, "9MB"), (412_000_000, "460MB"), (999_000_000, "1.1GB"), (47_300_000_000, "53GB"),
                               (1_234_000_000_000, "1400GB")]
)  # fmt: skip
def test_a_size_to_type(needed_bytes: int, size: str) -> None:
    """A tenth more than what is needed, rounded up."""
    said = verdict(Levels(**trained(origin=30), **TURNS, needed_bytes=needed_bytes))
    assert said.line == f"--cache-size {size}"
    assert parse_size(size) > needed_bytes


def test_how_many_workers() -> None:
    """As many times more as the trainer would take batches faster, and as there are idle cores for; the trainer's own process counts."""
    assert "workers 4 -> 6 would help" in verdict(Levels(**trained(decode=13.2), idle_cores=6.4)).do
    assert "workers 4 -> 10 would help" in verdict(Levels(**trained(map=42), idle_cores=6.4)).do
    assert "all cores are busy, so more workers would not help" in verdict(Levels(**trained(decode=13.2), idle_cores=0.6)).do
    assert verdict(Levels(**trained(decode=58) | {"workers": 2})).line == "num_workers=8"  # nobody knows of idle cores
    assert "workers 0 -> 2 would help" in verdict(Levels(**trained(decode=36) | {"workers": 0}, idle_cores=3.0)).do


def test_what_is_needed_stands_beside_what_there_is() -> None:
    said = verdict(Levels(**trained(origin=30), **TURNS, needed_bytes=19_000_000, cache_bytes=8_400_000))
    assert "larger cache: an epoch needs 19.0 MB, the cache holds 8.4 MB, so its data is fetched again each epoch. " in said.do


def test_the_function_to_make_cheaper_is_named() -> None:
    said = verdict(Levels(**trained(decode=30), idle_cores=0.0, function="load (train.py:7)"))
    assert "make decoding in load (train.py:7) cheaper" in said.do


def test_the_shared_tier_is_named_where_its_trouble_explains_the_wait() -> None:
    assert "the shared tier is left alone: 507" in verdict(Levels(**trained(origin=30), origin=SERVES, shared="507")).do
    assert "shared" not in verdict(Levels(**trained(decode=30), shared="507")).do


refusals = st.dictionaries(st.sampled_from([0, 403, 429, 503]), st.integers(1, 9))
origins = st.builds(
    OriginLevels, st.just(O), st.sampled_from(["", "reset"]), st.none() | st.floats(0, 1e6), refusals,
    st.floats(0, 1e10), st.integers(0, 99), st.floats(0, 1),
)  # fmt: skip
everything = st.builds(
    Levels, st.dictionaries(st.sampled_from(METERED), st.floats(0, 1e3)), st.floats(0, 1e3), st.text(max_size=9), st.text(max_size=9),
    st.booleans(),
    st.none() | st.integers(0, 99), st.none() | st.floats(0, 99), st.integers(0, 99), st.none() | st.floats(0, 1),
    st.none() | st.tuples(st.integers(1, 9), st.floats(5, 1e6), st.text(max_size=20)), st.none() | origins, st.sampled_from(["", "EIO"]),
    st.floats(0, 1), st.booleans(), st.none() | st.integers(0, 10**15), st.booleans(), st.sampled_from(["", "rank 1"]),
    st.none() | st.tuples(st.text(), st.floats(0, 60)),
    silent=st.sampled_from(["", "a rank is silent"]),
    serve=st.sampled_from([{}, AS_STARTED["serve"]]), stop=st.just("forebay stop"),
    cache_bytes=st.none() | st.integers(0, 10**15), function=st.text(max_size=9),
)  # fmt: skip


def test_a_worker_that_hangs_is_no_slow_code() -> None:
    """Slow code gives some batches in a minute."""
    slow, hangs = (verdict(Levels(**trained(map=58), steps=steps)) for steps in (3, 0))
    assert (slow.cause, hangs.cause) == ("user code", "user code")
    assert "no batch came in 60 s" in hangs.sentence
    assert "no batch" not in slow.sentence
    assert (hangs.line, slow.line) == ("", "num_workers=16")
    assert hangs.do.startswith("a worker may hang")


def test_who_died_is_told_of_first() -> None:
    """It turns no verdict green, and leaves what else is to be done."""
    said = verdict(Levels(silent="train rank 3 is silent for 4 min: killed, or hung?"))
    assert (said.severity, said.do) == (LOOK, "read that job's own log")
    assert said.sentence == "train rank 3 is silent for 4 min: killed, or hung?; nobody has read in the last minute"
    assert verdict(Levels(**trained(decode=30), silent="x")).severity == ACT


def test_other_jobs_that_wait_are_told_of() -> None:
    assert verdict(Levels(**trained(decode=30), others="job b waits 40 %, too")).sentence.endswith("; job b waits 40 %, too")


@given(everything)
def test_whatever_is_known(levels: Levels) -> None:
    """There is always one, with a sentence of one line; a cause that is known; and a line that a shell can take apart."""
    said = verdict(levels)
    assert said.severity in (FINE, LOOK, ACT)
    assert said.cause in ("", *CAUSES)
    assert said.sentence
    assert not re.search(r"\{(shard|workers|is|where|until|later)\}", said.line + said.do)
    shlex.split(said.line)
    if said.severity == ACT:
        assert said.do
