"""``endpoint_url=$FOREBAY_URL/s3``: programs that read from S3, unchanged, read the same through the sidecar. Real programs, real S3."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.clients import needs_clients, told
from support.raw import line
from support.s3_programs import KEY, PROGRAMS, TABLE
from support.s3_servers import S3Server, moto  # noqa: F401
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running

MEMBERS, MEMBER_BYTES = 60, 50_000


@dataclass(frozen=True)
class Store:
    """An S3 server with the shards in it, a sidecar that has its keys, and the environment of programs that have others."""

    server: S3Server
    sidecar: Sidecar

    @property
    def endpoint(self) -> str:
        return f"{self.sidecar.url}/s3"

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "AWS_ACCESS_KEY_ID": "AKIACLIENT", "AWS_SECRET_ACCESS_KEY": "client-secret"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """By key: a tar under an odd name and under a plain one, and a table."""
    buffer, dice = io.BytesIO(), random.Random(1)
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(MEMBERS):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = MEMBER_BYTES
            tar.addfile(member, io.BytesIO(dice.randbytes(MEMBER_BYTES)))
    table = tmp_path_factory.mktemp("table") / TABLE
    told("tables.py", str(table), environ=os.environ)
    return {KEY: buffer.getvalue(), "plain.tar": buffer.getvalue(), TABLE: table.read_bytes()}


@pytest.fixture
def store(place: Path, moto: S3Server, shards: dict[str, bytes]) -> Iterator[Store]:  # noqa: F811
    with moto.client() as client:
        client.create_bucket(Bucket="shards")
        for key, data in shards.items():
            client.put_object(Bucket="shards", Key=key, Body=data)
    with running(place, "--cache-size", "100MB", allow=[moto.url], environ=moto.environ) as sidecar:
        yield Store(moto, sidecar)


@needs_clients
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "refused"])
def test_it_reads_the_same(store: Store, name: str) -> None:
    """As from the store itself: the first time, and again from the disk."""
    direct, first, again = (told("s3_programs.py", name, url, environ=store.environ) for url in (store.server.url, *[store.endpoint] * 2))
    assert first == direct
    assert again == direct
    if name != "boto_missing":
        assert store.sidecar.status()["bytes"]["sent"] > 0


@needs_clients
def test_what_is_not_offered_is_refused_as_s3_does(store: Store) -> None:
    """Listings and all the others: an SDK's own exception, with words, and none is tried again for minutes."""
    found = told("s3_programs.py", "refused", store.endpoint, environ=store.environ)
    *bodies, head, put, delete, delete_all = [tuple(each) for each in found]
    assert [code for code, _, _ in bodies] == ["NotImplemented"] * 6
    assert all("GetObject and HeadObject" in message for _, _, message in bodies)
    assert head[:2] == ("501", 501)  # a HEAD has no body to say more in
    assert [each[:2] for each in (put, delete, delete_all)] == [("MethodNotAllowed", 405)] * 3


async def test_what_a_client_signs_goes_nowhere(place: Path) -> None:
    """It signed for our host. The origin sees the sidecar's signature alone; a new date is no new credential, so nothing is asked again."""
    async with ScriptedOrigin() as origin:
        origin.put("/shards/k.tar", bytes(3_000_000))
        keys = {"AWS_ACCESS_KEY_ID": "AKIASIDECAR", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": origin.base}
        with running(place, "--cache-size", "100MB", allow=[origin.base], environ=keys) as sidecar:
            for number in range(3):
                proof = f"X-Amz-Date: {number}\r\nX-Amz-Security-Token: canary\r\nCookie: canary\r\n"
                proof += f"Authorization: AWS4-HMAC-SHA256 Credential=AKIACLIENT/1, Signature={number}\r\n"
                async with line(sidecar.port) as connection:
                    await connection.send(f"GET /s3/shards/k.tar HTTP/1.1\r\nHost: 127.0.0.1:{sidecar.port}\r\n{proof}\r\n".encode())
                    status, _, body = await connection.answer()
                    assert (status, len(body)) == (200, 3_000_000)
        assert [request.method for request in origin.requests].count("GET") == 1
        seen = repr([(request.target, request.headers) for request in origin.requests])
    assert "AKIASIDECAR" in seen
    assert "AKIACLIENT" not in seen
    assert "canary" not in seen


async def test_a_body_that_was_announced_and_not_asked_for_is_not_read_as_a_request(place: Path) -> None:
    """Expect: 100-continue: who is refused need not send it, so nobody knows what comes next on that connection."""
    with running(place, "--cache-size", "100MB") as sidecar:
        async with line(sidecar.port) as connection:
            head = f"Host: 127.0.0.1:{sidecar.port}\r\nExpect: 100-continue\r\nContent-Length: 5\r\nX-Amz-Date: 1\r\n\r\n"
            await connection.send(f"PUT /s3/shards/new HTTP/1.1\r\n{head}".encode())
            status, headers, body = await connection.answer()
            assert (status, headers["connection"], b"MethodNotAllowed" in body) == (405, "close", True)
            assert await connection.ended() == b""
