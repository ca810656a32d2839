"""The world around a soaked sidecar, in one process: an origin that fails at random, and readers who come, plan, stall and die.

    python benchmarks/crowd.py READERS SEED MINUTES

Started by soak.py: the first line on stdout names the origin, the line on stdin the sidecar's port, then a JSON line says every second how
things are.

Every shard is a slice of one block of noise, and its ETag says which, so a reader knows what every byte must be from the answer alone, also
after the shard has been replaced. One process and no threads: on two cores most of the machine is left to the sidecar.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from support import faults  # noqa: E402
from support.scripted_answers import Fault, Reply, Served  # noqa: E402
from support.scripted_origin import ScriptedOrigin  # noqa: E402

SHARDS = 48
SMALLEST, LARGEST = 200_000, 20_000_000  # even on a logarithmic scale: 4.3 MB on average, from a part of a segment to three
NOISE_BYTES = 64 << 20
FAULTY = 0.04  # of the origin's answers
THINKS_S = 3.0  # on average between two shards: 64 readers then take some 60 MB/s, a tenth of what one core can pass on
PIECE_BYTES = 1 << 18
PLAN_SHARDS = 12
HUNG_S = 150.0  # a read that takes longer is called hung: the sidecar rides out trouble for 60 s here (--retry-budget-s)
_NAMES = re.compile(r"shard http:\S+ |\d+")  # what makes one error of many
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Noise:
    """Where every shard's bytes come from."""

    def __init__(self, seed: int) -> None:
        self.data = random.Random(seed).randbytes(NOISE_BYTES)

    def state(self, chance: random.Random, size: int) -> Reply:
        start = chance.randrange(NOISE_BYTES - size)
        return Reply(self.data[start : start + size], etag=f'"{start}-{size}"')

    def place(self, etag: str) -> tuple[int, int]:
        """(start, size) of the version an ETag names."""
        start, size = etag.strip('"').split("-")
        return int(start), int(size)


class Chance(dict[int, Fault]):
    """A script that is never written: any answer may go wrong."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def pop(self, number: int, default: Any = None) -> Any:
        return _FAULTS[self._chance.randrange(len(_FAULTS))](self._chance) if self._chance.random() < FAULTY else default


_FAULTS: tuple[Callable[[random.Random], Fault], ...] = (
    lambda chance: faults.cut_short(chance.randrange(-1, 6 << 20), reset=chance.random() < 0.5),
    lambda chance: faults.stall(chance.randrange(-1, 6 << 20)),
    lambda chance: faults.status(503, "1"),
    lambda chance: faults.status(chance.choice((500, 502, 504, 429))),
    lambda _: faults.hush(),
    lambda chance: faults.WrongLength(chance.choice((-7, 7))),
    lambda _: faults.Surplus(),
    lambda chance: faults.MisplacedRange(chance.choice((-4096, 4096))),
    lambda chance: faults.DifferentTotal(chance.choice((-1, 1))),
    lambda _: faults.Garbled("Content-Range", None),
    lambda chance: faults.Drip(2.0),
    lambda chance: faults.bad_chunk(chance.randrange(0, 3 << 20)),
    lambda _: faults.not_http(b"<html>502</html>"),
    lambda _: faults.hints(),
)


@dataclass
class Told:
    """What has happened so far; ``wrong`` says where the first wrong bytes were."""

    counts: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    ended: bool = False
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        told = {"counts": self.counts, "bytes": self.bytes, "wrong": self.wrong[:8], "errors": self.errors}
        return json.dumps({"ended": self.ended, **told})


class Left(Exception):
    """This reader goes in the middle of a body."""


class Crowd:
    def __init__(self, seed: int) -> None:
        self.port = 0  # the sidecar's
        self.origin = ScriptedOrigin()
        self.told = Told()
        self.ended = False
        self._chance = random.Random(seed)
        self._noise = Noise(seed)

    def build(self) -> None:
        for number in range(SHARDS):
            size = round(SMALLEST * (LARGEST / SMALLEST) ** (number / (SHARDS - 1)))
            self.origin.put(f"/set/{number:03d}.tar", self._noise.state(self._chance, size))

    def begin_to_fail(self) -> None:
        for served in self.origin.shards.values():
            served.script = Chance(self._chance)

    @property
    def paths(self) -> list[str]:
        return list(self.origin.shards)

    # Readers

    async def reader(self, number: int) -> None:
        """One worker: epoch after epoch its own order, announced a little ahead; it dies now and then and another takes its place."""
        life = 0
        while not self.ended:
            life += 1
            name = f"job{number % 8}/0/{number}/{life}.0"
            with suppress(OSError, asyncio.IncompleteReadError, Left):
                await self._live(name)

    async def _live(self, name: str) -> None:
        client = Client(self.port, self.told)
        try:
            while not self.ended:
                order = self._chance.sample(self.paths, len(self.paths))
                for at, path in enumerate(order):
                    await self._think()
                    if self.ended:
                        return
                    if at % PLAN_SHARDS == 0:
                        await client.plan(name, [self.origin.url(each) for each in order[at : at + PLAN_SHARDS]])
                    await self._one(client, name, path)
        finally:
            client.close()

    async def _one(self, client: Client, name: str, path: str) -> None:
        """One shard, or part of it; perhaps this reader stalls on the way, or dies."""
        size = self.origin.shards[path].now.length
        span = None
        if self._chance.random() < 0.2:
            first = self._chance.randrange(size)
            span = (first, self._chance.randrange(first, size))
        mood = self._chance.random()
        dies_at = self._chance.randrange(size) if mood < 0.03 else None
        stalls_s = self._chance.uniform(1, 8) if 0.03 <= mood < 0.06 else 0.0
        began = time.monotonic()
        try:
            async with asyncio.timeout(HUNG_S):
                await client.read(self.origin.url(path), name, self._noise, span, dies_at, stalls_s)
        except TimeoutError:
            self.told.counts["hung"] += 1
            client.close()
        self.told.counts["slow"] += time.monotonic() - began > 30 + stalls_s

    async def stopped(self, number: int) -> None:
        """A reader that is a process of its own: stopped in the middle by SIGSTOP, then woken or killed."""
        while not self.ended:
            await self._think()
            path = self._chance.choice(self.paths)
            url = f"http://127.0.0.1:{self.port}/http/{self.origin.url(path).removeprefix('http://')}"
            curl = await asyncio.create_subprocess_exec(
                "curl", "-s", "--limit-rate", "4M", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", url,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await asyncio.sleep(self._chance.uniform(0.05, 0.5))
            with suppress(ProcessLookupError):
                curl.send_signal(signal.SIGSTOP)
                await asyncio.sleep(self._chance.uniform(0.5, 8))
                curl.send_signal(signal.SIGKILL if self._chance.random() < 0.3 else signal.SIGCONT)
            await curl.communicate()
            self.told.counts["stopped processes"] += 1

    async def _think(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / THINKS_S))

    # What else happens

    async def weather(self) -> None:
        """Shards are replaced, the host goes away for a moment, somebody evicts."""
        client = Client(self.port, self.told)
        while not self.ended:
            await asyncio.sleep(self._chance.uniform(0.5, 3))
            pick = self._chance.random()
            served = self.origin.shards[self._chance.choice(self.paths)]
            if pick < 0.3:
                self._replace(served)
            elif pick < 0.4:
                async with self.origin.away():
                    await asyncio.sleep(0.3)
            else:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await client.evict(self.origin.url(served.path))
        client.close()

    def _replace(self, served: Served) -> None:
        served.states = [self._noise.state(self._chance, served.now.length)]
        served.claimed.clear()


class Client:
    """A keep-alive connection to the sidecar that compares as it reads."""

    def __init__(self, port: int, told: Told) -> None:
        self._port = port
        self._told = told
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self, *, reset: bool = False) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            if reset:
                streams[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            streams[1].transport.abort()

    async def plan(self, name: str, urls: list[str]) -> None:
        status, _ = await self._ask("PUT", f"/v1/plans/{name}", json.dumps({"shards": urls}).encode())
        self._told.counts["plans"] += status == 204

    async def evict(self, url: str) -> None:
        await self._ask("POST", "/v1/evict", json.dumps({"shards": [url]}).encode())
        self._told.counts["evictions"] += 1

    async def read(self, url: str, name: str, noise: Noise, span: tuple[int, int] | None, dies_at: int | None, stalls_s: float) -> None:
        """GET and compare. Raises ``Left`` where the reader dies; an error status or a cut is counted, and no fault of ours."""
        counts = self._told.counts
        headers = f"Forebay-Reader: {name}\r\n" + (f"Range: bytes={span[0]}-{span[1]}\r\n" if span else "")
        try:
            status, fields = await self._send("GET", f"/http/{url.removeprefix('http://')}", headers)
            length = int(fields["content-length"])
            if status not in (200, 206):
                problem = json.loads(await self._streams[0].readexactly(length))  # type: ignore[index]
                counts["refused"] += 1
                self._told.errors[f"{status} {_NAMES.sub('', problem['detail'])[:100]}"] += 1
                return
            start, size = noise.place(fields["etag"])
            first = int(fields["content-range"].split(" ")[1].split("-")[0]) if status == 206 else 0
            whole = await self._compare(url, noise.data, start + first, length, dies_at, stalls_s)
            if whole and ((status == 200 and length != size) or (status == 206 and (span is None or first != span[0]))):
                self._told.wrong.append(f"{url}: {status}, {length} bytes from {first} of {size}, asked for {span}")
            counts["whole" if whole else "cut"] += 1
        except (OSError, asyncio.IncompleteReadError):
            counts["cut"] += 1
            self.close()

    async def _compare(self, url: str, data: bytes, at: int, length: int, dies_at: int | None, stalls_s: float) -> bool:
        assert self._streams is not None
        reader, left, count = self._streams[0], length, 0
        while left:
            piece = await reader.read(min(left, PIECE_BYTES))
            if not piece:
                self.close()
                return False
            if piece != data[at + count : at + count + len(piece)]:
                self._told.wrong.append(f"{url}: between {count} and {count + len(piece)}")
                self._told.counts["wrong"] += 1
            count += len(piece)
            left -= len(piece)
            self._told.bytes += len(piece)
            if stalls_s and count > length // 2:
                await asyncio.sleep(stalls_s)
                stalls_s = 0.0
            if dies_at is not None and count > dies_at:
                self._told.counts["died"] += 1
                self.close(reset=True)
                raise Left
        return True

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        status, fields = await self._send(method, path, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n", body)
        assert self._streams is not None
        return status, await self._streams[0].readexactly(int(fields.get("content-length", "0")))

    async def _send(self, method: str, path: str, headers: str, body: bytes = b"") -> tuple[int, dict[str, str]]:
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=PIECE_BYTES)
        reader, writer = self._streams
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
        return int(lines[0].split(" ")[1]), fields


async def run(readers: int, seed: int, minutes: float) -> None:
    crowd = Crowd(seed)
    crowd.build()
    own_processes = min(4, readers // 16)
    async with crowd.origin:
        print(json.dumps({"origin": crowd.origin.base}), flush=True)
        # The sidecar must be told where we are before it starts, and may ask us something before the soak begins.
        crowd.port = int(await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline))
        crowd.begin_to_fail()
        async with asyncio.TaskGroup() as group:
            for number in range(readers - own_processes):
                group.create_task(crowd.reader(number))
            for number in range(own_processes):
                group.create_task(crowd.stopped(number))
            group.create_task(crowd.weather())
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end:
                await asyncio.sleep(1)
                crowd.origin.requests.clear()
                print(crowd.told.line(), flush=True)
            crowd.ended = crowd.told.ended = True
        print(crowd.told.line(), flush=True)


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
