"""An origin that answers in every way that tempts a client to write down what it was sent: it echoes credentials in bodies and headers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

__all__ = ["SHARD_BYTES", "LeakyOrigin", "leaky_origin"]

SHARD_BYTES = 300_000
_KINDS = ("denied", "missing", "broken", "redirect", "away", "elsewhere", "loop", "cut", "nonsense", "busy")


class LeakyOrigin(ThreadingHTTPServer):
    """``echoes`` counts the answers that repeated what came in."""

    daemon_threads = True
    echoes = 0
    elsewhere = ""  # where ``/elsewhere…`` redirects to
    seen: set[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients leave in the middle here: that is the point."""


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LeakyOrigin

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.seen |= {value for _, value in parse_qsl(parts.query)} | set(self.headers.values())
        kind = next((word for word in _KINDS if word in parts.path), "ok")
        getattr(self, f"_{kind}")(f"{self.path} {dict(self.headers)!r}")

    def _ok(self, _: str) -> None:
        wanted = self.headers.get("Range", "")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not wanted:
            self._send(200, b"s" * SHARD_BYTES, ETag='"v1"')
            return
        start, end = int(first), min(SHARD_BYTES, int(last or SHARD_BYTES) + 1)
        self._send(206, b"s" * (end - start), ETag='"v1"', **{"Content-Range": f"bytes {start}-{end - 1}/{SHARD_BYTES}"})

    def _denied(self, echo: str) -> None:
        """As S3 answers a wrong signature: with the key, the string to sign and all."""
        inner = "".join(f"<{name}>{echo}</{name}>" for name in ("StringToSign", "AWSAccessKeyId", "Message"))
        body = f"<Error><Code>SignatureDoesNotMatch</Code>{inner}</Error>"
        self._echo(403, body, **{"WWW-Authenticate": f'Bearer realm="{echo!a}"'})

    def _missing(self, echo: str) -> None:
        self._echo(404, f"<Error><Code>NoSuchKey</Code><Key>{echo}</Key></Error>")

    def _broken(self, echo: str) -> None:
        self._echo(500, echo)

    def _busy(self, echo: str) -> None:
        self._echo(503, f"<Error><Code>{echo}</Code></Error>", **{"Retry-After": echo})

    def _redirect(self, _: str) -> None:
        query = urlsplit(self.path).query
        self._send(302, b"", Location=f"{self.server.url}/signed/0.tar?{query}")

    def _away(self, _: str) -> None:
        query = urlsplit(self.path).query
        self._send(302, b"", Location=f"http://u:{self.headers.get('X-Vault-Token', 'p')}@169.254.169.254/latest?{query}")

    def _elsewhere(self, _: str) -> None:
        self._send(302, b"", Location=f"{self.server.elsewhere}/there.tar")

    def _loop(self, _: str) -> None:
        self._send(302, b"", Location=self.server.url + self.path)

    def _cut(self, _: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SHARD_BYTES))
        self.end_headers()
        self.wfile.write(b"s" * 1000)
        self.close_connection = True

    def _nonsense(self, echo: str) -> None:
        self.wfile.write(f"HTTP/1.1 2oo {echo}\r\n{echo}\r\n\r\n".encode())
        self.close_connection = True

    def _echo(self, status: int, body: str, **headers: str) -> None:
        self.server.echoes += 1
        self._send(status, body.encode(), **headers)

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def leaky_origin() -> Iterator[LeakyOrigin]:
    server = LeakyOrigin(("127.0.0.1", 0), _Answer)
    server.seen = set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
