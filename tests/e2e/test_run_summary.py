"""What the summary of ``forebay run`` tells is the command's own, and no more was hit than was sent: real sidecar, real nginx."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support import nginx as servers
from support.raw import line
from support.readers import make_shard
from support.sidecar import FOREBAY, STOP_S, Sidecar, environment, forebay, running, wait_until

pytestmark = [pytest.mark.needs("nginx")]

SIZE = 12_000_000


@pytest.fixture
def origin(place: Path) -> Iterator[servers.Nginx]:
    (place / "files").mkdir()
    make_shard(place / "files" / "a.tar", SIZE, 1)
    with servers.nginx(place / "nginx", place / "files") as made:
        yield made


def get(url: str, job: str = "") -> None:
    request = urllib.request.Request(url, headers={"Forebay-Reader": f"{job}/0/0/1.1"} if job else {})
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert len(answer.read()) == SIZE


class Sent(NamedTuple):
    """Bytes, as ``/v1/status`` and as the metrics have them."""

    sent: int
    hit: int
    metrics_sent: float
    metrics_hit: float

    @classmethod
    def of(cls, sidecar: Sidecar) -> Sent:
        counted = sidecar.status()["bytes"]
        metrics = sidecar.metric("forebay_request_bytes_total"), sidecar.metric("forebay_hit_bytes_total")
        return cls(counted["sent"], counted["hit"], *metrics)


async def test_a_sidecar_that_was_lost_is_told_once(place: Path, origin: servers.Nginx) -> None:
    """At the command's end, which goes on as it would have; not where the sidecar lives."""
    with running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar:
        for kills, count in (("true", 0), (f"kill -9 {sidecar.process.pid}", 1)):
            ended = forebay(place, "run", "--", "sh", "-c", f"{kills}; exit 7", FOREBAY_URL=sidecar.url)
            assert ended.returncode == 7
            assert ended.stderr.count(f"the sidecar at {sidecar.url} is gone") == count, ended.stderr
        # Its sockets are closed before it can be waited for, and until then it would seem to live.
        assert sidecar.process.wait(STOP_S) == -signal.SIGKILL


async def test_hits_never_exceed_what_was_sent(place: Path, origin: servers.Nginx) -> None:
    """Clients that leave after a few bytes: what was taken from the store for them and never sent is no hit."""
    with running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar:
        url = sidecar.proxied(origin.url("a.tar"))
        get(url)
        before = Sent.of(sidecar)
        for _ in range(8):
            async with line(sidecar.port, receive_bytes=4096) as connection:
                path = url.removeprefix(sidecar.url)
                await connection.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{sidecar.port}\r\n\r\n".encode())
                await connection.reader.readexactly(100)
        wait_until(lambda: sidecar.metric("forebay_responses_aborted_total", reason="client_gone") == 8)
        after = Sent.of(sidecar)
    assert after.hit - before.hit == after.sent - before.sent < 8 * SIZE
    assert after.metrics_hit - before.metrics_hit == after.metrics_sent - before.metrics_sent


def run_beside(place: Path, sidecar: Sidecar, command: str, *arguments: str) -> tuple[str, subprocess.Popen[str]]:
    argv = [*FOREBAY, "run", "--url", sidecar.url, "--", "sh", "-c", f"echo $FOREBAY_JOB; read line; {command}", "sh", *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, env=environment(place), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


NAMED = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], headers={'Forebay-Reader': sys.argv[2] + '/0/0/1.1'})).read()"


def test_each_of_two_commands_is_told_its_own(place: Path, origin: servers.Nginx) -> None:
    """One reads by a name, one reads nothing: the second hears that, whatever the first and a curl read meanwhile."""
    with running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar:
        url = sidecar.proxied(origin.url("a.tar"))
        job, reading = run_beside(place, sidecar, f'"{sys.executable}" -c "$@" $FOREBAY_JOB', NAMED, url)
        other, idle = run_beside(place, sidecar, "true")
        assert job != other
        _, by_first = reading.communicate("\n", timeout=240)
        get(url)
        _, by_second = idle.communicate("\n", timeout=240)
    assert re.search(r"^forebay: 12.0 MB read, .* hit \(\d+ %\), 12.0 MB from origins, 0 B saved; ", by_first, re.MULTILINE)
    (told,) = [said for said in by_second.splitlines() if "no reader of this command read" in said]
    assert "this command's or others': 12.0 MB read, 12.0 MB hit (100 %)" in told
    assert "0 processes taken over" in by_second
