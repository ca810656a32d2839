"""fb.sidecar(): joined or started, named to children, given back. Real processes; the sidecar is the fake one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import environment, program
from support.fake_sidecar import FakeSidecar
from support.verbs import begin

import forebay_loader as fb
from forebay_loader.session.sidecar import serve_arguments
from forebay_proxy.node.runfile import RunDirectory
from forebay_proxy.wire.protocol import launch

SAY = "import os; print(os.environ.get('FOREBAY_URL'))"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A run directory of the test's own, and a ``forebay`` that starts the fake sidecar."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    for name, value in environment(path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    monkeypatch.setattr(subprocess, "Popen", begin)  # `forebay launch` is forked: security/test_settings_file.py starts it
    monkeypatch.setattr(launch, "forebay_program", lambda environ: program("--idle-exit-s", "30"))
    directory = RunDirectory(path)
    yield directory
    for record in directory.live():
        os.kill(record.pid, signal.SIGTERM)


def test_it_is_started_and_the_environment_is_what_it_was_afterwards(node: RunDirectory) -> None:
    """Children inside the with find it; outside nothing names it."""
    with fb.sidecar(cache_size="1GB") as sidecar:
        assert sidecar.how == "started"
        said = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True).stdout
        assert said.strip() == sidecar.url == node.live()[0].url
    assert "FOREBAY_URL" not in os.environ


def test_the_next_cell_finds_the_same_one(node: RunDirectory) -> None:
    """It stays a while after its last holder."""
    with fb.sidecar(idle_exit_s=600) as first:  # by itself a minute, which a busy machine may need for the next start
        url = first.url
    with fb.sidecar(idle_exit_s=600) as second:
        assert (second.how, second.url) == ("joined", url)


def test_one_inside_another_is_the_same(node: RunDirectory) -> None:
    """And its end ends nothing for the outer one."""
    with fb.sidecar() as outer:
        with fb.sidecar() as inner:
            assert inner.url == outer.url
        assert os.environ["FOREBAY_URL"] == outer.url
        assert outer.status().found


def test_an_address_that_stood_there_is_put_back(node: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named sidecar is used, and nothing is started."""
    with FakeSidecar() as fake:
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        with fb.sidecar() as sidecar:
            assert (sidecar.how, sidecar.url) == ("named", fake.url)
            fake.wait_for_connections(1)
        fake.wait_for_connections(0)
        assert os.environ["FOREBAY_URL"] == fake.url
    assert node.live() == []


def test_the_one_of_an_earlier_cell_has_died(node: RunDirectory) -> None:
    """Its address stands there because of us, so the next one is started, not refused; at the end nothing is left."""
    first = fb.sidecar().start()
    (record,) = node.live()
    os.kill(record.pid, signal.SIGKILL)
    first._held.hold._socket.setblocking(True)
    assert first._held.hold._socket.recv(1) == b""
    with fb.sidecar() as second:
        assert second.how == "started"
        assert os.environ["FOREBAY_URL"] == second.url
        first.close()
        assert os.environ["FOREBAY_URL"] == second.url
    assert "FOREBAY_URL" not in os.environ


def test_without_a_with_in_any_order(node: RunDirectory) -> None:
    """Notebooks keep one over many cells: start() and close(), each as often as one likes."""
    first, second = fb.sidecar(), fb.sidecar()
    assert first.start() is first.start()
    second.start()
    first.close()
    assert os.environ["FOREBAY_URL"] == second.url
    second.close()
    second.close()
    assert "FOREBAY_URL" not in os.environ
    assert (second.how, repr(second)) == ("", "<fb.sidecar, not entered>")


def test_options_that_come_too_late_are_said(node: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with what the running one has; without options there is nothing to say."""
    with fb.sidecar(cache_size="1GB"), fb.sidecar():
        assert caplog.records == []
        for _ in range(2):
            with fb.sidecar(cache_size="2GB") as late:
                pass
    (record,) = caplog.records
    assert record.getMessage().startswith(f"cache_size: without effect, the sidecar at {late.url} runs already; sidecar ")


def test_what_a_new_one_decided_is_said_once(node: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its cache directory and size, with the option that changes them."""

    class Held:
        how, endpoint, notices = "started", "http://127.0.0.1:7070", ("the cache is limited to 20 GiB inside a container",)

        def close(self) -> None: ...

    monkeypatch.setattr(launch, "join_or_start", lambda arguments: Held())
    for _ in range(2):
        with fb.sidecar():
            pass
    assert [record.getMessage() for record in caplog.records] == list(Held.notices)


@pytest.mark.parametrize(("differs", "told"), [((), []), (("--cache-size 1 GB, not 2 GB",), ["--cache-size 1 GB, not 2 GB"])])
def test_a_joined_one_is_told_of_where_it_differs(
    node: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, differs: tuple[str, ...], told: list[str]
) -> None:
    """A notebook's cell that is run again asks for what it has: that is no warning."""
    url = "http://127.0.0.1:7070"
    monkeypatch.setattr(launch, "join_or_start", lambda arguments: launch.LaunchedSidecar(url, "joined", None, "", (), differs))
    with fb.sidecar(cache_size="2GB"):
        pass
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the sidecar at {url} runs with other settings, and they count: {text}" for text in told]


def test_one_that_will_not_start_is_a_loader_error(node: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its last words; the environment is untouched."""
    monkeypatch.setattr(launch, "forebay_program", lambda environ: program("--fail", "no room on /x"))
    with pytest.raises(fb.ProxyUnreachable, match=r"no sidecar: .*no room on /x; it ended with exit code 2"), fb.sidecar():
        pass
    assert "FOREBAY_URL" not in os.environ


def test_a_forked_child_leaves_the_hold_to_its_parent(node: RunDirectory) -> None:
    """A kernel that forks workers keeps its sidecar, whatever they do at their end."""
    with fb.sidecar() as sidecar:
        child = os.fork()
        if child == 0:
            sidecar.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sidecar._held.hold.alive()


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"cache_size": "50GB", "port": 0}, ["--cache-size", "50GB", "--port", "0"]),
        ({"prefetch": False, "strict_origins": True}, ["--no-prefetch", "--strict-origins"]),
        ({"allow_origin": ["http://a", "s3://b"], "cache_dir": None}, ["--allow-origin", "http://a", "--allow-origin", "s3://b"]),
        ({"cache_dir": Path("/nvme")}, ["--cache-dir", "/nvme"]),
    ],
)
def test_options_are_those_of_serve(options: dict[str, Any], arguments: list[str]) -> None:
    """One option is one flag, a list several of it."""
    assert serve_arguments(options) == arguments


def test_a_token_never_reaches_a_command_line() -> None:
    """The variable is named instead."""
    with pytest.raises(TypeError, match="FOREBAY_TOKEN"):
        serve_arguments({"token": "secret"})
