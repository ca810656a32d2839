"""What a training process tells of its stalls: taken whole or refused by field."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.protocol.meter import CAUSES, DERIVED, InvalidMeter, MeterBody, decode_meter, encode_meter

GOOD: dict[str, Any] = {"wall_s": 60, "stall_s": {"origin": 1.5}, "steps": 100}


def test_the_least_that_is_said() -> None:
    """Every cause has a number; what was not told is 0, or None where that is no sum."""
    body = decode_meter(json.dumps(GOOD).encode())
    assert body == MeterBody(60.0, {**dict.fromkeys(CAUSES, 0.0), "origin": 1.5}, 100)
    assert (body.batch_size, body.slowest_worker, body.slowest_shard, body.reader_wait_s["disk"]) == (None, None, None, 0.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"wall_s": -1}, "wall_s"), ({"wall_s": True}, "wall_s"), ({"wall_s": "60"}, "wall_s"), ({"wall_s": None}, "wall_s"),
        ({"wall_s": float("nan")}, "wall_s"), ({"wall_s": float("inf")}, "wall_s"), ({"wall_s": 10**400}, "wall_s"),
        ({"stall_s": [1]}, "stall_s"), ({"stall_s": {"origin": -0.1}}, "stall_s.origin"), ({"stall_s": {"weather": 1}}, "weather"),
        ({"reader_wait_s": {"disk": None}}, "reader_wait_s.disk"), ({"steps": 1.5}, "steps"), ({"steps": 1 << 60}, "steps"),
        ({"samples": -1}, "samples"), ({"skipped": "none"}, "skipped"), ({"batch_size": 0.5}, "batch_size"), ({"workers": []}, "workers"),
        ({"slowest_worker": "3"}, "slowest_worker"), ({"loader": -1}, "loader"), ({"step_s": "3"}, "step_s"),
        ({"ended_s": -1}, "ended_s"), ({"slowest_shard": 3}, "slowest_shard"),
        ({"slowest_shard": "x" * 3000}, "slowest_shard"),
        ({"slowest_shard": "a\nb"}, "slowest_shard"), ({"pending": "weather"}, "pending"), ({"pending": []}, "pending"),
        ({"pending_s": -1}, "pending_s"), ({"colour": 1}, "colour"),
        ({"derived": [1]}, "derived"), ({"derived": {"none": {}}}, "none"), ({"derived": {"memo": {"hits": -1}}}, "derived.memo.hits"),
        ({"derived": {"memo": {"x": 1}}}, "derived.memo"), ({"derived": {"memo": None}}, "derived.memo"),
        ({"folders": {"x": {}}}, "folders"),
        ({"folders": {"memo": {"a@1": 3}}}, "folders.memo"), ({"folders": {"memo": {"a@1": [1, None]}}}, "folders.memo: limit"),
        ({"folders": {"memo": {"a\n": [1, 2]}}}, "folders.memo"), ({"folders": {"memo": {"a" * 65: [1, 2]}}}, "folders.memo"),
        ({"folders": {"memo": {str(n): [1, 2] for n in range(9)}}}, "folders.memo"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(change: dict[str, Any], named: str) -> None:
    """Nothing is guessed, nothing is cut down to what would fit."""
    with pytest.raises(InvalidMeter, match=named):
        decode_meter(json.dumps(GOOD | change).encode())


def test_derived_caches_come_as_they_were_sent() -> None:
    """Sums grow, never below 0 and of a kind that was not told before from 0; sizes are those told last."""
    told = {"memo": dict.fromkeys(DERIVED["memo"], 3)}
    body = replace(decode_meter(json.dumps(GOOD).encode()), derived=told, folders={"memo": {"frames@1.2": (10, 20)}})
    assert decode_meter(encode_meter(body)) == body
    later = replace(body, derived={"memo": told["memo"] | {"hits": 5, "kept": 2}}, folders={"memo": {"frames@1.2": (12, 20)}})
    grown = later.since(body)
    assert grown.derived == {"memo": {**dict.fromkeys(DERIVED["memo"], 0), "hits": 2}}
    assert grown.folders == later.folders
    assert body.since(replace(body, derived={})).derived == told


@pytest.mark.parametrize("missing", GOOD)
def test_a_missing_field_is_named(missing: str) -> None:
    """With an example of what would be right."""
    with pytest.raises(InvalidMeter, match=f"{missing} is missing.*write"):
        decode_meter(json.dumps({name: value for name, value in GOOD.items() if name != missing}).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"[" * 20_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    """Bytes that are no JSON, and JSON that is no object."""
    with pytest.raises(InvalidMeter, match="JSON"):
        decode_meter(body)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(repr).map(str.encode))
def test_any_bytes_are_totals_or_invalid(body: bytes) -> None:
    """No other exception leaves."""
    with contextlib.suppress(InvalidMeter):
        decode_meter(body)


def totals(wall_s: float, steps: int, origin_s: float) -> MeterBody:
    return MeterBody(wall_s, {**dict.fromkeys(CAUSES, 0.0), "origin": origin_s}, steps, samples=2 * steps)


def test_what_came_on_top() -> None:
    """Sums are differences, what is of now stays."""
    grown = totals(70, 120, 3.5).since(totals(60, 100, 1.5))
    assert (grown.wall_s, grown.steps, grown.samples, grown.stall_s["origin"], grown.stall_s["disk"]) == (10, 20, 40, 2.0, 0.0)
    assert totals(70, 120, 3.5).since(None) == totals(70, 120, 3.5)


def test_a_meter_that_began_anew_counts_whole() -> None:
    """Its sums are smaller than before; no difference is below 0."""
    assert totals(5, 3, 0.5).since(totals(60, 100, 1.5)) == totals(5, 3, 0.5)
    assert totals(61, 3, 0.5).since(totals(60, 100, 1.5)).steps == 0


@given(
    st.builds(totals, st.floats(0, 1e6), st.integers(0, 1 << 51), st.floats(0, 1e6)), st.none() | st.integers(0, 99), st.none() | st.text()
)
def test_what_is_sent_is_what_is_read(body: MeterBody, worker: int | None, shard: str | None) -> None:
    """To the microsecond."""
    shard = shard if shard is None or shard.isprintable() else "x"
    said = replace(body, slowest_worker=worker, slowest_shard=shard, pending_s=1.5, pending="origin", idle_cores=3.5)
    read = decode_meter(encode_meter(said))
    assert (read.pending_s, read.pending, read.idle_cores) == (1.5, "origin", 3.5)
    assert read.stall_s == pytest.approx(said.stall_s, abs=1e-6)
    assert read.wall_s == pytest.approx(said.wall_s, abs=1e-6)
    assert replace(read, stall_s={}, wall_s=0.0) == replace(said, stall_s={}, wall_s=0.0)
