"""A fake sidecar and a fake origin for each test, and a process that starts it without memories."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.tars import tar_shard
from support.warm_python import warm_workers

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import Notices
from forebay_loader.identity.reader_name import CLAIMS
from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.stream import webdataset_openers
from forebay_loader.stream.wait_notices import SAID
from forebay_loader.transport.endpoint import INSTANCES
from forebay_loader.transport.http import close_idle
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_loader.transport.source_timeout import DEAD


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Counts at zero, nothing announced, nothing said, no idle connection, a run directory of its own, openers as webdataset left them."""
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("FOREBAY_JOB", "job-1")
    monkeypatch.setenv("FOREBAY_FD", "0")  # fake sidecars have no door, and count what they are asked
    monkeypatch.setattr("forebay_loader.base.notices._NOTICES", Notices())
    monkeypatch.setattr(THREAD, "_pid", os.getpid())  # it would outlive its test, and ask the sidecars of others
    COUNTS.reset()
    CLAIMS.clear()
    INSTANCES.clear()
    DEAD.forget()
    DEAD.lived = False
    HUNG.forget()
    SAID.forget()
    yield
    webdataset_openers.disable()
    webdataset_openers._TAKEOVER.refused.clear()
    close_idle()


@pytest.fixture(autouse=True)
def fresh_forkserver() -> Iterator[None]:
    """A fork server keeps the environment it was started in, so it ends with the test that started it.

    By a signal: it would wait for every process forked since, which inherits the pipe whose end ends it.
    """
    yield
    server = forkserver._forkserver
    if (running := server._forkserver_pid) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running, signal.SIGTERM)
        stop: Callable[[], None] = server._stop
        stop()


@pytest.fixture
def warm_starts() -> Iterator[None]:
    """Workers and fork servers that have imported torch and webdataset, and nothing of ours."""
    with warm_workers():
        yield


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A running fake sidecar, named by FOREBAY_URL. It may be slow to answer a plan: this machine has other work too."""
    for name in ("CONNECT_S", "SEND_S", "ANSWER_S"):
        monkeypatch.setattr(f"forebay_loader.plan.plan_client.{name}", 5.0)
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        yield server


@pytest.fixture
def shards(proxy: FakeServer, request: pytest.FixtureRequest) -> FakeServer:
    """A sidecar with the tar shards that the module's names tell: SHARDS of five samples, or SIZES of the samples of each; SAMPLE_BYTES."""
    told = vars(request.module)
    for number, samples in enumerate(told.get("SIZES") or [5] * told["SHARDS"]):
        proxy.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=samples, size=told.get("SAMPLE_BYTES", 3000)))
    return proxy


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job tells a rank, nor a seed."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "WDS_SEED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def origin() -> Iterator[FakeServer]:
    """A running fake http origin."""
    with FakeServer().running() as server:
        yield server
