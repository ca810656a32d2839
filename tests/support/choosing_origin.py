"""An origin that lets a request's header, or a parameter of its query, choose the bytes; all variants have one length and one date.

It answers itself, or leads on to a resource of each variant.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote

__all__ = ["DATE", "Choosing", "choosing_origin", "variant"]

_LED = "/variant/"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@functools.lru_cache(maxsize=8)
def variant(value: str, size: int) -> bytes:
    """The bytes that ``value`` chooses; "" for a request without."""
    return random.Random(value).randbytes(size)


@functools.lru_cache(maxsize=8)
def _digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Choosing(ThreadingHTTPServer):
    """``by``: the header that chooses, or ``?name``. ``strong``: each variant has an ETag. ``vary``: the lines that are sent.

    ``leads``: by a redirect, which alone has the ``vary``; an ETag is then of date and length, as nginx makes it.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, by: str, *, strong: bool, vary: tuple[str, ...], size: int = 5000) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.size = size
        self.leads = False
        self._serial = 0
        self.becomes(by, strong=strong, vary=vary)

    def becomes(self, by: str, *, strong: bool, vary: tuple[str, ...]) -> None:
        """Another shard, chosen otherwise."""
        self.by, self.strong, self.vary = by, strong, vary
        self.bodies: list[str] = []  # what chose each body of more than one byte
        self._serial += 1

    @property
    def shard(self) -> str:
        return f"{self.base}/set/{self._serial}.tar"

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Choosing

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        origin = self.server
        query = dict(parse_qsl(self.path.partition("?")[2]))
        value = query.get(origin.by[1:], "") if origin.by.startswith("?") else self.headers.get(origin.by, "")
        vary = [("Vary", line) for line in origin.vary]
        if self.path.startswith(_LED):
            value, vary = unquote(self.path[len(_LED) :]), []
        elif origin.leads:
            return self._send(302, b"", [("Location", _LED + quote(value, safe="")), *vary])
        data = variant(value, origin.size)
        etag = f'"5627-{len(data):x}"' if origin.leads else f'"{_digest(data)}"'
        wanted = self.headers.get("If-Match")
        if origin.strong and wanted not in (None, etag):
            return self._send(412, b"", [])
        part, found = data, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = [("Last-Modified", DATE), *vary, *([("ETag", etag)] if origin.strong else [])]
        if found:
            part = data[int(found[1]) : int(found[2]) + 1 if found[2] else None]
            headers.append(("Content-Range", f"bytes {found[1]}-{int(found[1]) + len(part) - 1}/{len(data)}"))
        if self.command == "GET" and len(part) > 1:
            origin.bodies.append(value)
        return self._send(206 if found else 200, part, headers)

    def _send(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            with suppress(ConnectionError):  # who had only asked for the headers
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@contextmanager
def choosing_origin(by: str, *, strong: bool, vary: tuple[str, ...], size: int = 5000) -> Iterator[Choosing]:
    """One that listens, for the length of a ``with``."""
    with Choosing(by, strong=strong, vary=vary, size=size) as origin:
        thread = threading.Thread(target=origin.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield origin
        finally:
            origin.shutdown()
            thread.join()
