"""What a resume asks of the sidecar: nothing that is behind, the rest of a shard by its index, and a plan of what is left."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from itertools import islice
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.indexes import indexed
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.resume.pass_state import unpacked
from forebay_loader.samples.index_client import forget
from forebay_proxy.wire.tar.sample_index import encode

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

SHARDS, SAMPLES = 6, 8
URLS = [f"s3://bucket/{number:03d}.tar" for number in range(SHARDS)]
STOP = 3 * SAMPLES + 5  # outputs: in the fourth shard


@pytest.fixture(autouse=True)
def shards(proxy: FakeServer) -> FakeServer:
    forget()
    for number in range(SHARDS):
        proxy.put(target(number), tar_shard(number, SAMPLES, size=40_000))
    return proxy


def target(number: int) -> str:
    return f"/s3/bucket/{number:03d}.tar"


def with_index(proxy: FakeServer, number: int) -> None:
    shown = proxy.shown[target(number)]
    proxy.put("/v1/index" + target(number), encode(indexed(shown.body)), etag=shown.etag)


def made(buffer: int = 0) -> Any:
    return fb.WebDataset(URLS, shardshuffle=False).shuffle(buffer).map(lambda sample: sample["__key__"])


def stopped(data: Any) -> dict[str, Any]:
    given = iter(data)
    list(islice(given, STOP))
    state: dict[str, Any] = json.loads(json.dumps(data.state_dict()))
    return state


def resumed(state: dict[str, Any], proxy: FakeServer, buffer: int = 0) -> list[str]:
    """What comes; the requests so far are forgotten."""
    data = made(buffer)
    data.load_state_dict(state)
    proxy.requests.clear()
    return list(data)


@pytest.mark.parametrize("knows", [True, False])
def test_nothing_behind_is_asked_for(shards: FakeServer, knows: bool) -> None:
    """With an index the shard that it stopped in is entered by a range, without one it is read up to there."""
    whole, state = list(made()), stopped(made())
    if knows:
        with_index(shards, 3)
    assert resumed(state, shards) == whole[STOP:]
    assert [shards.asked(target(number)) for number in range(3)] == [[], [], []]
    ranges = [request.headers["Range"] for request in shards.asked(target(3)) if "Range" in request.headers]
    assert bool(ranges) is knows
    assert all(int(one.partition("=")[2].partition("-")[0]) > 4 * 40_000 for one in ranges)


@pytest.mark.parametrize("knows", [True, False])
def test_what_waited_is_read_again(shards: FakeServer, knows: bool) -> None:
    """By ranges of the shards that have an index, from the start of those that have none; the same samples in the same order."""
    whole, state = list(made(10)), stopped(made(10))
    for number in range(SHARDS) if knows else ():
        with_index(shards, number)
    assert resumed(state, shards, 10) == whole[STOP:]
    waited = [request for number in waiting(state) for request in shards.asked(target(number))]
    assert waited
    assert all(("Range" in request.headers) is knows for request in waited)


def waiting(state: dict[str, Any]) -> list[int]:
    """The shards of which samples wait, but for the one in which it stopped."""
    ordinals, refs = unpacked(state["ordinals"]), unpacked(state["buffers"][0]["refs"])
    return sorted({bisect_right(ordinals, ref) - 1 for ref in refs} - {len(ordinals) - 1})


def test_the_plan_is_of_what_is_left(shards: FakeServer) -> None:
    """From the shard on that it stopped in, before its first sample."""
    state = stopped(made())
    data = made()
    data.load_state_dict(state)
    shards.requests.clear()
    next(iter(data))
    deadline = time.monotonic() + 10
    while not [plan for plan in shards.plans if plan.method == "PUT"] and time.monotonic() < deadline:
        time.sleep(0.01)
    told = next(plan for plan in shards.plans if plan.method == "PUT")
    assert json.loads(told.body)["shards"] == URLS[3:]


@pytest.mark.parametrize("where", ["it stopped in", "of a sample that waits"])
def test_another_version_is_refused(shards: FakeServer, where: str) -> None:
    """By its ETag: the shard in which it stopped, and one of which samples wait, by its index as well."""
    state = stopped(made(10))
    number = len(unpacked(state["shards"])) - 1 if where == "it stopped in" else waiting(state)[0]
    for each in range(SHARDS):
        with_index(shards, each)
    shards.put(target(number), tar_shard(number, SAMPLES, size=39_999))
    with_index(shards, number)
    with pytest.raises(ValueError, match=rf"bucket/00{number}\.tar has changed"):
        resumed(state, shards, 10)


@pytest.mark.parametrize("knows", [True, False])
def test_what_was_begun_is_asked_for_in_its_version(shards: FakeServer, knows: bool) -> None:
    """So that the sidecar, which may have it, waits for no origin's word; what comes later is asked for as ever."""
    if knows:
        for number in range(SHARDS):
            with_index(shards, number)
    state = stopped(made(buffer=20))
    resumed(state, shards, buffer=20)
    begun = len(unpacked(state["shards"]))
    for number in range(SHARDS):
        meant = [request.headers.get("Forebay-Version", "") for request in shards.asked("/v1/index" + target(number))]
        meant += [request.headers["Forebay-Version"] for request in shards.asked(target(number)) if "Range" in request.headers]
        assert set(meant) == ({shards.shown[target(number)].etag} if number < begun else set()), number
