"""What a process tells the sidecar of its stalls, and what it is told of the others: by a fake that records, and by a real sidecar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer, Refuse
from support.sidecar import running

import forebay_loader as fb
from forebay_loader.meter.report.meter_client import MeterClient
from forebay_proxy.cli.sidecars.status import status_rows
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody, decode_meter

NAME = "job-1/0/main/7.0"


def totals(wall_s: float) -> MeterBody:
    return MeterBody(wall_s, {**dict.fromkeys(CAUSES, 0.0), "decode": wall_s / 10}, int(wall_s), samples=64 * int(wall_s), workers=4)


@pytest.fixture
def client() -> Iterator[MeterClient]:
    made = MeterClient()
    yield made
    made.close()


def test_totals_are_told(client: MeterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one connection, each answered before the next."""
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        assert [client.tell(NAME, totals(10.0)), client.tell(NAME, totals(20.0))] == [True, True]
        told = server.asked(f"/v1/meter/{NAME}")
    assert [decode_meter(each.body) for each in told] == [totals(10.0), totals(20.0)]
    assert len({each.connection for each in told}) == 1
    assert fb.counters()["meter_sent"] == 2


def test_the_end_is_told(client: MeterClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once, after the last totals; a sidecar that does not know of ends is no news."""
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        client.tell(NAME, totals(10.0))
        client.end(NAME)
        assert [each.method for each in server.asked(f"/v1/meter/{NAME}")] == ["POST", "DELETE"]
        server.plan_status = 405
        client.end(NAME)
    assert not caplog.records


def test_a_sidecar_that_does_not_know_the_path_is_left_alone(
    client: MeterClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a minute, with one notice."""
    with FakeServer().running() as server:
        server.plan_status = 404
        monkeypatch.setenv("FOREBAY_URL", server.url)
        assert [client.tell(NAME, totals(10.0)) for _ in range(3)] == [False] * 3
        assert len(server.requests) == 1
    assert [record.getMessage().endswith("of its stalls (HTTP 404)") for record in caplog.records] == [True]


def test_without_a_sidecar_nothing_is_told_and_nothing_fails(client: MeterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """None named, one that is gone, one that answers nonsense."""
    assert client.tell(NAME, totals(1.0)) is False
    assert client.node("job-1") is None
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        server.put("/v1/meter/job-1", b'{"ranks": 3}')
        assert client.node("job-1") is None
        server.fault("/v1/meter/job-1", Refuse(404))
        assert client.node("job-1") is None
    assert client.tell(NAME, totals(1.0)) is False
    assert client.node("job-1") is None


def test_a_real_sidecar_tells_it_all_again(client: MeterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To rank 0, to whoever scrapes, and to whoever looks."""
    with running(tmp_path, "--cache-size", "50MB") as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        for rank, wall_s in ((0, 0.01), (1, 0.01), (0, 0.02)):
            assert client.tell(f"job-1/{rank}/main/7.0", totals(wall_s))
        node = client.node("job-1")
        assert node is not None
        assert node.ranks == {"job-1/0/main/7.0": totals(0.02), "job-1/1/main/7.0": totals(0.01)}
        assert node.sidecar is not None
        assert node.sidecar.lead_bytes is None
        assert sidecar.metric("forebay_stall_seconds_total", job="job-1", rank="0", cause="decode") == pytest.approx(0.002)
        assert [row["rank"] for row in sidecar.status()["meters"]] == ["0", "1"]
        assert sidecar.status()["verdict"]["sentence"] == "training has waited 0.0 s in 0.0 s: too early to judge"
        assert json.loads(sidecar.ask("/v1/meter/other"))["ranks"] == []


def test_a_rank_that_waits_for_one_without_batches_is_named(client: MeterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To that rank, in the sidecar's status, in fb.status() and in forebay status."""
    with running(tmp_path, "--cache-size", "50MB") as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        assert client.tell("job-1/1/main/7.0", replace(totals(0.01), loader=0, loader_passes=1, loader_steps=9, ended_s=30.0))
        assert client.tell(NAME, replace(totals(30.02), loader=0, loader_passes=1, loader_steps=10, step_s=30.0))
        node = client.node("job-1")
        assert node is not None
        assert list(node.unequal) == [NAME]
        text = node.unequal[NAME]
        assert "after 9; rank 0 stands in step 10 for at least 30 s" in text
        status = sidecar.status()
        assert status["verdict"]["sentence"].startswith("training stands: rank 1 has had no more batches for 3")
        assert "rank 0 stands in step 10" in str(fb.status())
        assert any(name == "ranks" and "rank 0 stands in step 10" in said for name, said in status_rows(status))
