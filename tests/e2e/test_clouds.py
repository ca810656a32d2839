"""gs and hf shards through a real sidecar: whole, changed, with links and tokens that end in the middle, and with nobody's credentials."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.gcs import Gcs, account_file
from support.hub import Hub
from support.readers import make_shard, read
from support.sidecar import Sidecar, running

from forebay_proxy.core.segments import SEGMENT_BYTES

SIZE = 3 * SEGMENT_BYTES + 999
REPO = "datasets/org/name"
TOKEN = "hf_canary_token"
CACHE = ("--cache-size", "300MB")


@pytest.fixture
async def hub(place: Path) -> AsyncIterator[Hub]:
    """A hub with one shard of four segments in a repository that only the token opens."""
    async with Hub(tokens={TOKEN}, private={REPO}) as made:
        made.put(REPO, "a.tar", make_shard(place / "a", SIZE, 1).read_bytes())
        yield made


@pytest.fixture
async def gcs(place: Path) -> AsyncIterator[Gcs]:
    """A storage with the same shard, which only its account opens."""
    async with Gcs() as made:
        made.put("bucket/a.tar", make_shard(place / "a", SIZE, 1).read_bytes())
        yield made


async def got(sidecar: Sidecar, url: str, **how: object) -> tuple[int, bool, bytes]:
    answer = await asyncio.to_thread(read, sidecar.proxied(url), **how)  # type: ignore[arg-type]
    return answer.status, answer.whole, answer.body


def hub_environ(hub: Hub, **more: str) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.base, "HF_TOKEN": TOKEN, **more}


def written(sidecar: Sidecar) -> bytes:
    """Everything the sidecar wrote or shows, less the shards themselves."""
    files = [file for file in sidecar.directory.rglob("*") if file.is_file() and "shards" not in file.parts and file.name != "a"]
    shown = [sidecar.ask(path) for path in ("/metrics", "/v1/status", "/v1/shards")]
    found = []
    for file in files:
        with suppress(FileNotFoundError):  # the index's journal, which is there while a row is committed
            found.append(file.read_bytes())
    return b"".join([*found, *shown, sidecar.log_text().encode()])


async def test_a_shard_of_a_hub(place: Path, hub: Hub) -> None:
    """Every byte, the hub asked once, the second read from the disk, no secret anywhere, and its hash as the ETag."""
    data = (place / "a").read_bytes()
    with running(place, *CACHE, allow=[hub.base, hub.cdn.base], environ=hub_environ(hub)) as sidecar:
        for _ in range(2):
            assert await got(sidecar, f"hf://{REPO}/a.tar") == (200, True, data)
        asked, ranges = len(hub.requests), len(hub.cdn.requests)
        answer = await asyncio.to_thread(read, sidecar.proxied(f"hf://{REPO}/a.tar"))
        assert answer.headers["etag"] == f'"{hashlib.sha256(data).hexdigest()}"'
        assert sidecar.metric("forebay_digest_checks_total", algorithm="sha-256", result="agrees") == 1
        everything = await asyncio.to_thread(written, sidecar)
    assert (asked, ranges) == (1, 4)
    assert TOKEN not in repr(hub.cdn.requests)
    for secret in (TOKEN.encode(), b"Signature=", b"Key-Pair-Id"):
        assert secret not in everything


async def test_a_shard_of_google_storage(place: Path, gcs: Gcs) -> None:
    """Every byte, though all tokens are refused in the middle; one token a time, no secret anywhere."""
    data = (place / "a").read_bytes()
    environ = {"GOOGLE_APPLICATION_CREDENTIALS": str(account_file(place / "account.json", gcs.base + "/token"))}
    with running(place, *CACHE, "--gs-endpoint", gcs.base, allow=[gcs.base], environ=environ) as sidecar:
        await got(sidecar, "gs://bucket/a.tar", span=(0, 99))
        gcs.end_tokens()
        for _ in range(2):
            assert await got(sidecar, "gs://bucket/a.tar") == (200, True, data)
        (place / "account.json").unlink()
        everything = await asyncio.to_thread(written, sidecar)
    assert gcs.token_requests == 2
    assert b"canary" not in everything
