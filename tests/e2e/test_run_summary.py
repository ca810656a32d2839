"""No more was hit than was sent: real sidecar, real nginx."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support import nginx as servers
from support.raw import line
from support.readers import make_shard
from support.sidecar import Sidecar, running, wait_until

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
