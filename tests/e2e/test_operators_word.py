"""What changes the sidecar's own rules while it runs: ``POST /v1/allow``, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from support.raw import line
from support.readers import put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, small_segments, wait_until

SEGMENT = 1 << 16
COUNT = 8


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SEGMENT)


def patterns(origin: ScriptedOrigin) -> list[str]:
    """Four sets of two shards."""
    return [origin.url(f"/{{{first:02d}..{first + 1:02d}}}.tar") for first in range(0, COUNT, 2)]


def post(sidecar: Sidecar, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """The status, and the problem."""
    try:
        return (204, {}) if sidecar.ask(path, body, "POST") == b"" else (200, {})
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def raw(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


async def left_inside(sidecar: Sidecar, request: bytes) -> None:
    """A client that leaves at each of several bytes of its request, the last one of them missing at the latest."""
    body = len(request.partition(b"\r\n\r\n")[2])
    for sent in (1, len(request) - body, len(request) - body + 1, len(request) - 1):
        async with line(sidecar.port) as client:
            await client.send(request[:sent])


async def test_a_declared_set_opens_no_origin(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """By FOREBAY_SET: one that may not be reached is not, whoever declares its shards; the sidecar serves on."""
    environ = {"FOREBAY_SET": f"{patterns(origin)[0]} http://169.254.169.254/{{0..9}}.tar"}
    with running(tmp_path, "--cache-size", "64MB", "--strict-origins", environ=environ) as sidecar:
        await asyncio.to_thread(wait_until, lambda: "declared set" in sidecar.log_text() and "could not be fetched" in sidecar.log_text())
        assert sidecar.status()["cache"]["stored_bytes"] == 0
        assert origin.requests == []


async def test_origins_are_allowed_all_or_none(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Who leaves inside the request has allowed nothing; one wrong entry among right ones takes none; then all of them count."""
    with running(tmp_path, "--cache-size", "64MB", program=small_segments(SEGMENT)) as sidecar:
        shard, other = sidecar.proxied(origin.url(f"/{files[0].name}")), "http://127.0.0.1:1"

        def refused() -> bool:
            with pytest.raises(urllib.error.HTTPError) as caught:
                sidecar.ask(shard.removeprefix(sidecar.url))
            caught.value.close()
            return caught.value.code == 403 and not sidecar.status()["settings"]["allow_origin"]["value"]

        assert await asyncio.to_thread(refused)
        request = raw("/v1/allow", json.dumps({"origins": [origin.base, other]}).encode())
        await left_inside(sidecar, request)
        for bad in ([origin.base, "ftp://x"], [origin.base, ""], [origin.base, 7], [origin.base, "http://h:99999"]):
            code, _ = await asyncio.to_thread(post, sidecar, "/v1/allow", json.dumps({"origins": bad}).encode())
            assert code == 400, bad
            assert await asyncio.to_thread(refused), bad
        assert origin.requests == []

        async with line(sidecar.port) as client:  # all of it was said, and nobody listens to the answer: heard, or not
            await client.send(request)
        assert sidecar.status()["settings"]["allow_origin"]["value"] in ([], [origin.base, other])
        assert (await asyncio.to_thread(post, sidecar, "/v1/allow", json.dumps({"origins": [origin.base, other]}).encode())) == (204, {})
        assert sidecar.status()["settings"]["allow_origin"]["value"] == [origin.base, other]
        assert (await asyncio.to_thread(read, shard, files[0])).whole
