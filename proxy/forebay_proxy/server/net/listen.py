"""Listening sockets: TCP ports, and unix sockets that only their owner can connect to."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import Any

from forebay_proxy.core.errors import ConfigError

__all__ = ["DEFAULT_PORT", "UnixListener", "bind_tcp", "fits", "is_loopback_host"]

DEFAULT_PORT = 7070
# The default port moves on if taken. No node runs a hundred sidecars, so a hundred taken ports mean that something else is wrong.
_PORTS_TRIED = 100
_BACKLOG = 1024  # a training job opens all its workers' connections at once
_SUN_PATH_MAX = 107

_Address = tuple[socket.AddressFamily, tuple[Any, ...]]


def bind_tcp(host: str, port: int | None) -> list[socket.socket]:
    """Listening sockets for every address of ``host``, all on one port.

    ``port``: None takes 7070 or the next free port; 0 lets the kernel choose. Raises ``ConfigError`` if an explicit port is taken or the
    host is not an address of this machine.
    """
    addresses = _addresses(host)
    candidates = [port] if port is not None else list(range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED))
    for candidate in candidates:
        try:
            return _bind_all(addresses, candidate)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                step = "use --host 127.0.0.1, or an address of this machine and a port above 1023"
                raise ConfigError(f"cannot listen on {host} port {candidate}: {error.strerror}", next_step=step) from error
    if port is not None:
        raise ConfigError(f"port {port} of {host} is taken", next_step="leave --port out: the default moves on to the next free port")
    raise ConfigError(f"ports {candidates[0]} to {candidates[-1]} of {host} are all taken", next_step="name a free one with --port")


def is_loopback_host(host: str) -> bool:
    """Whether every address of ``host`` is a loopback one. Raises ``ConfigError`` for a name that does not resolve."""
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for _, address in _addresses(host))


class UnixListener:
    """A listening unix socket at ``path`` that only its owner can connect to (mode 0600)."""

    def __init__(self, path: Path) -> None:
        """Bind and listen. Replaces the socket of a dead process. Raises ``ConfigError`` if a live process has it or it is no socket."""
        self.path = path
        _refuse_taken(path)
        self.socket = _bound(path)
        found = path.stat()
        self._identity = (found.st_dev, found.st_ino)

    def remove(self) -> None:
        """Delete the socket file if it is still ours: a successor may have put its own there."""
        try:
            found = self.path.lstat()
            if (found.st_dev, found.st_ino) == self._identity:
                self.path.unlink()
        except FileNotFoundError:
            pass


def _addresses(host: str) -> list[_Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host!r}: {error.strerror}", next_step="use --host 127.0.0.1") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bind_all(addresses: list[_Address], port: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, address in addresses:
            listener = _tcp_socket(family, (address[0], port, *address[2:]))
            bound.append(listener)
            port = listener.getsockname()[1]  # the kernel chooses a port once; it then holds for every address
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


def _tcp_socket(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for the TIME_WAIT of old connections. A live listener is still refused.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # now: with SO_REUSEADDR two binds both succeed, and only the second listen fails
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _refuse_taken(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path} exists and is not a socket", next_step="name another path with --socket, or remove the file")
    if _answers(path):
        raise ConfigError(f"socket {path} belongs to a live process", next_step="name another path with --socket, or use that sidecar")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)  # a live owner with a full backlog does not answer at once
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def fits(path: Path) -> bool:
    """Whether ``path`` is short enough for a unix socket."""
    return len(os.fsencode(_temporary(path))) <= _SUN_PATH_MAX


def _temporary(path: Path) -> Path:
    """The name under which a socket is bound before it is renamed: ``path`` is never missing, and never has other permissions."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def _bound(path: Path) -> socket.socket:
    temporary = _temporary(path)
    if not fits(path):
        step = "name a shorter one with --socket"
        raise ConfigError(f"socket path {path} is too long: the kernel takes {_SUN_PATH_MAX} bytes", next_step=step)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        temporary.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)  # before bind: Linux gives the file the mode of its socket, less the umask
        listener.bind(str(temporary))
        listener.listen(_BACKLOG)
        temporary.rename(path)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        temporary.unlink(missing_ok=True)
        raise ConfigError(f"cannot make socket {path}: {error.strerror}", next_step="name a writable place with --socket") from error
    return listener
