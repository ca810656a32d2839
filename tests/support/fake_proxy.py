"""A small threaded HTTP server that speaks what a sidecar speaks, and breaks on demand. Serves as an http origin as well.

``server.put(target, body)`` sets what a request target answers; ``server.fault(target, …)`` what the next requests for it suffer, one each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import socketserver
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

__all__ = ["Cut", "FakeServer", "Held", "Recorded", "Refuse", "Silent", "ramp"]

BLOCK = 64 * 1024
HUNG_S = 120.0  # the longest a test lets it hang


def ramp(length: int, seed: int = 0) -> bytes:
    """``length`` bytes of which any can be told from its place."""
    return hashlib.shake_128(f"{seed}".encode()).digest(length)


@dataclass(frozen=True)
class Cut:
    """Send so many bytes of the body, then break the connection. ``then`` runs just before the break."""

    after: int
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Refuse:
    """Answer with an error as the sidecar words it."""

    status: int
    detail: str = "refused"
    headers: tuple[tuple[str, str], ...] = ()
    retryable: bool = True


@dataclass(frozen=True)
class Held:
    """Send the headers and so many bytes, then nothing until ``gate`` is set; then break."""

    after: int
    gate: threading.Event


@dataclass(frozen=True)
class Silent:
    """Send nothing until ``gate`` is set; then break."""

    gate: threading.Event


@dataclass(frozen=True)
class Recorded:
    """One request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass
class Shown:
    """What one target answers."""

    body: bytes
    etag: str
    ranges: bool = True
    framing: str = "length"  # or "chunked", "close"
    honours_if_match: bool = True
    headers: dict[str, str] = field(default_factory=dict)


class FakeServer:
    """Listens on 127.0.0.1 (or a unix socket) between ``start`` and ``stop``, again on the same address after the next ``start``."""

    def __init__(self, socket_path: str = "") -> None:
        self.socket_path = socket_path
        self.port = 0
        self.requests: list[Recorded] = []
        self.shown: dict[str, Shown] = {}
        self.plan_status = 204
        self.turning = threading.Event()  # clear it, and it takes connections and says nothing, as one that is stopped
        self.turning.set()
        self.instance = ""  # what Forebay-Instance says; "" for a sidecar that does not say
        self._faults: dict[str, deque[Cut | Refuse | Held | Silent]] = defaultdict(deque)
        self._server: socketserver.BaseServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else f"http://127.0.0.1:{self.port}"

    def put(self, target: str, body: bytes, **how: object) -> None:
        """Answer ``target`` with ``body``; ``etag``, ``ranges``, ``framing``, ``honours_if_match`` and ``headers`` as in ``Shown``."""
        etag = f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"'
        self.shown[target] = Shown(**{"body": body, "etag": etag, **how})  # type: ignore[arg-type]

    def fault(self, target: str, *faults: Cut | Refuse | Held | Silent) -> None:
        self._faults[target].extend(faults)

    def asked(self, target: str) -> list[Recorded]:
        """The requests for ``target`` so far."""
        return [request for request in self.requests if request.target == target]

    @property
    def plans(self) -> list[Recorded]:
        return [request for request in self.requests if request.target.startswith("/v1/plans/")]

    def start(self) -> FakeServer:
        server = _Unix(self.socket_path) if self.socket_path else _Tcp(self.port)
        server.fake = self
        self.port = 0 if self.socket_path else server.server_address[1]
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Die: the listener closes and every connection breaks."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        server.break_all()  # type: ignore[attr-defined]
        assert self._thread is not None
        self._thread.join()

    @contextlib.contextmanager
    def running(self) -> Iterator[FakeServer]:
        self.start()
        try:
            yield self
        finally:
            self.stop()


class _Serving(socketserver.ThreadingMixIn):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    fake: FakeServer

    def remember(self, connection: socket.socket) -> None:
        self.__dict__.setdefault("connections", set()).add(connection)

    def break_all(self) -> None:
        for connection in list(self.__dict__.get("connections", ())):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Tcp(_Serving, socketserver.TCPServer):
    request_queue_size = 128

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)


class _Unix(_Serving, socketserver.UnixStreamServer):
    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        super().__init__(path, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = False
    server: _Serving

    def setup(self) -> None:
        super().setup()
        self.server.remember(self.connection)

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.server.fake.turning.wait(HUNG_S)
        self._record(b"")
        fake = self.server.fake
        if self.path == "/healthz":
            self._plain(200, b"ok")
            return
        faults = fake._faults[self.path] if self.command == "GET" else None  # a look suffers none
        fault = faults.popleft() if faults else None
        shown = fake.shown.get(self.path)
        if isinstance(fault, Refuse):
            self._refuse(fault)
        elif isinstance(fault, Silent):
            fault.gate.wait(60)
            self.close_connection = True
        elif shown is None:
            self._refuse(Refuse(404, f"no shard {self.path}"))
        else:
            self._serve(shown, fault)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self._record(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        self._plain(self.server.fake.plan_status, b"")

    do_POST = do_PUT
    do_DELETE = do_PUT

    def _record(self, body: bytes) -> None:
        self.server.fake.requests.append(Recorded(self.command, self.path, dict(self.headers.items()), body, id(self.connection)))

    def _plain(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self._name_instance()
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, fault: Refuse) -> None:
        said = {"title": "Refused by the fake", "status": fault.status, "detail": fault.detail, "retryable": fault.retryable}
        body = json.dumps(said).encode()
        self.send_response(fault.status)
        for name, value in fault.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _name_instance(self) -> None:
        if self.server.fake.instance:
            self.send_header("Forebay-Instance", self.server.fake.instance)

    def _serve(self, shown: Shown, fault: Cut | Held | None) -> None:
        wanted = self.headers.get("If-Match")
        if wanted and shown.honours_if_match and wanted != shown.etag:
            self._refuse(Refuse(412, "another version"))
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if shown.ranges else None
        first = int(asked[1]) if asked else 0
        end = min(int(asked[2]) + 1, len(shown.body)) if asked and asked[2] else len(shown.body)
        if asked and first >= len(shown.body):
            self._refuse(Refuse(416, "beyond the end", (("Content-Range", f"bytes */{len(shown.body)}"),)))
            return
        self._head(shown, first if asked else None, end)
        if self.command != "HEAD":
            self._body(shown, shown.body[first:end], fault)

    def _head(self, shown: Shown, first: int | None, end: int) -> None:
        self.send_response(200 if first is None else 206)
        if first is not None:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{len(shown.body)}")
        if shown.etag:
            self.send_header("ETag", shown.etag)
        for name, value in shown.headers.items():
            self.send_header(name, value)
        self._name_instance()
        if shown.framing == "length":
            self.send_header("Content-Length", str(end - (first or 0)))
        elif shown.framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.close_connection = True
        self.end_headers()

    def _body(self, shown: Shown, body: bytes, fault: Cut | Held | None) -> None:
        sent = body if fault is None else body[: fault.after]
        for at in range(0, len(sent), BLOCK):
            self._write(shown, sent[at : at + BLOCK])
        if isinstance(fault, Held):
            fault.gate.wait(60)
        if isinstance(fault, Cut):
            fault.then()
        if fault is not None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
        elif shown.framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    def _write(self, shown: Shown, block: bytes) -> None:
        self.server.fake.turning.wait(HUNG_S)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block) if shown.framing == "chunked" else block)
