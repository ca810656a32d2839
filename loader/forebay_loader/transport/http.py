"""The loader's HTTP client: one keep-alive connection to the sidecar for each process and thread.

A shard's stream takes the thread's idle connection and gives it back once the last byte was read, so an epoch of shards costs one
connect. After a fork the child closes its copies of inherited sockets and starts its own: two processes on one connection would read
each other's bytes.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, Callable, Iterable, Iterator, Optional

from forebay_loader.transport.body import ShardBody, Unanswered
from forebay_loader.transport.endpoint import Endpoint

__all__ = ["Reply", "ask", "ask_status", "close_idle", "connect", "open_socket"]

Headers = Iterable["tuple[str, str]"]
MAX_EXPLANATION_BYTES = 16 * 1024
MAX_STATUS_BYTES = 16 << 20  # a thousand readers and their plans are a tenth of it


class SidecarConnection(HTTPConnection):
    """HTTP over whichever socket leads to ``endpoint``."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__("localhost" if endpoint.socket_path else endpoint.host, endpoint.port or None, timeout=timeout_s)
        self._endpoint = endpoint

    def connect(self) -> None:
        self.sock = open_socket(self._endpoint, self.timeout)


def open_socket(endpoint: Endpoint, timeout_s: Optional[float]) -> socket.socket:
    """A connected socket, which keeps that timeout. Raises ``OSError``.

    A plain name is looked up as bytes: as text it makes each new worker load Python's tables of international names, 3 ms of processor time
    before its first sample.
    """
    if not endpoint.socket_path:
        host: Any = endpoint.host.encode() if endpoint.host.isascii() else endpoint.host
        made = socket.create_connection((host, endpoint.port), timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        made.connect(endpoint.socket_path)
    except BaseException:
        made.close()
        raise
    return made


class _Idle:
    """A connection nobody uses now, and who it belongs to."""

    def __init__(self, endpoint: Endpoint, connection: HTTPConnection) -> None:
        self._endpoint = endpoint
        self._connection: Optional[HTTPConnection] = connection
        self._pid = os.getpid()

    def take(self, endpoint: Endpoint) -> Optional[HTTPConnection]:
        """The connection, if it leads to ``endpoint`` and was made by this process."""
        if self._endpoint != endpoint or self._pid != os.getpid():
            return None
        connection, self._connection = self._connection, None
        return connection

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.close()  # not wanted any more, or its thread ended; a socket left open would warn


class _Thread(threading.local):
    idle: Optional[_Idle] = None


_THREAD = _Thread()


class Reply:
    """Status, headers and body of one answer."""

    def __init__(self, endpoint: Endpoint, connection: HTTPConnection, response: HTTPResponse) -> None:
        self.status = response.status
        self._headers = response.headers
        self._endpoint = endpoint
        self._connection = connection
        self._pid = os.getpid()
        self.body = ShardBody(response, self._release)

    def header(self, name: str) -> str:
        return str(self._headers.get(name, ""))

    def content(self, most_bytes: int) -> bytes:
        """The body, ``most_bytes`` of it at most; the connection goes back if that was all. Raises ``Unanswered`` where it is cut."""
        return b"".join(self._parts(most_bytes))

    def explanation(self) -> bytes:
        """The start of an error's body; the connection goes back if that was all of it."""
        parts: list[bytes] = []
        with suppress(Unanswered):  # part of an explanation is better than none
            parts.extend(self._parts(MAX_EXPLANATION_BYTES))
        return b"".join(parts)

    def _parts(self, left: int) -> Iterator[bytes]:
        try:
            while left and (data := self.body.read(left)):
                left -= len(data)
                yield data
        finally:
            self.body.close()

    def _release(self, reusable: bool) -> None:
        if reusable and self._pid == os.getpid():
            _put_idle(self._endpoint, self._connection)
        else:
            self._connection.close()


def ask(
    endpoint: Endpoint,
    target: str,
    headers: Headers,
    *,
    connect_s: float,
    silence_s: float,
    look: Optional[Callable[[socket.socket], None]] = None,
    method: str = "GET",
) -> Reply:
    """GET (or HEAD) ``target``; the answer once its headers are there. Raises ``Unanswered``; ``ValueError`` for an unsendable header.

    An idle connection that the sidecar closed meanwhile is told by the first use; then one fresh one is made at once. ``look`` is given the
    socket once the question is out, before its answer is waited for.
    """
    connection = _take_idle(endpoint)
    if connection is not None:
        try:
            return _exchange(endpoint, connection, method, target, headers, silence_s, look)
        except Unanswered as trouble:
            if trouble.silent:
                raise
    return _exchange(endpoint, connect(endpoint, connect_s), method, target, headers, silence_s, look)


def ask_status(endpoint: Endpoint, within_s: float) -> Any:
    """What ``/v1/status`` says, each step of asking within ``within_s``. Raises ``Unanswered``; ``ValueError`` for what is no JSON."""
    reply = ask(endpoint, "/v1/status", [], connect_s=within_s, silence_s=within_s)
    content = reply.content(MAX_STATUS_BYTES)
    if reply.status != 200:
        raise Unanswered(f"{endpoint} answers HTTP {reply.status}")
    return json.loads(content)


def close_idle() -> None:
    """Close this thread's idle connection, if it has one."""
    _THREAD.idle = None


def connect(endpoint: Endpoint, connect_s: float) -> HTTPConnection:
    """A fresh connection. Raises ``Unanswered``."""
    connection = SidecarConnection(endpoint, connect_s)
    try:
        connection.connect()
    except OSError as error:
        connection.close()
        # A unix socket whose backlog is full says so at once, where TCP waits: it is there all the same, and takes nobody in.
        silent = isinstance(error, (socket.timeout, BlockingIOError))
        raise Unanswered(f"no connection to {endpoint} ({_reason(error)})", silent=silent) from error
    return connection


def _exchange(
    endpoint: Endpoint,
    connection: HTTPConnection,
    method: str,
    target: str,
    headers: Headers,
    silence_s: float,
    look: Optional[Callable[[socket.socket], None]],
) -> Reply:
    try:
        connection.sock.settimeout(silence_s)
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if endpoint.token:
            connection.putheader("Forebay-Token", endpoint.token)
        connection.endheaders()
        if look is not None:
            look(connection.sock)
        return Reply(endpoint, connection, connection.getresponse())
    except socket.timeout as error:
        connection.close()
        raise Unanswered(f"{endpoint} did not answer within {silence_s:g} s", silent=True) from error
    except (OSError, HTTPException) as error:
        connection.close()
        raise Unanswered(f"{endpoint} broke off ({_reason(error)})") from error
    except BaseException:
        connection.close()
        raise


def _take_idle(endpoint: Endpoint) -> Optional[HTTPConnection]:
    idle, _THREAD.idle = _THREAD.idle, None
    return None if idle is None else idle.take(endpoint)


def _put_idle(endpoint: Endpoint, connection: HTTPConnection) -> None:
    _THREAD.idle = _Idle(endpoint, connection)


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return type(error).__name__  # http.client's quote what came
    return error.strerror or str(error)[:200] or type(error).__name__
