"""Fifty who ask for /metrics and /v1/status without a pause, beside one who reads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from support.fake_proxy import FakeServer
from support.http_server import request
from support.sidecar import Sidecar, running
from support.tarmaking import hand_header

SIZE = 24_000_000
STORM = """
import asyncio, sys

async def ask(port, path):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(b"GET %s HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n" % path)
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        assert b" 200 " in head, head
        length = next(line for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        print("answered", flush=True)

async def main():
    await asyncio.gather(*(ask(int(sys.argv[1]), path) for path in (b"/metrics", b"/v1/status") for _ in range(25)))

asyncio.run(main())
"""


def rate(sidecar: Sidecar, target: str, seconds: float) -> float:
    """Bytes a second of one reader, who does nothing but read."""
    count, began, buffer = 0, time.monotonic(), bytearray(1 << 20)
    while time.monotonic() - began < seconds:
        with socket.create_connection(("127.0.0.1", sidecar.port)) as connection:
            connection.sendall(request("GET", target, {"Forebay-Reader": "job/0/0/1.1"}))
            while (got := connection.recv_into(buffer)) and time.monotonic() - began < seconds:
                count += got
    return count / (time.monotonic() - began)


def busy_s(sidecar: Sidecar) -> float:
    """Processor time of the sidecar so far."""
    fields = Path(f"/proc/{sidecar.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_reader_keeps_most_of_its_rate(place: Path) -> None:
    """Who asks how things are gets what was made for all who ask just then, and the sidecar reads for trainings in between.

    What the reader loses depends on who else uses this machine; what the storm takes of the sidecar's time does not.
    """
    with FakeServer().running() as origin:
        origin.put("/a.tar", hand_header(b"0.bin", SIZE - 1536) + bytes(SIZE - 512))
        with running(place, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
            target = sidecar.proxied(f"{origin.url}/a.tar").removeprefix(sidecar.url)
            assert len(sidecar.ask(target)) == SIZE
            before_s = busy_s(sidecar)
            alone = rate(sidecar, target, 1.0)
            alone_s = busy_s(sidecar) - before_s
            with subprocess.Popen([sys.executable, "-c", STORM, str(sidecar.port)], stdout=subprocess.PIPE) as storm:
                assert storm.stdout is not None
                storm.stdout.readline()
                before_s = busy_s(sidecar)
                beside = rate(sidecar, target, 1.5)
                taken = (busy_s(sidecar) - before_s - alone_s * 1.5 * beside / alone) / 1.5
                storm.terminate()
                answers = storm.stdout.read().count(b"\n")
            print(f"{alone / 1e6:.0f} MB/s alone, {beside / 1e6:.0f} beside {answers} answers, which took {taken:.2f} of a core")
            assert answers > 0
            assert taken < 0.25  # measured: 0.04 to 0.19; without a pause between answers, 0.27 to 0.42
            assert beside > alone / 5  # measured: a half and more with a core for each of the three; without a pause between answers, 0
