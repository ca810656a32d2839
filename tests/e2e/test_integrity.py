"""Bytes that go wrong on the way or on the disk: the origin names a digest, a byte arrives turned around, the sidecar finds it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from support import nginx as servers
from support.faults import TurnedByte
from support.readers import make_shard, read
from support.s3_servers import S3Server, moto  # noqa: F401
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, forebay, running, wait_until

from forebay_loader import Limits, ShardReadError
from forebay_loader.stream.shard_stream import ShardStream
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.wire.commands.sources import parse_source

SIZE = 3 * SEGMENT_BYTES + 999
ROOM = ("--cache-size", "500MB")


def checks(sidecar: Sidecar) -> dict[str, float]:
    return {result: sidecar.metric("forebay_digest_checks_total", result=result) for result in ("agrees", "differs", "unchecked")}


def b64(file: Path, name: str) -> str:
    return base64.b64encode(hashlib.new(name, file.read_bytes()).digest()).decode()


@pytest.mark.parametrize("header", ["Repr-Digest", "x-goog-hash"])
async def test_a_byte_turned_on_the_way_is_found_and_heals(place: Path, header: str) -> None:
    """The first reader is cut off and cannot resume, the second has it right; both are counted, one line is logged."""
    shard = make_shard(place / "a.tar", SIZE, 1)
    value = f"sha-256=:{b64(shard, 'sha256')}:" if header == "Repr-Digest" else f"md5={b64(shard, 'md5')}"
    async with ScriptedOrigin() as origin:
        origin.put("/a.tar", shard.read_bytes(), headers=((header, value),), always=TurnedByte(4000))
        with running(place, *ROOM, allow=[origin.base]) as sidecar:
            url = sidecar.proxied(origin.url("/a.tar"))
            cut = await asyncio.to_thread(read, url)
            resumed = await asyncio.to_thread(read, url, headers={"Range": f"bytes={cut.count}-", "If-Match": cut.headers["etag"]})
            fresh = await asyncio.to_thread(read, url, shard)
            counted, log = checks(sidecar), sidecar.log_text()
    assert not cut.whole
    assert resumed.status == 412
    assert fresh.whole
    assert fresh.count == SIZE
    assert fresh.headers["etag"] != cut.headers["etag"]
    assert counted == {"agrees": 1, "differs": 1, "unchecked": 0}
    assert log.count("the origin's digest is") == 2  # what was found, and the reader that was cut off for it


@pytest.mark.parametrize("algorithm", ["CRC64NVME", "SHA256"])
async def test_s3_names_a_checksum_when_asked(place: Path, moto: S3Server, algorithm: str) -> None:  # noqa: F811
    """One HEAD a shard version, with a signed header; the ranges carry none."""
    shard = make_shard(place / "a.tar", SIZE, 1)
    with moto.client() as client:
        client.create_bucket(Bucket="sums")
        client.put_object(Bucket="sums", Key=f"{algorithm}.tar", Body=shard.read_bytes(), ChecksumAlgorithm=algorithm)
    with running(place, *ROOM, allow=[moto.url], environ=moto.environ) as sidecar:
        got = await asyncio.to_thread(read, sidecar.proxied(f"s3://sums/{algorithm}.tar"), shard)
        assert (got.whole, got.count) == (True, SIZE)
        assert checks(sidecar) == {"agrees": 1, "differs": 0, "unchecked": 0}
        heads = sidecar.metric("forebay_origin_requests_total", method="HEAD")
    assert heads == 1


async def test_the_loader_never_joins_two_fetches(place: Path) -> None:
    """Its stream is cut in the middle, and what it would resume begins with a wrong byte: an error, never a whole of two halves."""
    shard = make_shard(place / "a.tar", SIZE, 1)
    named = ("Repr-Digest", f"sha-256=:{b64(shard, 'sha256')}:")
    async with ScriptedOrigin() as origin:
        origin.put("/a.tar", shard.read_bytes(), headers=(named,), always=TurnedByte(4000))
        with running(place, *ROOM, allow=[origin.base]) as sidecar, pytest.MonkeyPatch.context() as patch:
            patch.setenv("FOREBAY_URL", sidecar.url)
            with pytest.raises(ShardReadError):
                await asyncio.to_thread(_load, origin.url("/a.tar"))
            assert await asyncio.to_thread(_load, origin.url("/a.tar")) == shard.read_bytes()


def _load(url: str) -> bytes:
    source = parse_source(url)
    assert source is not None
    with ShardStream(source, "job/0/0/1.1", limits=Limits(resume_s=5.0, pause_s=0.01)) as stream:
        return stream.read()


def verify(place: Path, sidecar: Sidecar, *flags: str) -> subprocess.CompletedProcess[str]:
    return forebay(place, "verify", *flags, FOREBAY_URL=sidecar.url)


@pytest.mark.needs("nginx")
async def test_verify_finds_what_rotted(place: Path) -> None:
    """Exit code 1, shard and bytes named, gone; the next reader has it right, and the next verification too."""
    (place / "files").mkdir()
    shards = [make_shard(place / "files" / f"{number}.tar", SIZE, number) for number in range(2)]
    flags = (*ROOM, "--verify-every-s", "0")  # or the sidecar may find it before it is asked to
    with servers.nginx(place / "nginx", place / "files") as origin, running(place, *flags, allow=[origin.base()]) as sidecar:
        urls = [sidecar.proxied(origin.url(f"{number}.tar")) for number in range(2)]
        for url, shard in zip(urls, shards, strict=True):
            assert (await asyncio.to_thread(read, url, shard)).whole
        assert (await asyncio.to_thread(verify, place, sidecar)).returncode == 0
        key = sidecar.shards()[origin.url("1.tar")]["key"]
        with (sidecar.cache_dir / "shards" / key).open("r+b") as file:
            file.seek(SEGMENT_BYTES + 5)
            file.write(b"rotten")
        found = await asyncio.to_thread(verify, place, sidecar, f"{origin.base()}/*")
        assert found.returncode == 1
        assert f"wrong: {origin.url('1.tar')}: bytes {SEGMENT_BYTES} to {2 * SEGMENT_BYTES - 1} (segment 1)" in found.stderr
        assert (await asyncio.to_thread(read, urls[1], shards[1])).count == SIZE
        again = await asyncio.to_thread(verify, place, sidecar, "--json")
        assert (again.returncode, json.loads(again.stdout.splitlines()[-1])["segments"]) == (0, 8)
        assert sidecar.metric("forebay_segments_verified_total", why="verify", result="wrong") == 1


@pytest.mark.needs("nginx")
async def test_a_kill_before_the_verdict_leaves_nothing_unchecked(place: Path) -> None:
    """The last segment had landed, the first had not: the next process fetches it again, and compares."""
    (place / "files").mkdir()
    shard = make_shard(place / "files" / "a.tar", SIZE, 1)
    named = f'add_header Repr-Digest "sha-256=:{b64(shard, "sha256")}:"; limit_rate 1500k;'
    with servers.nginx(place / "nginx", place / "files", named=named) as origin:
        with running(place, *ROOM, allow=[origin.base("named")]) as sidecar:
            url = sidecar.proxied(origin.url("a.tar", "named"))
            whole = asyncio.create_task(asyncio.to_thread(read, url))
            middle = {"Range": f"bytes={2 * SEGMENT_BYTES}-{3 * SEGMENT_BYTES - 1}"}
            third = asyncio.create_task(asyncio.to_thread(read, url, headers=middle))
            await asyncio.to_thread(wait_until, lambda: sidecar.status()["cache"]["in_flight"] == 3)
            last = asyncio.create_task(asyncio.to_thread(read, url, headers={"Range": f"bytes={3 * SEGMENT_BYTES}-"}))
            await asyncio.to_thread(wait_until, lambda: sidecar.status()["cache"]["segments"] == 1)
            sidecar.kill()
            ends = await asyncio.gather(whole, third, last, return_exceptions=True)
        with running(place, *ROOM, allow=[origin.base("named")]) as sidecar:
            got = await asyncio.to_thread(read, sidecar.proxied(origin.url("a.tar", "named")), shard)
            assert (got.whole, got.count) == (True, SIZE)
            assert checks(sidecar)["agrees"] == 1
        spans = [served.span for served in origin.log("named")]
    assert all(isinstance(end, Exception) or not end.whole for end in ends)
    assert spans.count(f"bytes={3 * SEGMENT_BYTES}-{SIZE - 1}") == 2
