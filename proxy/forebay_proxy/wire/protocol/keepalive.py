"""One open connection that keeps a sidecar alive: ``GET /v1/hold``, which answers and then says nothing until one of the two ends it.

A sidecar that was started for a command or a notebook ends some time after the last hold has gone; one started by hand minds none. The
kernel closes the connection of a process that dies, so no process has to be asked whether it still lives, and no thread asks.
"""

from __future__ import annotations

import json
import os
import socket
import weakref
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Optional
from urllib.parse import quote, unquote, urlsplit

__all__ = ["KeepAlive", "KeepAliveRefused", "LaunchError", "cause", "connection_to", "hold"]

# A live sidecar answers in milliseconds, one on a node with more work than cores after seconds; and who is given up on has been replaced by
# a second sidecar, or the job reads without one. Nobody waits so long for a dead one: the kernel refuses its connection at once.
ANSWER_S = 10.0
MAX_BYTES = 16 * 1024  # of a refusal; ours has two hundred


class LaunchError(OSError):
    """There is no sidecar to be had; the message says why and what to do, fit to be one line."""


class KeepAliveRefused(LaunchError):
    """A server answers there, but takes no hold: ``status`` is 503 of a sidecar that drains, 404 of a server that knows no holds."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> "tuple[type[KeepAliveRefused], tuple[str, int]]":
        return type(self), (str(self), self.status)


class KeepAlive:
    """A held sidecar at ``endpoint``. A forked child drops its copy: the hold is the process's that took it."""

    def __init__(self, endpoint: str, token: str = "", job: str = "") -> None:
        """``job``: which goes on for as long as it is held; what it has read is kept until then."""
        self.endpoint = endpoint
        self._job = job
        self._token = token
        self._socket: Optional[socket.socket] = None
        _HOLDS.add(self)

    def __repr__(self) -> str:
        return f"<KeepAlive of {self.endpoint}, {'held' if self._socket else 'not held'}>"

    def take(self, timeout_s: float = ANSWER_S) -> None:
        """Hold it from now on. Raises ``KeepAliveRefused`` where it takes none, ``LaunchError`` without an answer."""
        self.close()
        headers = {"Forebay-Token": self._token, "Forebay-Job": quote(self._job)}
        try:
            asking = connection_to(self.endpoint, timeout_s)
        except ValueError as error:
            raise LaunchError(f"{error}; check FOREBAY_URL") from error
        try:
            asking.request("GET", "/v1/hold", headers={name: value for name, value in headers.items() if value})
            held = asking.sock
            asking.sock = held.dup()  # what http.client closes as it likes; the connection itself stays open
            try:
                with asking.getresponse() as answer:
                    if answer.status != 200:
                        why = f"HTTP {answer.status}{_why(answer.read(MAX_BYTES))}"
                        raise KeepAliveRefused(f"the sidecar at {self.endpoint} takes no hold: {why}", answer.status)
                held.setblocking(False)  # from here on it is only looked at
            except BaseException:
                held.close()
                raise
            self._socket = held
        except LaunchError:
            raise
        except ValueError as error:
            raise LaunchError("FOREBAY_TOKEN holds what no header can carry") from error
        except (OSError, HTTPException) as error:
            why = "it broke off, or speaks no HTTP" if isinstance(error, HTTPException) else cause(error)
            raise LaunchError(f"no sidecar answers at {self.endpoint}: {why}; start one with 'forebay serve'") from error
        finally:
            asking.close()

    def alive(self) -> bool:
        """Whether the sidecar still keeps its end open. Sends nothing, takes microseconds."""
        if self._socket is None:
            return False
        try:
            # It sends nothing more, so an empty read is the end; a peek, because a proxy in between may say something.
            return self._socket.recv(1, socket.MSG_PEEK) != b""
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False

    def ping(self) -> bool:
        """``alive``, or taken anew from a sidecar that was started again at the same address. Never raises."""
        if self.alive():
            return True
        try:
            self.take()
        except LaunchError:
            return False
        return True

    def close(self) -> None:
        """Let go of it. Safe to repeat."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a child that was forked without Python's hooks may have a copy of it
        self.drop()

    def drop(self) -> None:
        """Close this process's copy only; the connection is somebody else's."""
        held, self._socket = self._socket, None
        if held is not None:
            held.close()

    def __enter__(self) -> KeepAlive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_HOLDS: "weakref.WeakSet[KeepAlive]" = weakref.WeakSet()


def _after_fork() -> None:
    for held in list(_HOLDS):
        held.drop()


os.register_at_fork(after_in_child=_after_fork)


def hold(endpoint: str, token: str = "", timeout_s: float = ANSWER_S, job: str = "") -> KeepAlive:
    """Hold the sidecar at ``http://host:port`` or ``unix:/path`` until the result is closed.

    Raises ``KeepAliveRefused``, ``LaunchError``.
    """
    taken = KeepAlive(endpoint, token, job)
    taken.take(timeout_s)
    return taken


class _UnixConnection(HTTPConnection):
    path = ""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connection_to(endpoint: str, timeout_s: float) -> HTTPConnection:
    """For requests to a sidecar at ``http://host:port`` or ``unix:/path``, not connected yet. Raises ``ValueError`` for other addresses."""
    with suppress(ValueError):
        parts = urlsplit(endpoint)
        if parts.scheme == "http" and parts.hostname and not (parts.path.strip("/") or parts.query or parts.username):
            return HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
        if parts.scheme == "unix" and parts.path.startswith("/"):
            connection = _UnixConnection("localhost", timeout=timeout_s)
            connection.path = unquote(parts.path)
            return connection
    raise ValueError("the sidecar's address must look like http://127.0.0.1:7070 or unix:/path")


def cause(error: Exception) -> str:
    """Why no answer came, in words."""
    if isinstance(error, socket.timeout):
        return "timed out"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def _why(body: bytes) -> str:
    try:
        problem = json.loads(body)
        said = "".join(f"{mark}{problem[name]}" for mark, name in ((": ", "detail"), ("; ", "next_step")) if problem.get(name))
        return said[:500] if said.isprintable() else ""
    except (ValueError, AttributeError, RecursionError):
        return ""
