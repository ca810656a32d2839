"""Listening sockets: the right ones, private, and nobody else's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.server.net import listen
from forebay_proxy.server.net.listen import UnixListener, bind_tcp, is_loopback_host

pytestmark = pytest.mark.each_python


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bound(held: ExitStack, host: str, port: int | None) -> list[socket.socket]:
    return [held.enter_context(closing(listener)) for listener in bind_tcp(host, port)]


def test_the_default_port_moves_on_when_taken(held: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next free one, and only for the default; it stops after as many as it says."""
    (first,) = bound(held, "127.0.0.1", 0)
    port = first.getsockname()[1]
    monkeypatch.setattr(listen, "DEFAULT_PORT", port)
    (second,) = bound(held, "127.0.0.1", None)
    assert port < second.getsockname()[1] < port + 100
    monkeypatch.setattr(listen, "_PORTS_TRIED", 1)
    with pytest.raises(ConfigError, match="all taken"):
        bind_tcp("127.0.0.1", None)


def test_an_explicit_port_that_is_taken_is_an_error(held: ExitStack) -> None:
    """It names the port and the way out."""
    (first,) = bound(held, "127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is taken") as caught:
        bind_tcp("127.0.0.1", port)
    assert "--port" in caught.value.next_step


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "2001:db8::1"])
def test_an_address_that_is_not_ours_is_an_error(host: str) -> None:
    """One clear line, naming it."""
    with pytest.raises(ConfigError, match=r"cannot listen on"):
        bind_tcp(host, 0)


def test_every_address_of_a_name_has_the_same_port(held: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is often two addresses."""
    both = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    first, second = bound(held, "both", 0)
    assert first.getsockname()[1] == second.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("192.0.2.7", False)]
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    """0.0.0.0 is everybody."""
    assert is_loopback_host(host) is expected


def test_the_socket_of_a_live_owner_is_an_error(tmp_path: Path) -> None:
    """It stays where it is."""
    path = tmp_path / "f.sock"
    made = UnixListener(path)
    with made.socket:
        with pytest.raises(ConfigError, match="live process"):
            UnixListener(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    made.remove()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    """Somebody's data, not ours to unlink."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="not a socket"):
        UnixListener(path)
    assert path.read_text() == "data"


def test_a_successors_socket_is_not_removed(tmp_path: Path) -> None:
    """Only our own file is taken away."""
    path = tmp_path / "f.sock"
    old = UnixListener(path)
    old.socket.close()
    new = UnixListener(path)
    old.remove()
    assert path.exists()
    new.socket.close()
    new.remove()
    new.remove()


def test_a_path_too_long_or_not_writable_is_one_clear_error(tmp_path: Path) -> None:
    """The kernel's own words would say neither which nor why."""
    with pytest.raises(ConfigError, match="too long"):
        UnixListener(tmp_path / ("x" * 120))
    with pytest.raises(ConfigError, match="cannot make socket"):
        UnixListener(Path("/nonexistent/f.sock"))
