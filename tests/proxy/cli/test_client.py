"""Talking to a sidecar: addresses, answers, refusals, and a connection that is held."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar
from support.ports import free_ports
from support.seams import swapped

from forebay_proxy.cli import client
from forebay_proxy.cli.client import SidecarClient, SidecarHung, SidecarRefused, SidecarUnreachable, locate
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.node.runfile import RunDirectory
from forebay_proxy.wire.protocol.runfile import is_stopped


def test_status_comes_back_as_a_table(tmp_path: Path) -> None:
    """Over TCP and over a socket, however the address is written."""
    with FakeSidecar() as fake, FakeSidecar(on_unix=tmp_path / "s") as other:
        assert SidecarClient(fake.url).status() == SidecarClient(fake.url + "/").status() == fake.status
        assert SidecarClient(f"unix:{tmp_path / 's'}").status() == SidecarClient(f"unix://{tmp_path / 's'}").status() == other.status


def test_no_proxy_variable_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A corporate http_proxy never sees a request for the sidecar."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_ports(1)[0]}")
    with FakeSidecar() as fake:
        SidecarClient(fake.url).ready()


def test_the_token_is_sent() -> None:
    """A sidecar that asks for a token gets it; without it the refusal is the sidecar's own words."""
    with FakeSidecar(token="t") as fake:
        SidecarClient(fake.url, token="t").ready()
        with pytest.raises(SidecarRefused, match="must send the header") as caught:
            SidecarClient(fake.url).ready()
        assert (caught.value.status, caught.value.next_step) == (403, "mend it")


def test_nobody_there_is_unreachable() -> None:
    """The address and the cause are named."""
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SidecarUnreachable, match=f"{address}: connection refused"):
        SidecarClient(address).status()


def test_silence_is_unreachable() -> None:
    """A sidecar that accepts and says nothing is given up on."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(SidecarUnreachable, match="timed out"):
        SidecarClient(f"http://127.0.0.1:{server.getsockname()[1]}").ready(timeout_s=0.05)


def test_another_server_is_no_sidecar() -> None:
    """An answer that is no JSON table is named for what it is."""
    with FakeSidecar() as fake:
        fake.status = ["not", "a", "table"]  # type: ignore[assignment]
        with pytest.raises(SidecarUnreachable, match="not a Forebay"):
            SidecarClient(fake.url).status()
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 21\r\n\r\n<html>nginx</html>   "
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(
            SidecarRefused, match=f"answers at http://127.0.0.1:{port} is not a Forebay sidecar: HTTP 404 Not Found$"
        ) as caught:
            SidecarClient(f"http://127.0.0.1:{port}").ready()
        thread.join()
    assert caught.value.next_step == "check --url and FOREBAY_URL"


@pytest.mark.parametrize("address", ["", "http://u:p@h:1", "http://h/path", "unix:relative"])
def test_addresses_that_are_none(address: str) -> None:
    """The message shows what an address looks like and never repeats one, which might hold a password."""
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:7070") as caught:
        SidecarClient(address)
    assert "u:p" not in str(caught.value)


TARGET, SHARD = "/http/h:1/a.tar", "http://h:1/a.tar"


@pytest.fixture
def in_outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    """A sidecar that answers for itself, and waits for an origin; whoever asks is soon tired of it."""
    swapped(monkeypatch, client, _TELL_S=0.1, _ORIGIN_S=0.3, _STREAM_TIMEOUT_S=0.3)
    with FakeSidecar() as fake:
        fake.outage = True
        fake.status["settings"] = {"retry_budget_s": {"value": 300.0, "source": "default"}}
        fake.status["readers"] = [
            {"reader": "anonymous", "shard": shard, "waited_s": waited_s, "waiting_for": f"http://h:1: {why}"}
            for shard, waited_s, why in (
                (SHARD, 1.0, "the origin was slow"),
                (SHARD, 4.0, "the origin answered 503; it is asked again"),
                ("http://h:1/b.tar", 9.0, "another's"),
            )
        ]
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


@pytest.mark.parametrize(
    "ask",
    [
        lambda sidecar: sidecar.read(TARGET, {}, 512),
        lambda sidecar: sidecar.samples(TARGET),
        lambda sidecar: list(sidecar.chunks(TARGET, {})),
    ],
    ids=["read", "samples", "chunks"],
)
def test_the_wait_for_an_origin_is_the_origins(
    in_outage: FakeSidecar, ask: Callable[[SidecarClient], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What readers of that shard wait for is told while it lasts, and is the error in the end; how long readers go on is said."""
    with pytest.raises(SidecarRefused, match=rf"{SHARD}: no bytes within 0.3 s: the origin answered 503; it is asked again") as caught:
        ask(SidecarClient(in_outage.url))
    assert (caught.value.status, "up to 300 s" in caught.value.next_step) == (503, True)
    assert capsys.readouterr().err == f"forebay: still waiting: the origin answered 503; it is asked again (shard {SHARD})\n"


@pytest.mark.parametrize("arguments", [("check", SHARD), ("index", SHARD, "--sizes", "")])
def test_every_verb_names_an_outages_origin(in_outage: FakeSidecar, arguments: tuple[str, ...]) -> None:
    """And none says that no sidecar answers."""
    in_outage.warm_events = lambda shards: (
        [
            {"event": "shard", "shard": shard, "result": "failed", "bytes": 0, "error": f"shard {shard}: the origin answered 503"}
            for shard in shards
        ]
        + [{"event": "end", "bytes": 0}]
    )
    done = invoke(*arguments)
    assert (done.exit_code, "the origin answered 503" in done.stdout + done.stderr) == (1, True), done.output
    assert "no sidecar answers" not in done.output


@pytest.mark.parametrize("stopped", [True, False])
def test_a_sidecar_that_hangs_is_named_with_its_process(stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told to start another one: its cache directory is taken."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with socket.create_server(("127.0.0.1", 0)) as server, FakeSidecar() as fake, subprocess.Popen(["sleep", "600"]) as process:
        try:
            fake.url = f"http://127.0.0.1:{server.getsockname()[1]}"
            if stopped:
                process.send_signal(signal.SIGSTOP)
                while not is_stopped(process.pid):
                    time.sleep(0.01)
            with fake.announce(RunDirectory.of(os.environ), pid=process.pid), pytest.raises(SidecarHung) as caught:
                SidecarClient(fake.url).ready(timeout_s=0.05)
        finally:
            process.kill()
    assert f"{fake.url} (pid {process.pid}) {'is stopped' if stopped else 'runs'}" in str(caught.value)
    assert (f"'kill -CONT {process.pid}'" in caught.value.next_step, "'forebay stop'" in caught.value.next_step) == (stopped, True)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    return RunDirectory.of(os.environ)


def test_a_named_one_before_all(directory: RunDirectory) -> None:
    """--url before FOREBAY_URL before the run file."""
    with FakeSidecar() as first, FakeSidecar() as second, FakeSidecar() as third, third.announce(directory):
        environ = {**os.environ, "FOREBAY_URL": second.url}
        assert locate(first.url, environ).address == first.url
        assert locate(None, environ).address == second.url
        assert locate(None, os.environ).address == third.url


def test_a_socket_that_was_named(directory: RunDirectory, tmp_path: Path) -> None:
    """FOREBAY_SOCKET is an address too, while something listens there."""
    with FakeSidecar(on_unix=tmp_path / "s") as fake:
        assert locate(None, {**os.environ, "FOREBAY_SOCKET": str(tmp_path / "s")}).status() == fake.status
    with pytest.raises(ConfigError, match="no sidecar runs"):
        locate(None, {**os.environ, "FOREBAY_SOCKET": str(tmp_path / "absent")})


def test_the_one_with_our_credentials_first(directory: RunDirectory) -> None:
    """Of several on a node the one that reads as we would."""
    environ = {**os.environ, "AWS_PROFILE": "mine"}
    with (
        FakeSidecar() as main,
        FakeSidecar() as ours,
        main.announce(directory),
        ours.announce(directory, fingerprint=directory.fingerprint(environ)),
    ):
        assert locate(None, environ).address == ours.url
        assert locate(None, os.environ).address == main.url
        assert locate(None, {**os.environ, "AWS_PROFILE": "other"}).address == main.url


def test_a_dead_named_one_is_an_error_and_no_guess(directory: RunDirectory) -> None:
    """Whoever names an address means it."""
    with FakeSidecar() as fake, fake.announce(directory):
        with pytest.raises(SidecarUnreachable):
            locate("http://127.0.0.1:1", os.environ)
        with pytest.raises(SidecarUnreachable) as caught:
            locate(None, {**os.environ, "FOREBAY_URL": "http://127.0.0.1:1"})
    assert caught.value.next_step == "FOREBAY_URL names it: unset that, or start one there with 'forebay serve'"


def test_the_token_comes_from_the_variable_or_the_file(directory: RunDirectory, tmp_path: Path) -> None:
    """Both places where a token may be."""
    with FakeSidecar(token="t") as fake:
        with pytest.raises(SidecarRefused):
            locate(fake.url, os.environ)
        locate(fake.url, {**os.environ, "FOREBAY_TOKEN": "t"})
        path = tmp_path / "named.toml"
        path.write_text('token = "t"\n')
        path.chmod(0o600)
        locate(fake.url, {**os.environ, "FOREBAY_CONFIG": str(path)})
