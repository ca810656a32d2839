"""A loader that remembers nothing of other tests: no counts, no doors, no indexes, no connections."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.samples.index_client import INDEXES
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_loader.transport.http import close_idle

__all__ = ["fresh_loader"]


@pytest.fixture
def fresh_loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the job ``job``; what it opens is closed with the test."""
    COUNTS.reset()
    DOORS.forget()
    INDEXES.forget()
    monkeypatch.setenv("FOREBAY_JOB", "job")
    monkeypatch.setattr(THREAD, "_pid", os.getpid())  # it would outlive its test
    yield
    DOORS.forget()
    close_idle()
