"""What one reader tells the sidecar: once, in its order, and again when another sidecar answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from types import SimpleNamespace

import pytest
from support.fake_proxy import FakeServer, Recorded
from support.sidecar import wait_until

import forebay_loader as fb
from forebay_loader.plan import plan_client
from forebay_loader.plan.plan_client import Coming, PlanClient, set_of, subject_of, told_epoch
from forebay_loader.stream.webdataset_openers import open_source, source_of
from forebay_loader.transport import deferred_connection
from forebay_loader.transport.endpoint import INSTANCES, Endpoint
from forebay_loader.transport.http import connect

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

PATTERN = "s3://bucket/{000..099}.tar"


def urls(count: int) -> list[str]:
    return [f"s3://bucket/{number:03d}.tar" for number in range(count)]


@pytest.fixture
def shards(proxy: FakeServer) -> FakeServer:
    """A sidecar with a hundred shards, that names its instance."""
    proxy.instance = "a"
    for number in range(100):
        proxy.put(f"/s3/bucket/{number:03d}.tar", b"x")
    return proxy


def told(request: Recorded) -> dict[str, object]:
    return dict(json.loads(request.body)) if request.body else {}


def held(plans: list[Recorded]) -> list[object]:
    """What a sidecar holds after these messages, as the wire says: stepped over where held, refused behind a gap."""
    entries, first = list[object](), 0
    for request in plans:
        body = told(request)
        if request.method == "PUT":
            entries, first = list(body.get("shards") or body["indices"]), int(str(body["at"]))  # type: ignore[call-overload]
        elif request.method == "POST":
            skip = first + len(entries) - int(str(body["at"]))
            assert skip >= 0
            entries += list(body.get("shards") or body["indices"])[skip:]  # type: ignore[call-overload]
    return entries


def opened(reading: Iterator[str], count: int) -> list[str]:
    """Take ``count`` items, and open each through the sidecar as a pipeline does."""
    found = []
    for _ in range(count):
        url = next(reading)
        source = source_of(url)
        assert source is not None
        with open_source(source) as stream:
            stream.read()
        found.append(url)
    return found


def test_messages_say_where_they_begin(shards: FakeServer) -> None:
    """Each counts what was announced before it, so that one that comes twice doubles nothing."""
    assert list(fb.ahead(8)(urls(50))) == urls(50)
    sent = [request for request in shards.plans if request.method != "DELETE"]
    assert told(sent[0])["at"] == 0
    assert held(sent) == urls(50)
    doubled = [request for request in sent for _ in range(2)]
    assert held(doubled) == urls(50)


def test_a_pattern_is_sent_as_indices(shards: FakeServer) -> None:
    """The set once, and numbers into it."""
    assert list(fb.ahead(8, set=PATTERN)(urls(30))) == urls(30)
    sent = [told(request) for request in shards.plans if request.method != "DELETE"]
    assert {body["set"] for body in sent} == {PATTERN}
    assert [index for body in sent for index in body["indices"]] == list(range(30))  # type: ignore[attr-defined]


def test_what_is_not_of_the_pattern_is_sent_by_name(shards: FakeServer) -> None:
    """A set that lies about its shards is a set all the same."""
    list(fb.ahead(8, set="s3://bucket/{000..009}.tar")(urls(30)))
    assert any("shards" in told(request) for request in shards.plans)


def test_another_instance_hears_the_plan_at_once(shards: FakeServer) -> None:
    """Not only at the next message: with the first shard that the new sidecar answers."""
    reading = fb.ahead(16)(urls(60))
    opened(reading, 2)
    before = len(shards.plans)
    shards.instance = "b"
    opened(reading, 1)
    wait_until(lambda: len(shards.plans) > before)  # it is sent, and not waited for
    fresh = shards.plans[before:]
    assert [request.method for request in fresh] == ["PUT"]
    assert told(fresh[0])["shards"] == urls(60)[3:16]
    assert told(fresh[0])["at"] == 3
    opened(reading, 1)
    assert len(shards.plans) == before + 1


def test_a_resume_hears_it_too(shards: FakeServer) -> None:
    """The listener is the reading's own, and leaves with it."""
    reading = fb.ahead(4)(urls(20))
    opened(reading, 2)
    assert len(INSTANCES._listeners) == 1
    reading.close()
    assert len(INSTANCES._listeners) == 0


@pytest.mark.parametrize("status", [404, 409], ids=["not known any more", "a gap"])
def test_a_refusal_is_mended_at_once(shards: FakeServer, status: int) -> None:
    """The whole plan, in the place of the next message."""
    sources = [source for source in map(source_of, urls(6)) if source is not None]
    announcer = PlanClient("job/0/0/1.1", lambda: Coming(1, sources[1:]))
    for at in (0, 2, 4):
        announcer.announce(Coming(at, sources[at : at + 2]))
        wait_until(announcer._connection.is_answered)
        shards.plan_status = status if at == 0 else 204
    assert [request.method for request in shards.plans] == ["PUT", "POST", "PUT"]
    assert told(shards.plans[-1]) == {"at": 1, "shards": urls(6)[1:]}
    announcer.withdraw()


class Dialled:
    """A clock that only moves when told, and the connections that messages asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.limits_s = 1000.0, list[float]()
        monkeypatch.setattr(plan_client, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(deferred_connection, "connect", self._connect)

    def _connect(self, endpoint: Endpoint, limit_s: float) -> HTTPConnection:
        self.limits_s.append(limit_s)
        return connect(endpoint, limit_s)


def test_a_dead_sidecar_costs_no_time(shards: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message finds out, the next ones are not sent; after a pause one asks again. None raises."""
    reading = fb.ahead(8)(urls(100))
    opened(reading, 2)
    shards.stop()
    dialled = Dialled(monkeypatch)
    for _ in range(60):
        next(reading)
    assert len(dialled.limits_s) <= 1
    assert fb.counters()["plans_failed"] == 1
    before = len(dialled.limits_s)
    dialled.now_s += plan_client.PAUSE_S + 1
    for _ in range(30):
        next(reading)
    assert dialled.limits_s[before:] == [plan_client.CONNECT_S]


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_endless_order_keeps_the_next_ones_announced(shards: FakeServer, deterministic: bool) -> None:
    """Real ResampledShards: whatever was opened, between k - k/4 and k shards ahead are known, in their order, repeats included."""
    stage = wds.ResampledShards(urls(10), deterministic=deterministic)
    reading = fb.ahead(16)(stage)
    opened_so_far = []
    for _ in range(100):
        opened_so_far.append(next(reading)["url"])
        place = len(opened_so_far)
        wait_until(lambda place=place: len(held(list(shards.plans))) >= place + 11)  # type: ignore[misc]  # sent, and heard in its time
        known = held(list(shards.plans))
        assert known[:place] == opened_so_far
        assert 11 <= len(known) - place <= 16
    reading.close()


def test_an_epoch_is_told_when_it_is_known(shards: FakeServer) -> None:
    """Given, shared, or counted by a process that reads a second time; the first time it is anybody's guess."""
    stage = fb.ahead(4)
    for _ in range(3):
        list(stage(urls(6)))
    sent = [told(request) for request in shards.plans if request.method != "DELETE"]
    assert list(dict.fromkeys(body.get("epoch") for body in sent)) == [None, 1, 2]
    list(fb.ahead(4, epoch=lambda: 7)(urls(6)))
    assert told(shards.plans[-2])["epoch"] == 7


def test_an_epoch_that_cannot_be_had_is_not_told() -> None:
    """What is no number and gives none, or fails. Those that can: test_epochs.py."""

    class Broken:
        @property
        def value(self) -> int:
            raise RuntimeError

    def broken() -> int:
        raise RuntimeError

    assert [told_epoch(epoch) for epoch in (None, broken, Broken(), -1, "x")] == [None] * 5


def test_sets_are_what_the_data_set_was_given() -> None:
    """A pattern as origin URLs whatever its command; a name for a list, the same in each rank; nothing that could hold a secret."""
    assert subject_of("pipe:curl -s -H 'Cookie: k' https://h/{0..9}.tar", None).set == "https://h/{0..9}.tar"
    assert subject_of("pipe:zcat -secret {0..9}.tar", 1)[:2] == (None, None)
    assert subject_of("s3://a/{0..1}.tar::s3://b/{0..1}.tar", None).pattern is None
    assert set_of(urls(3)) == set_of(tuple(urls(3))) != set_of(urls(4))
    assert set_of(iter(urls(3))) is None


def test_a_data_set_names_its_set(shards: FakeServer, recwarn: pytest.WarningsRecorder) -> None:
    """fb.WebDataset sees the pattern before it is expanded."""
    made = fb.WebDataset(PATTERN, shardshuffle=False, ahead=4, handler=lambda error: True)
    with contextlib.suppress(ValueError):  # webdataset 1.x minds that there is no sample in all of it
        list(made)
    assert {told(request)["set"] for request in shards.plans if request.body} == {PATTERN}


def test_a_forks_copy_says_nothing(shards: FakeServer) -> None:
    """A reading that a child inherits half-way: it yields what is left, and neither plan nor answer of the parent is touched."""
    reading = fb.ahead(8)(urls(30))
    opened(reading, 4)
    before = len(shards.plans)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            left = opened(reading, 10)
            reading.close()
            os._exit(0 if left == urls(30)[4:14] else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(shards.plans) == before
    assert opened(reading, 26) == urls(30)[4:]
    assert held([request for request in shards.plans if request.method != "DELETE"]) == urls(30)
    reading.close()


def test_a_refusal_is_mended_with_the_next_shard(shards: FakeServer) -> None:
    """A plan that ended while training paused: not only the message after the next one brings it back; nor is a PUT said twice."""
    sources = [source for source in map(source_of, urls(6)) if source is not None]
    announcer = PlanClient("job/0/0/1.1", lambda: Coming(1, sources[1:]))
    announcer.announce(Coming(0, sources[:2]))
    wait_until(announcer._connection.is_answered)
    shards.plan_status = 409
    announcer.announce(Coming(2, sources[2:]))
    wait_until(announcer._connection.is_answered)
    for _ in range(3):
        announcer.heard("a")
        wait_until(announcer._connection.is_answered)
    assert [request.method for request in shards.plans] == ["PUT", "POST", "PUT"]
    assert told(shards.plans[-1]) == {"at": 1, "shards": urls(6)[1:]}
    announcer.withdraw()


def test_a_sidecar_that_hangs_costs_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing: that is waited for once, and then nothing is sent for a while."""
    dialled = Dialled(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("FOREBAY_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("FOREBAY_JOB", "job")
        reading = fb.ahead(8)(urls(100))
        for _ in range(50):
            next(reading)
        assert dialled.limits_s == [plan_client.CONNECT_S]
        dialled.now_s += plan_client.PAUSE_S + 1
        for _ in range(50):
            next(reading)
        assert dialled.limits_s == [plan_client.CONNECT_S] * 2
        reading.close()
