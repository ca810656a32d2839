"""What nobody should send: a 4xx that says what is wrong and what would be right; nothing is fetched, nothing is stored."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.http_server import parse, request
from support.sidecar import Sidecar, running

READER = "/v1/plans/job/0/0/1.1"


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeServer]:
    server = FakeServer()
    with server.running():
        server.put("/a.tar", b"x" * 1000)
        yield server


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory, origin: FakeServer) -> Iterator[Sidecar]:
    """One for all of them: none leaves a trace."""
    place = tmp_path_factory.mktemp("bad-input")
    with running(place, "--cache-size", "100MB", allow=[origin.url], environ={"AWS_REGION": "us-east-1"}) as made:
        yield made


def sent(
    sidecar: Sidecar, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> tuple[int, dict[str, Any]]:
    """Status and problem of a request that goes out exactly as written."""
    with socket.create_connection(("127.0.0.1", sidecar.port), timeout=120) as connection:
        connection.sendall(request(method, target, headers, body))
        received = bytearray()
        while part := connection.recv(1 << 16):
            received += part
    reply = parse(bytes(received))
    return reply.status, reply.problem if reply.status >= 400 else {}


@pytest.fixture(autouse=True)
def nothing_happens(request: pytest.FixtureRequest, sidecar: Sidecar, origin: FakeServer) -> Iterator[None]:
    """Unless a test says ``fetches``: no origin is asked, nothing is stored, no plan is taken."""
    before = state(sidecar, origin)
    yield
    if request.node.get_closest_marker("fetches") is None:
        assert state(sidecar, origin) == before


def state(sidecar: Sidecar, origin: FakeServer) -> tuple[object, ...]:
    status = sidecar.status()
    counted = sidecar.metric("forebay_origin_requests_total"), status["bytes"]["origin"]
    return len(origin.requests), list(sidecar.shards()), status["plans"], *counted


@pytest.mark.parametrize(
    ("target", "statuses", "says"),
    [
        ("/ftp/host/a.tar", {400, 404}, "s3"),
        ("/gopher/host/a.tar", {400, 404}, "s3"),
        ("/s3/", {400}, "bucket"),
        ("/s3//key", {400}, "bucket"),
        ("/s3/bucket", {400}, "key"),
        ("/http/", {400}, "host"),
        ("/https/host:99999/a.tar", {400}, "port"),
        ("/http/host/a\x01b.tar", {400}, ""),
        ("/s3/bucket/a%0Ab.tar", {400}, "control"),
        ("/s3/bucket/key?endpoint=ftp%3A%2F%2Fx", {400}, "endpoint"),
        ("/s3/bucket/key?colour=red", {400}, "endpoint"),
        ("/http/127.0.0.1:1/a.tar", {403}, "--allow-origin http://127.0.0.1:1"),
        ("/http/169.254.169.254/latest/meta-data", {403}, "metadata"),
        ("/http/metadata.google.internal/x", {403}, "metadata"),
        ("/file/etc/passwd", {403, 404}, "--file-root"),
    ],
)
def test_urls(sidecar: Sidecar, origin: FakeServer, target: str, statuses: set[int], says: str) -> None:
    """Unknown scheme, empty bucket, control characters, refused origins."""
    status, problem = sent(sidecar, "GET", target)
    assert status in statuses
    assert says in json.dumps(problem)


@pytest.mark.fetches
@pytest.mark.parametrize("text", ["lines=1-2", "bytes=0-1,5-6"])
def test_a_range_we_do_not_know(sidecar: Sidecar, origin: FakeServer, text: str) -> None:
    """Another unit, or a list: the whole shard, as RFC 9110 allows."""
    status, _ = sent(sidecar, "GET", f"/http/127.0.0.1:{origin.port}/a.tar", {"Range": text})
    assert status == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{not json", "JSON"),
        (b'{"shards": "s3://b/k"}', "list"),
        (b'{"shards": [1]}', "shards"),
        (b'["s3://b/k"]', "shards"),
        (b'{"shards": ["s3://b/k", "ftp://x/y"]}', "ftp"),
        (b'{"shards": ["s3:///k"]}', "bucket"),
        (b'{"shards": ["http://h/\\u0000"]}', "control"),
        pytest.param(b'{"shards": ["http://h/' + b"a" * 20_000 + b'"]}', "8192", id="20 kB"),
        (b'{"set": "s3://b/{0..9}.tar", "indices": [10]}', "0 to 9"),
        (b'{"set": "s3://b/{0..99999999999}.tar", "indices": [1]}', ""),
        (b"\xff\xfe", ""),
        (b"", ""),
    ],
)
def test_plan_bodies(sidecar: Sidecar, origin: FakeServer, body: bytes, says: str) -> None:
    """400 naming the first bad entry; then nothing of the plan is taken."""
    for method in ("PUT", "POST"):
        status, problem = sent(sidecar, method, READER, {"Content-Type": "application/json"}, body)
        assert status == 400
        assert says in json.dumps(problem)
