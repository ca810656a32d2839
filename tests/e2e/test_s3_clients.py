"""``endpoint_url=$FOREBAY_URL/s3``: programs that read from S3, unchanged, read the same through the sidecar. Real programs, real S3."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.clients import Read, needs_clients, reads_of, told
from support.raw import line
from support.s3_programs import KEY, PROGRAMS, TABLE, bucket
from support.s3_servers import S3Server, moto  # noqa: F401
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running

MEMBERS, MEMBER_BYTES = 60, 50_000


@dataclass(frozen=True)
class Reads:
    """What each program read: without the sidecar; through it for the first time, and again when all of it is here."""

    direct: dict[str, Read]
    first: dict[str, Read]
    again: dict[str, Read]
    bytes_of_bucket: int


def tar_of_members() -> bytes:
    buffer, dice = io.BytesIO(), random.Random(1)
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(MEMBERS):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = MEMBER_BYTES
            tar.addfile(member, io.BytesIO(dice.randbytes(MEMBER_BYTES)))
    return buffer.getvalue()


SAME = [name for name in PROGRAMS if name != "refused"]


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory, moto: S3Server) -> Reads:  # noqa: F811
    """An S3 server with a bucket for each program, and a sidecar that has read nothing."""
    table = tmp_path_factory.mktemp("table") / TABLE
    told("tables.py", str(table), environ=os.environ)
    tar = tar_of_members()
    shards = {KEY: tar, "plain.tar": tar, TABLE: table.read_bytes()}
    with moto.client() as client:
        for name in PROGRAMS:
            client.create_bucket(Bucket=bucket(name))
            for key, data in shards.items():
                client.put_object(Bucket=bucket(name), Key=key, Body=data)
    with (
        tempfile.TemporaryDirectory(prefix="forebay-e2e-") as place,
        running(Path(place), "--cache-size", "100MB", allow=[moto.url], environ=moto.environ) as sidecar,
    ):
        endpoint = f"{sidecar.url}/s3"
        rounds = [(moto.url, SAME), (endpoint, [*PROGRAMS]), (endpoint, SAME)]
        keys = {"AWS_ACCESS_KEY_ID": "AKIACLIENT", "AWS_SECRET_ACCESS_KEY": "client-secret"}  # the sidecar has others
        environ = {**os.environ, **keys, "FOREBAY_URL": sidecar.url}
        direct, first, again = reads_of("s3_programs.py", json.dumps(rounds), environ=environ)
        return Reads(direct, first, again, sum(map(len, shards.values())))


@needs_clients
@pytest.mark.parametrize("name", SAME)
def test_it_reads_the_same(reads: Reads, name: str) -> None:
    """As from the store itself: the first time, and again from the disk, when the origin serves nothing more."""
    direct, first, again = reads.direct[name], reads.first[name], reads.again[name]
    assert first.found == direct.found
    assert first.fetched <= reads.bytes_of_bucket, "each byte once"
    assert again.found == direct.found
    assert again.fetched == direct.sent == 0
    if name != "boto_missing":
        assert min(first.fetched, first.sent, again.sent) > 0


@needs_clients
def test_what_is_not_offered_is_refused_as_s3_does(reads: Reads) -> None:
    """Listings and all the others: an SDK's own exception, with words, and none is tried again for minutes."""
    *bodies, head, put, delete, delete_all = [tuple(each) for each in reads.first["refused"].found]
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
