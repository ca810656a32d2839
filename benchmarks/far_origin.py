"""An origin as far away as one likes: latency, a rate for each connection, one for all together; and what it sent when.

    python benchmarks/far_origin.py --shards 128 --seed 1 [--latency-ms 30-100] [--connection-mb 50] [--together-mb 200]

Prints its URL, serves ``/set/shard-00000.tar`` and so on (far_set.py) until it is ended. ``GET /-/log`` answers what was fetched since the
last such request, as JSON: [[began, ended, shard, first byte, bytes sent], …], moments on the machine's monotonic clock;
``GET /-/together/80`` makes 80 MB/s the rate of all together from now on.

The kernels this runs on may have no ``tc netem``, so the distance is made here: an answer waits for its latency, and every piece of a body
for its turn at both rates. Lateness of a timer up to 20 ms is given back, or many connections would never come near the rate they share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from far_set import FarSet  # noqa: E402
from rivals import process  # noqa: E402

CREDIT_S = 0.02
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)


class Turn:
    """Whose turn it is at a rate; None: nobody waits."""

    def __init__(self, rate_bytes_s: float | None) -> None:
        self.piece_bytes = 2**20 if rate_bytes_s is None else max(16384, min(2**18, int(rate_bytes_s / 200)))
        self.rate_bytes_s = rate_bytes_s
        self._free_at = 0.0

    async def wait(self, size: int) -> None:
        if self.rate_bytes_s is None:
            return
        now = time.monotonic()
        self._free_at = max(self._free_at, now - CREDIT_S) + size / self.rate_bytes_s
        if self._free_at > now + 0.001:
            await asyncio.sleep(self._free_at - now)


class FarOrigin:
    """Answers GET and HEAD of the shards of one set."""

    def __init__(
        self, shards: FarSet, latency_s: tuple[float, float], connection_bytes_s: float | None, together_bytes_s: float | None
    ) -> None:
        self._shards = shards
        self._latency_s = latency_s
        self._connection_bytes_s = connection_bytes_s
        self._together = Turn(together_bytes_s)
        self._log: list[tuple[float, float, int, int, int]] = []
        self._random = random.Random(shards.seed)
        self._numbers = {f"/set/{name}".encode(): number for number, name in enumerate(shards.names)}

    async def serve(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server((address, 0), backlog=256)
        listener.setblocking(False)
        print(f"http://{address}:{listener.getsockname()[1]}", flush=True)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.ensure_future(self._talk(client))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _talk(self, client: socket.socket) -> None:
        loop, received, turn = asyncio.get_running_loop(), b"", Turn(self._connection_bytes_s)
        with client, suppress(ConnectionError):
            while True:
                while b"\r\n\r\n" not in received:
                    more = await loop.sock_recv(client, 65536)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                await self._answer(client, head, turn)

    async def _answer(self, client: socket.socket, head: bytes, turn: Turn) -> None:
        loop = asyncio.get_running_loop()
        method, target = head.split(b" ", 2)[:2]
        if target.startswith(b"/-/"):
            body = self._told(target.decode())
            await loop.sock_sendall(client, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        number = self._numbers.get(target)
        if number is None:
            await loop.sock_sendall(client, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        began = time.monotonic()
        if self._latency_s[1]:
            await asyncio.sleep(self._random.uniform(*self._latency_s))
        length = self._shards.lengths[number]
        asked = _RANGE.search(head)
        first = int(asked[1]) if asked else 0
        end = min(length, int(asked[2]) + 1) if asked and asked[2] else length
        status = b"206 Partial Content\r\nContent-Range: bytes %d-%d/%d" % (first, end - 1, length) if asked else b"200 OK"
        said = b'HTTP/1.1 %s\r\nContent-Length: %d\r\nAccept-Ranges: bytes\r\nETag: "%d"\r\n\r\n' % (status, end - first, number)
        await loop.sock_sendall(client, said)
        sent = 0
        try:
            if method == b"GET":
                for piece in _cut(self._shards.part(number, first, end), min(turn.piece_bytes, self._together.piece_bytes)):
                    await turn.wait(len(piece))
                    await self._together.wait(len(piece))
                    await loop.sock_sendall(client, piece)
                    sent += len(piece)
        finally:
            if sent:
                self._log.append((began, time.monotonic(), number, first, sent))

    def _told(self, target: str) -> bytes:
        """Who runs the benchmark asks for the log, or sets the rate."""
        if target.startswith("/-/together/"):
            self._together = Turn(float(target.rpartition("/")[2]) * 1e6)
            return b"null"
        body = json.dumps(self._log).encode()
        self._log.clear()
        return body


def _cut(pieces: Iterator[memoryview], most: int) -> Iterator[memoryview]:
    for piece in pieces:
        for start in range(0, len(piece), most):
            yield piece[start : start + most]


@contextmanager
def far_origin(
    shards: FarSet,
    *,
    latency_ms: str = "0",
    connection_mb: float | None = None,
    together_mb: float | None = None,
    address: str = "127.0.0.1",
) -> Iterator[str]:
    """One in a process of its own for the length of the ``with``; its URL. Rates are 10^6 bytes a second."""
    command = [sys.executable, str(Path(__file__)), "--shards", str(shards.count), "--seed", str(shards.seed), "--latency-ms", latency_ms]
    command += ["--most-segments", str(shards.most_segments), "--address", address]
    command += [] if connection_mb is None else ["--connection-mb", str(connection_mb)]
    command += [] if together_mb is None else ["--together-mb", str(together_mb)]
    with process(command, stdout=-1) as child:
        assert child.stdout is not None
        yield child.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-segments", type=int, default=3)
    parser.add_argument("--latency-ms", default="0", help="LEAST-MOST, drawn anew for each answer")
    parser.add_argument("--connection-mb", type=float)
    parser.add_argument("--together-mb", type=float)
    parser.add_argument("--address", default="127.0.0.1", help="where it listens")
    given = parser.parse_args()
    least, _, most = given.latency_ms.partition("-")
    rates = [rate and rate * 1e6 for rate in (given.connection_mb, given.together_mb)]
    origin = FarOrigin(FarSet(given.shards, given.seed, given.most_segments), (float(least) / 1e3, float(most or least) / 1e3), *rates)
    with suppress(KeyboardInterrupt):
        asyncio.run(origin.serve(given.address))


if __name__ == "__main__":
    main()
