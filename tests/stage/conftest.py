"""An origin and a sidecar that reads it, one of each for a module; and the destinations: a folder, moto, and a real RADOS gateway."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3_servers import S3Server, moto, rados_gateway
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running

from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.transport.http import close_idle
from forebay_stage import s3_destination
from forebay_stage.destination import Destination, destination_of
from forebay_stage.s3_destination import S3Destination

__all__ = ["moto", "rados_gateway"]

_NUMBERS = itertools.count()


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of one server run in one worker, which starts it: the pool looks at the names of a test's fixtures."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        kind = item.callspec.params.get("destination")
        if kind in __all__:
            item.fixturenames = [*item.fixturenames, kind]


def s3_destination_on(server: S3Server, patch: pytest.MonkeyPatch) -> S3Destination:
    """A destination in a new bucket of ``server``, which holds objects of someone else beside the prefix."""
    for name, value in server.environ.items():
        patch.setenv(name, value)
    bucket = f"stage-{next(_NUMBERS)}"
    made = destination_of(f"s3://{bucket}/data?endpoint={server.url}")
    assert isinstance(made, S3Destination)
    made._client.create_bucket(Bucket=bucket)
    made._client.put_object(Bucket=bucket, Key="data-of-others/a.tar", Body=b"theirs")
    return made


@pytest.fixture
def forgotten() -> Iterator[None]:
    """No client of another test, with its hooks, is used."""
    s3_destination._client.cache_clear()
    yield
    s3_destination._client.cache_clear()


@pytest.fixture
def on_moto(moto: S3Server, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> S3Destination:
    return s3_destination_on(moto, monkeypatch)


@pytest.fixture(params=["folder", "moto", "rados_gateway"])
def destination(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Destination:
    """Each kind, empty."""
    if request.param == "folder":
        return destination_of(str(tmp_path / "made" / "at the first write"))
    return s3_destination_on(request.getfixturevalue(request.param), monkeypatch)


@pytest.fixture
def on_gateway(rados_gateway: S3Server, monkeypatch: pytest.MonkeyPatch, forgotten: None) -> S3Destination:
    return s3_destination_on(rados_gateway, monkeypatch)


@pytest.fixture(scope="module")
def origin() -> Iterator[ScriptedOrigin]:
    with in_a_thread(ScriptedOrigin()) as made:
        yield made


@pytest.fixture(scope="module")
def sidecar(origin: ScriptedOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with running(tmp_path_factory.mktemp("sidecar"), "--cache-size", "200MB", allow=[origin.base]) as made:
        yield made


@pytest.fixture
def through_sidecar(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loader of this process reads through it."""
    monkeypatch.setattr(THREAD, "_pid", os.getpid())  # a meter's thread would outlive its test
    monkeypatch.setenv("FOREBAY_URL", sidecar.url)
    monkeypatch.setenv("FOREBAY_JOB", "stage")
    yield
    close_idle()
