"""Holds: what keeps a sidecar alive, and how one hears that it has gone."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

import pytest
from support.fake_sidecar import FakeSidecar

from forebay_proxy.wire.protocol.keepalive import KeepAlive, KeepAliveRefused, LaunchError, hold


def test_a_hold_is_one_open_connection() -> None:
    """It is there until it is closed; closing again is no error."""
    with FakeSidecar() as fake:
        with hold(fake.url) as held:
            fake.wait_for_connections(1)
            assert held.alive()
        fake.wait_for_connections(0)
        held.close()
        assert not held.alive()


def test_the_token_is_sent() -> None:
    """A sidecar on another address asks for it."""
    with FakeSidecar(token="secret") as fake:
        with pytest.raises(KeepAliveRefused, match="HTTP 403"):
            hold(fake.url)
        with hold(fake.url, "secret") as held:
            assert held.alive()


def test_a_token_that_is_no_header_is_never_sent() -> None:
    """A line break in it would be a request of its own."""
    with FakeSidecar() as fake, pytest.raises(LaunchError, match="FOREBAY_TOKEN"):
        hold(fake.url, "a\r\nb")


def test_a_sidecar_that_ends_is_noticed_and_taken_anew() -> None:
    """``alive`` asks nobody; ``ping`` holds its successor at the same address."""
    with FakeSidecar() as fake:
        held = hold(fake.url)
        port = int(fake.url.rpartition(":")[2])
    wait_for_end(held)
    assert not held.alive()
    assert not held.ping()
    with socket.create_server(("127.0.0.1", port)) as successor:
        answering = threading.Thread(target=answer, args=(successor, b"HTTP/1.1 200 OK\r\n\r\n"))
        answering.start()
        assert held.ping()
        answering.join()
    held.close()


def wait_for_end(held: KeepAlive) -> None:
    """Until the other end has closed, without looking through ``alive``."""
    assert held._socket is not None
    held._socket.settimeout(10)
    while held._socket.recv(4096):
        pass


def answer(server: socket.socket, said: bytes) -> None:
    connection, _ = server.accept()
    _PARTNERS.append(connection)
    connection.recv(4096)
    connection.sendall(said)


_PARTNERS: list[socket.socket] = []


@pytest.fixture(autouse=True)
def partners() -> object:
    yield
    while _PARTNERS:
        _PARTNERS.pop().close()


def test_a_refusal_is_told_in_the_sidecars_words() -> None:
    """What is wrong and what to do, for whoever reads the one line of the error; one that drains takes no hold either."""
    with FakeSidecar() as fake:
        fake.full = True
        with pytest.raises(KeepAliveRefused, match="takes no hold: HTTP 503: 256 holds are open already; mend it"):
            hold(fake.url)
        fake.ready = False
        with pytest.raises(KeepAliveRefused) as caught:
            hold(fake.url)
    assert caught.value.status == 503


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2", b"x" * 40_000])
def test_what_is_no_sidecar_is_said_so(said: bytes) -> None:
    """Another program's port, cut answers, endless headers."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            with suppress(OSError):  # whoever has heard enough hangs up in the middle
                answer(server, said)
                _PARTNERS[-1].shutdown(socket.SHUT_WR)

        answering = threading.Thread(target=speak)
        answering.start()
        with pytest.raises(LaunchError, match="no sidecar answers at"):
            hold(f"http://127.0.0.1:{server.getsockname()[1]}")
        answering.join()


def test_nobody_there() -> None:
    """The address, the cause, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(LaunchError, match=rf"no sidecar answers at {url}: connection refused; start one with 'forebay serve'"):
        hold(url)


@pytest.mark.parametrize("address", ["", "127.0.0.1:7070", "https://h:1", "http://", "http://h:99999", "unix:"])
def test_addresses_that_are_none(address: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(LaunchError, match=r"http://127\.0\.0\.1:7070"):
        hold(address)


def test_a_forked_child_drops_its_copy() -> None:
    """The hold is its parent's: the child's end ends nothing, and a child that lives on keeps nothing alive."""
    with FakeSidecar() as fake, hold(fake.url) as held:
        go_reader, go_writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go_writer)
            os.read(go_reader, 1)  # until the parent lets go of it
            os._exit(1 if held.alive() else 0)
        os.close(go_reader)
        assert held.alive()
        held.drop()  # without the shutdown that would close the child's copy too
        fake.wait_for_connections(0)
        os.close(go_writer)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
