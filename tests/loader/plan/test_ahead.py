"""Reading ahead: what is yielded, when it is pulled, and what the sidecar hears of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_proxy import FakeServer, Recorded
from support.lengths import examples
from support.seams import refuses
from support.sidecar import wait_until

import forebay_loader as fb
from forebay_loader.identity.reader_name import CLAIMS, reader_name
from forebay_loader.plan.plan_client import PlanClient, announceable
from forebay_loader.stream.webdataset_openers import enabled
from forebay_proxy.wire.commands.sources import parse_source

pytest.importorskip("webdataset")
pytestmark = [pytest.mark.webdataset, pytest.mark.another_python]


def urls(count: int) -> list[str]:
    return [f"s3://bucket/{number:03d}.tar" for number in range(count)]


class Pulled:
    """An iterable that remembers how far it was pulled."""

    def __init__(self, items: Iterable[object]) -> None:
        self._items = list(items)
        self.count = 0

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            self.count += 1
            yield item


def shards(request: Recorded) -> list[str]:
    return json.loads(request.body)["shards"]


def announced(proxy: FakeServer) -> list[str]:
    """Every shard of PUT and POST, in order."""
    return [shard for request in proxy.plans if request.method in ("PUT", "POST") for shard in shards(request)]


@given(st.integers(0, 60), st.integers(0, 40), st.sets(st.integers(0, 60)))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_same_items_same_order(monkeypatch: pytest.MonkeyPatch, count: int, k: int, foreign: set[int]) -> None:
    """Whatever the source and k, the very same objects come out, in order."""
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    items = [{"url": f"/local/{n}.tar" if n in foreign else url, "n": n} for n, url in enumerate(urls(count))]
    found = list(fb.ahead(k)(items))
    assert len(found) == len(items)
    assert all(ours is theirs for ours, theirs in zip(found, items))  # noqa: B905  # equal lengths, just asserted


@given(st.integers(1, 20), st.sets(st.integers(0, 30)))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_pulled_past_a_foreign_item(monkeypatch: pytest.MonkeyPatch, k: int, foreign: set[int]) -> None:
    """When an item arrives, nothing behind the next item that is not ours has been pulled, and no more than k beyond it."""
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    source = Pulled(f"/local/{n}.tar" if n in foreign else url for n, url in enumerate(urls(31)))
    for number, _ in enumerate(fb.ahead(k)(source)):
        barrier = min((n for n in foreign if n >= number), default=31)
        assert source.count <= min(number + k, barrier + 1, 31) or source.count == number + 1


def test_a_list_is_announced_before_its_first_item(proxy: FakeServer) -> None:
    """What is known in full waits for nobody: the plan is sent, and the sidecar at work, before the first shard is opened."""
    reading = fb.ahead(4)(urls(50))
    assert next(reading) == urls(50)[0]
    wait_until(lambda: proxy.plans)
    assert announced(proxy) == urls(50)[:4]
    reading.close()


def test_a_list_is_read_past_what_is_not_ours(proxy: FakeServer) -> None:
    """A local shard in it hides none of those behind."""
    mixed = ["/local/a.tar", *urls(2), "/local/b.tar", *urls(6)[2:]]
    reading = fb.ahead(8)(mixed)
    assert next(reading) == "/local/a.tar"
    wait_until(lambda: proxy.plans)
    assert announced(proxy) == urls(6)[:6]
    assert list(reading) == mixed[1:]


def test_first_before_second(proxy: FakeServer) -> None:
    """Of a source that may hand out work the first item is yielded before the second is pulled, and before anything is announced."""
    source = Pulled(urls(5))
    reading = fb.ahead()(source)
    assert source.count == 0
    assert next(reading) == urls(1)[0]
    assert source.count == 1
    assert proxy.requests == []
    reading.close()


def test_announces_what_comes(proxy: FakeServer) -> None:
    """The plan is what will be opened, in order: one PUT, then appended."""
    assert list(fb.ahead(8)(urls(50))) == urls(50)
    assert announced(proxy) == urls(50)
    methods = [request.method for request in proxy.plans]
    assert methods[0] == "PUT"
    assert set(methods[1:-1]) == {"POST"}
    assert methods[-1] == "DELETE"
    assert len(methods) < 30


def test_closing_withdraws(proxy: FakeServer) -> None:
    """A reading that ends early takes its plan back, and its claims."""
    reading = fb.ahead(8)(urls(50))
    next(reading), next(reading)
    reading.close()
    assert proxy.plans[-1].method == "DELETE"
    assert len({request.target for request in proxy.plans}) == 1
    assert CLAIMS.opening(urls(50)[5]) == reader_name()


def test_a_reading_that_ends_with_the_interpreter_asks_for_nothing(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback kept it until the modules go: there is no ``open`` left to find the sidecar with, and nothing to say about that."""
    client = Mock()
    monkeypatch.setattr("forebay_loader.plan.ahead.PlanClient", lambda *_: client)
    reading = fb.ahead(8)(urls(50))
    next(reading)
    monkeypatch.setattr("sys.is_finalizing", lambda: True)
    reading.close()
    client.announce.assert_called()
    client.withdraw.assert_not_called()


def test_two_readings_have_two_plans(proxy: FakeServer) -> None:
    """Training and validation in one process do not overwrite each other's plan."""
    for _ in range(2):
        list(fb.ahead(4)(urls(5)))
    assert len({request.target for request in proxy.plans}) == 2


def test_dicts_and_commands(proxy: FakeServer) -> None:
    """Commands are announced as the origin URLs they fetch, with their credentials when all go to one host."""
    commands = [{"url": f"pipe:curl -s -H 'Authorization: Bearer a' https://host.example/{n}.tar"} for n in range(4)]
    assert list(fb.ahead(4)(commands)) == commands
    assert announced(proxy) == [f"https://host.example/{n}.tar" for n in range(4)]
    assert proxy.plans[0].headers["Authorization"] == "Bearer a"


def test_credentials_of_several_hosts_stay_home() -> None:
    """Where hosts or headers differ none is sent, and what needs one is not announced."""
    sources = [parse_source(f"pipe:curl -H 'Cookie: {who}' https://{who}.example/a.tar") for who in "ab"]
    sources.append(parse_source("s3://bucket/a.tar"))
    assert announceable([source for source in sources if source]) == (["s3://bucket/a.tar"], [])


def test_source_that_fails(proxy: FakeServer) -> None:
    """What the source gave before its failure is yielded before the failure is raised."""

    def failing() -> Iterator[str]:
        yield from urls(5)
        raise RuntimeError("no more")

    reading = fb.ahead()(failing())
    assert [next(reading) for _ in range(5)] == urls(5)
    with pytest.raises(RuntimeError, match="no more"):
        next(reading)


@pytest.mark.parametrize(("text", "lead"), [("0", 0), ("3", 3), ("many", 16), ("", 16)])
def test_environment(monkeypatch: pytest.MonkeyPatch, text: str, lead: int) -> None:
    """FOREBAY_AHEAD is the default of k; nonsense is the default of that."""
    monkeypatch.setenv("FOREBAY_AHEAD", text)
    source = Pulled(urls(50))
    reading = fb.ahead()(source)
    next(reading), next(reading)
    assert source.count == max(2, lead + 1)


def test_pickled_stage_enables(proxy: FakeServer) -> None:
    """A stage pickled while Forebay was enabled enables it where it is unpickled."""
    limits = fb.Limits(open_s=0.5)
    fb.enable(limits=limits)
    packed = pickle.dumps(fb.ahead(3))
    fb.disable()
    stage = pickle.loads(packed)
    assert enabled() == limits
    assert list(stage(urls(5))) == urls(5)


def test_a_source_that_hands_out_work_keeps_most_of_it(proxy: FakeServer) -> None:
    """A list that several readers take from: one holds what it opens and k more, and the first alone until it comes back."""
    work = urls(50)
    reading = fb.ahead(3)(iter(lambda: work.pop(0), None))
    next(reading)
    assert len(work) == 49
    next(reading)
    assert len(work) == 50 - 1 - 3
    reading.close()


@pytest.mark.parametrize("rules", ["(=x", "no rule"])
def test_rules_that_make_no_sense_are_the_openers_to_refuse(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch, rules: str) -> None:
    """Reading ahead never raises of itself: webdataset says what is wrong where a handler hears it."""
    monkeypatch.setenv("GOPEN_REWRITE", rules)
    assert list(fb.ahead(4)(urls(6))) == urls(6)


def test_whatever_announcing_does_it_does_not_raise(
    proxy: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of ours in telling what comes costs the telling, and one notice."""
    refuses(monkeypatch, PlanClient, RuntimeError("ours"), "announce", "withdraw")
    assert list(fb.ahead(4)(urls(30))) == urls(30)
    assert [record.message for record in caplog.records] == ["what comes cannot be announced (RuntimeError); shards are read all the same"]
