"""Who is at the other end, as the kernel tells it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from forebay_proxy.server.net import peers
from forebay_proxy.server.net.peers import loopback_uid


@contextmanager
def pair(
    host: str, family: socket.AddressFamily, *, reach: str = "", client_family: socket.AddressFamily | None = None
) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        with socket.socket(client_family or family) as client:
            client.connect((reach or host, listener.getsockname()[1]))
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted


def ends(accepted: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    return accepted.getpeername()[:2], accepted.getsockname()[:2]


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("127.3.2.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_the_client_is_us(host: str, family: socket.AddressFamily) -> None:
    """Both families, by netlink and by /proc."""
    with pair(host, family) as (_, accepted):
        assert loopback_uid(*ends(accepted)) == os.getuid()
        assert peers._uid_by_proc(*ends(accepted)) == os.getuid()


def test_a_mapped_client_is_found() -> None:
    """An IPv6 socket that reaches an IPv4 one is looked up by its IPv4 address."""
    with pair("127.0.0.1", socket.AF_INET, reach="::ffff:127.0.0.1", client_family=socket.AF_INET6) as (_, accepted):
        assert loopback_uid(*ends(accepted)) == os.getuid()


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_closed_end_is_nobodys(host: str, family: socket.AddressFamily) -> None:
    """Not uid 0, though that is what the kernel fills in."""
    with pair(host, family) as (client, accepted):
        client.close()
        assert loopback_uid(*ends(accepted)) is None
        assert peers._uid_by_proc(*ends(accepted)) is None


def test_an_end_that_never_was_is_nobodys() -> None:
    """No connection, no uid."""
    assert loopback_uid(("127.0.0.1", 1), ("127.0.0.1", 2)) is None


def test_without_netlink_proc_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes have no inet_diag."""

    def no_netlink(*_: object) -> int:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(peers, "_uid_by_netlink", no_netlink)
    with pair("127.0.0.1", socket.AF_INET) as (_, accepted):
        assert loopback_uid(*ends(accepted)) == os.getuid()


def test_an_error_of_the_kernel_is_no_uid() -> None:
    """ENOENT means gone; anything else is an error that makes us ask elsewhere."""
    header = peers._NLMSG_HEADER.pack(36, 2, 0, 1, 0)
    assert peers._uid_in(header + (-2).to_bytes(4, "little", signed=True)) is None
    with pytest.raises(OSError, match="Operation not permitted"):
        peers._uid_in(header + (-1).to_bytes(4, "little", signed=True))
