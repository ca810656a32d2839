"""Shards whose every byte can be told from its place, and readers that compare each byte as it comes.

A reader compares with the file the origin serves, mapped into memory: a gigabyte takes a tenth of a second, so that the test is about the
sidecar and not about itself.
"""

from __future__ import annotations

import http.client
import mmap
import random
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.scripted_origin import ScriptedOrigin
from support.tarmaking import hand_header

__all__ = ["Got", "make_shard", "many", "put_shards", "read", "shard_sizes", "spans"]

_BLOCK = 1 << 16
_NOISE = random.Random(7).randbytes(_BLOCK)
READ_BYTES = 1 << 20


def make_shard(path: Path, size: int, number: int) -> Path:
    """A file of ``size`` bytes in which every 64 KiB but the first begin with the shard's number and their offset; its ends are a tar's."""
    with path.open("wb") as file:
        for offset in range(0, size, _BLOCK):
            file.write((struct.pack("<QQ", number, offset) + _NOISE[16:])[: size - offset])
        if size >= 4 << 10:
            file.seek(0)
            file.write(hand_header(b"%d.bin" % number, size - 1536))
            file.seek(size - 1024)
            file.write(bytes(1024))
    return path


def put_shards(directory: Path, origin: ScriptedOrigin, count: int, size: int) -> list[Path]:
    """Files of ``make_shard`` by the names 00.tar, 01.tar, …, and the same at ``origin``."""
    made = [make_shard(directory / f"{number:02d}.tar", size, number) for number in range(count)]
    for file in made:
        origin.put(f"/{file.name}", file.read_bytes())
    return made


def shard_sizes(count: int, smallest: int, largest: int, bend: float = 1.0) -> list[int]:
    """``count`` sizes from ``smallest`` to ``largest``, even on a logarithmic scale; ``bend`` above 1 makes the large ones fewer."""
    steps = [(index / (count - 1)) ** bend for index in range(count)]
    return [round(smallest * (largest / smallest) ** step) for step in steps]


@dataclass(frozen=True)
class Got:
    """What a reader got. ``whole``: the answer's framing ended as promised; ``first_byte_s`` and ``last_byte_s`` since it asked."""

    status: int
    headers: Mapping[str, str]
    count: int
    whole: bool
    first_byte_s: float
    last_byte_s: float
    body: bytes = b""


def read(
    url: str,
    like: Path | None = None,
    *,
    span: tuple[int, int] | None = None,
    headers: Mapping[str, str] | None = None,
    seen: Callable[[int], Any] = lambda count: None,
    stop_after: int | None = None,
) -> Got:
    """GET ``url`` and compare every byte with the file ``like``; without it the body is kept.

    ``span`` asks for the bytes first to last (both inclusive). ``seen`` is told the count after each piece. ``stop_after`` leaves, with a
    reset, after so many bytes. AssertionError for a wrong byte; a connection that breaks off is a ``Got`` that is not ``whole``.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=120)
    with closing(connection):
        started = time.monotonic()
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={**({"Range": f"bytes={span[0]}-{span[1]}"} if span else {}), **(headers or {})})
        response = connection.getresponse()
        first = span[0] if span and response.status == 206 else 0
        if like is None:
            return _kept(response, started)
        assert response.status in (200, 206), (url, response.status, response.read(500))
        with _mapped(like) as expected:
            return _compared(response, connection, expected, first, started, seen, stop_after)


def _kept(response: http.client.HTTPResponse, started: float) -> Got:
    first_byte_s = time.monotonic() - started
    whole, body = True, b""
    try:
        body = response.read()
    except (http.client.IncompleteRead, ConnectionError) as error:
        whole, body = False, getattr(error, "partial", b"")
    return Got(response.status, _headers(response), len(body), whole, first_byte_s, time.monotonic() - started, body)


def _compared(
    response: http.client.HTTPResponse,
    connection: http.client.HTTPConnection,
    expected: Any,
    first: int,
    started: float,
    seen: Callable[[int], Any],
    stop_after: int | None,
) -> Got:
    promised, count, first_byte_s, whole = response.length, 0, 0.0, True
    while stop_after is None or count < stop_after:
        try:
            piece = response.read1(READ_BYTES)
        except (http.client.IncompleteRead, ConnectionError):
            whole = False
            break
        if not piece:
            break
        first_byte_s = first_byte_s or time.monotonic() - started
        start, count = first + count, count + len(piece)
        assert expected[start : first + count] == piece, f"wrong bytes between {start} and {first + count}"
        seen(count)
    if stop_after is not None and count >= stop_after:
        _walk_away(connection.sock)
        whole = False
    whole = whole and (promised is None or count == promised)
    return Got(response.status, _headers(response), count, whole, first_byte_s, time.monotonic() - started)


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


@contextmanager
def _mapped(path: Path) -> Iterator[Any]:
    """The file to slice. Slices of a map are bytes, which compare at memory speed; an empty file cannot be mapped."""
    if not path.stat().st_size:
        yield b""
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        yield mapped


def _walk_away(sock: socket.socket | None) -> None:
    """Leave as a killed process does: the connection is reset."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def many(readers: int, work: Iterable[Callable[[], Got]]) -> list[Got]:
    """Do ``work`` with so many readers at a time; raises what any of them raised."""
    with ThreadPoolExecutor(readers) as pool:
        return list(pool.map(lambda job: job(), work))


def spans(rng: random.Random, size: int, count: int) -> Sequence[tuple[int, int]]:
    """``count`` random spans (first, last) in a shard of ``size`` bytes."""
    found = []
    for _ in range(count):
        first = rng.randrange(size)
        found.append((first, rng.randrange(first, min(size, first + (24 << 20)))))
    return found
