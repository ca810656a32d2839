"""az.py: blobs behind a shared access signature are plain https shards, and a refusal of Azure's says what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import ShardForbidden
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.cloud.az import headers_of
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.http_client import OriginClient
from forebay_proxy.origins.net.dial import GuardedResolver
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url, parse_proxy_target

SAS = "sv=2021-12-02&sr=b&st=2026-11-20T10:00:00Z&se=2026-11-21T10:00:00Z&sp=r&sig=canary%2Fsecret%3D"
HOST = "account.blob.core.windows.net"
ETAG = '"0x8DAA0CB04C57E2B"'
REQUEST = ("x-ms-request-id", "6a4f0a4e-001e-0042")


def denied(code: str, detail: str) -> bytes:
    message = "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly.\nRequestId:6a4f"
    detail = f"<AuthenticationErrorDetail>{detail}</AuthenticationErrorDetail>"
    return f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{message}</Message>{detail}</Error>'.encode()


@pytest.fixture
async def blobs() -> AsyncIterator[ScriptedOrigin]:
    """A server that is Azure's by name."""
    async with ScriptedOrigin() as made:
        headers = (REQUEST, ("x-ms-blob-type", "BlockBlob"))
        made.put("/c/a.tar", ramp(100_000), etag=ETAG, headers=headers)
        yield made


@pytest.fixture
async def origin(blobs: ScriptedOrigin) -> AsyncIterator[HttpOrigin]:
    guard, events = Guard(allow_origin=[f"http://{HOST}:{blobs.port}"]), Events()
    resolver = GuardedResolver(guard, look_up=lambda host, port: [(socket.AF_INET, "127.0.0.1")])
    made = HttpOrigin(guard=guard, events=events, origin_client=OriginClient(guard=guard, events=events, resolver=resolver))
    yield made
    await made.aclose()


def shard_of(blobs: ScriptedOrigin, query: str = SAS, *headers: tuple[str, str]) -> Shard:
    return Shard.of(parse_origin_url(f"http://{HOST}:{blobs.port}/c/a.tar{'?' if query else ''}{query}"), headers)


async def get(origin: HttpOrigin, shard: Shard, pin: Pin = Pin()) -> tuple[str, bytes]:  # noqa: B008
    async with origin.read(shard, ByteRange(0, 9), pin) as body:
        return body.version.identity, b"".join([chunk async for chunk in body.chunks])


async def test_a_blob_is_read_with_its_signature(blobs: ScriptedOrigin, origin: HttpOrigin) -> None:
    """Range, pin and signature travel; the ETag is the identity; HEAD is not asked of a URL signed for GET."""
    shard = shard_of(blobs)
    assert await get(origin, shard, Pin()) == (f"etag:{ETAG}", ramp(10))
    version = await origin.head(shard)
    assert (version.identity, version.length) == (f"etag:{ETAG}", 100_000)
    await get(origin, shard, version.pin)
    assert [request.method for request in blobs.requests] == ["GET"] * 3
    assert [request.headers.get("if-match") for request in blobs.requests] == [None, None, ETAG]
    assert all(request.target == f"/c/a.tar?{SAS}" for request in blobs.requests)


def test_the_signature_is_the_credential_not_the_name() -> None:
    """A new SAS for the same blob is the same shard; a snapshot is another."""
    one = Shard.of(parse_origin_url(f"https://{HOST}/c/a.tar?snapshot=2026&{SAS}"))
    other = Shard.of(parse_origin_url(f"https://{HOST}/c/a.tar?snapshot=2026&sp=r&se=2027-01-01&sv=2021-12-02&sr=b&sig=x"))
    assert one.name == other.name == f"https://{HOST}/c/a.tar?snapshot=2026"
    assert one.credential != other.credential
    assert "canary" not in repr(one) + one.name


async def test_a_version_of_the_service_is_asked_for(blobs: ScriptedOrigin, origin: HttpOrigin) -> None:
    """Without one a public container answers as in 2009; the reader's own word counts; no other host is told."""
    await get(origin, shard_of(blobs, ""))
    await get(origin, shard_of(blobs, "", ("X-Ms-Version", "2019-12-12")))
    sent = [request.headers["x-ms-version"] for request in blobs.requests]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", sent[0])
    assert sent[1] == "2019-12-12"
    for url in ("https://example.org/a", f"https://{HOST}.example.org/a", "https://a.dfs.core.windows.net/a"):
        assert headers_of(url, ()) == ()
    assert headers_of("https://a.z20.blob.core.windows.net/c/b", ())


ENDED = (
    "Signature not valid in the specified time frame: Start [Fri, 20 Nov 2026 10:00:00 GMT] - Expiry [Sat, 21 Nov 2026 10:00:00 GMT]"
    " - Current [Sat, 21 Nov 2026 11:00:00 GMT]"
)
WRONG = "The MAC signature found in the HTTP request 'canary/secret=' is not the same as any computed signature."
NONE = ("x-ms-error-code", "NoAuthenticationInformation")


@pytest.mark.parametrize(
    ("answer", "query", "code", "step"),
    [
        (
            {"body": denied("AuthenticationFailed", ENDED), "status": 403, "headers": (REQUEST,)},
            SAS,
            "AuthenticationFailed",
            "ended at Sat, 21 Nov 2026 10:00:00",
        ),
        ({"body": denied("AuthenticationFailed", WRONG), "status": 403, "headers": (REQUEST,)}, SAS, "AuthenticationFailed", "sp=r"),
        ({"body": b"", "status": 401, "headers": (REQUEST, NONE)}, "", "NoAuthenticationInformation", "?sv=...&sig=..."),
    ],
    ids=["ended", "wrong", "none, by the header alone"],
)
async def test_a_refusal_says_what_to_do(
    blobs: ScriptedOrigin, origin: HttpOrigin, answer: dict[str, Any], query: str, code: str, step: str
) -> None:
    """Asked once; what Azure repeats of the signature is not quoted."""
    blobs.put("/c/a.tar", **answer)
    with pytest.raises(ShardForbidden, match=code) as refused:
        await get(origin, shard_of(blobs, query))
    assert step in refused.value.next_step
    assert "canary" not in str(refused.value) + refused.value.next_step
    assert len(blobs.requests) == 1


@pytest.mark.parametrize("url", ["az://c/a.tar", "abfss://c@account.dfs.core.windows.net/a.tar", "wasbs://c@account/a.tar"])
def test_azures_schemes_lead_to_the_https_form(url: str) -> None:
    """As an origin URL and as a request."""
    with pytest.raises(InvalidShardUrl, match=re.escape("https://ACCOUNT.blob.core.windows.net/")):
        parse_origin_url(url)
    with pytest.raises(InvalidShardUrl, match="SAS"):
        parse_proxy_target("/" + url.replace("://", "/"))
