"""What the end-to-end tests share: an origin, and the real S3."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from support.s3_servers import rados_gateway  # noqa: F401
from support.scripted_origin import ScriptedOrigin

from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.samples.index_client import INDEXES
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_loader.transport.http import close_idle


@pytest.fixture(autouse=True)
def no_meter_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would outlive its test, and ask the sidecars of others."""
    monkeypatch.setattr(THREAD, "_pid", os.getpid())


@pytest.fixture
def fresh_loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loader of the job ``job`` that remembers nothing of other tests; what it opens is closed with the test."""
    COUNTS.reset()
    DOORS.forget()
    INDEXES.forget()
    monkeypatch.setenv("FOREBAY_JOB", "job")
    yield
    DOORS.forget()
    close_idle()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fetches: a test of bad input after which an origin may have been asked all the same")


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as made:
        yield made
