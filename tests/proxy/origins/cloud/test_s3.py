"""s3.py: what is signed, for whom, and when again. Against a scripted server that shows what was sent, and against moto."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.s3_origin import S3Client, s3_client, s3_shard
from support.s3_servers import S3Server
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.core.errors import OriginRefused, RangeNotSatisfiable, ShardChanged, ShardForbidden, ShardNotFound
from forebay_proxy.core.shard import ByteRange, Pin, PinKind
from forebay_proxy.origins.cloud.s3 import RENEW_BEFORE_S
from forebay_proxy.origins.cloud.s3_request import SIGNED_FOR_S, is_aws
from forebay_proxy.origins.net.allow_list import place_of

FIRST = ByteRange(0, 9)


def xml(code: str, more: str = "") -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>because</Message>{more}</Error>'.encode()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedOrigin]:
    """The operator's endpoint."""
    async with ScriptedOrigin() as made:
        made.put("/b/k.tar", ramp(1000))
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.base)
        yield made


@pytest.fixture
async def client(server: ScriptedOrigin) -> AsyncIterator[S3Client]:
    async with s3_client([server.base]) as made:
        yield made


def signatures(server: ScriptedOrigin) -> list[str]:
    return [found[1] if (found := re.search("X-Amz-Signature=([0-9a-f]+)", request.target)) else "" for request in server.requests]


SHARD = s3_shard("s3://b/k.tar")


async def test_one_signature_serves_all_segments(server: ScriptedOrigin, client: S3Client) -> None:
    """Range and If-Match travel beside the signature, not in it."""
    body, data = await client.get(SHARD, FIRST)
    assert data == ramp(10)
    assert body.version.length == 1000
    await client.get(SHARD, ByteRange(10, 19), body.version.pin)
    assert len(set(signatures(server))) == 1
    assert "SignedHeaders=host&" in server.requests[0].target
    assert [request.range for request in server.requests] == ["bytes=0-9", "bytes=10-19"]
    assert server.requests[1].headers["if-match"] == '"v1"'


async def test_a_signature_is_renewed_before_it_ends(server: ScriptedOrigin, client: S3Client) -> None:
    """Sixty seconds before, not later and not earlier; one from the future, as after a clock is set back, is not trusted."""
    for seconds, renewed in ((0.0, True), (SIGNED_FOR_S - RENEW_BEFORE_S - 1, False), (2.0, True), (-3600, True)):
        client.now += seconds
        await client.get(SHARD, FIRST)
        assert (client.origin._signatures[SHARD.name][0] == client.now) is renewed


@pytest.mark.parametrize(("status", "body"), [(403, xml("AccessDenied")), (400, xml("ExpiredToken")), (403, xml("RequestTimeTooSkewed"))])
async def test_a_remembered_signature_that_is_refused_is_made_anew_once(
    server: ScriptedOrigin, client: S3Client, status: int, body: bytes
) -> None:
    """Then it works, or the refusal stands."""
    await client.get(SHARD, FIRST)
    server.next("/b/k.tar", status=status, body=body)
    assert (await client.get(SHARD, FIRST))[1] == ramp(10)
    assert len(server.requests) == 3
    server.put("/b/k.tar", xml("AccessDenied"), status=403)
    with pytest.raises(ShardForbidden, match="AccessDenied"):
        await client.get(SHARD, FIRST)
    assert len(server.requests) == 5


async def test_a_fresh_signature_that_is_refused_stands(server: ScriptedOrigin, client: S3Client) -> None:
    """A shard one may not read costs one request."""
    server.put("/b/k.tar", xml("AccessDenied"), status=403)
    with pytest.raises(ShardForbidden):
        await client.get(SHARD, FIRST)
    assert len(server.requests) == 1


async def test_a_rejected_token_makes_credentials_be_read_anew(
    server: ScriptedOrigin, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys rotated in a file or a service are picked up without a restart, at most every ten seconds."""
    server.next("/b/k.tar", status=400, body=xml("ExpiredToken"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOLD")
    await client.origin.prepare(SHARD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEW")
    await client.get(SHARD, FIRST)
    assert ["AKIAOLD" in request.target for request in server.requests] == [True, False]
    server.put("/b/k.tar", xml("InvalidAccessKeyId"), status=403)
    with pytest.raises(ShardForbidden, match="InvalidAccessKeyId"):
        await client.get(SHARD, FIRST)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [401, 403])
async def test_keys_that_were_changed_are_taken_after_a_refusal(
    server: ScriptedOrigin, client: S3Client, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Read anew at any 401 or 403, and asked with again only if they are others: once, at most every ten seconds."""
    server.next("/b/k.tar", status=status, body=xml("AccessDenied"))
    await client.origin.prepare(SHARD)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEW")
    assert (await client.get(SHARD, FIRST))[1] == ramp(10)
    assert ["AKIANEW" in request.target for request in server.requests] == [False, True]
    server.put("/b/k.tar", xml("AccessDenied"), status=status)
    client.now += 11
    with pytest.raises(ShardForbidden) as denied:
        await client.get(SHARD, FIRST)
    assert denied.value.status == status
    assert len(server.requests) == 4, "a remembered signature is made anew, with the same keys"


async def test_all_who_are_refused_go_on_with_the_new_keys(
    server: ScriptedOrigin, client: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that ended under eight openings: each of them asks once more."""
    shards = [s3_shard(f"s3://b/{number}.tar") for number in range(8)]
    for number, shard in enumerate(shards):
        server.put(f"/b/{number}.tar", ramp(1000))
        server.next(f"/b/{number}.tar", status=400, body=xml("ExpiredToken"))
        await client.origin.prepare(shard)
    client.origin._signatures.clear()  # nothing is remembered: each is a first request
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIANEW")
    got = await asyncio.gather(*(client.get(shard, FIRST) for shard in shards))
    assert [data for _, data in got] == [ramp(10)] * 8
    assert len(server.requests) == 16


async def test_a_refusal_says_what_may_help(server: ScriptedOrigin, client: S3Client) -> None:
    """Signed: perhaps unsigned; unsigned: perhaps not."""
    server.put("/b/k.tar", xml("AccessDenied"), status=403)
    for url, words in (("s3://b/k.tar", "?unsigned=1"), ("s3://b/k.tar?unsigned=1", "leave it out")):
        with pytest.raises(ShardForbidden) as denied:
            await client.get(s3_shard(url), FIRST)
        assert words in denied.value.next_step


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (301, (("x-amz-bucket-region", "eu-west-9"),), xml("PermanentRedirect")),
        (307, (("x-amz-bucket-region", "eu-west-9"), ("Location", "http://127.0.0.1:1/elsewhere")), b""),
        (400, (), xml("AuthorizationHeaderMalformed", "<Region>eu-west-9</Region>")),
    ],
)
async def test_another_region_is_signed_for_and_remembered(
    server: ScriptedOrigin, client: S3Client, status: int, headers: tuple[tuple[str, str], ...], body: bytes
) -> None:
    """The bucket's own region, from header or body; the next shard of the bucket starts there."""
    server.next("/b/k.tar", status=status, headers=headers, body=body)
    server.put("/b/l.tar", ramp(1000))
    assert (await client.get(SHARD, FIRST))[1] == ramp(10)
    await client.get(s3_shard("s3://b/l.tar"), FIRST)
    assert ["eu-west-9" in request.target for request in server.requests] == [False, True, True]


async def test_requester_pays_is_signed_and_sent(server: ScriptedOrigin, client: S3Client) -> None:
    """The header is part of the signature, so it must travel."""
    await client.get(s3_shard("s3://b/k.tar?requester_pays=1"), FIRST)
    assert server.requests[0].headers["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in server.requests[0].target


async def test_a_version_id_is_asked_for_and_is_the_identity(server: ScriptedOrigin, client: S3Client) -> None:
    """versionId names one version; what the server says it sent makes the key."""
    server.put("/b/k.tar", ramp(1000), headers=(("x-amz-version-id", "v7"),))
    body, _ = await client.get(s3_shard("s3://b/k.tar?versionId=v7"), FIRST)
    assert "versionId=v7" in server.requests[0].target
    assert body.version.identity == "s3:v7"


async def test_odd_keys_are_literal(server: ScriptedOrigin, client: S3Client) -> None:
    """Percent signs, spaces, question marks and double slashes belong to the key."""
    server.put("/b/a%20b//c%252F%3Fd%23.tar", ramp(50))
    assert (await client.get(s3_shard("s3://b/a b//c%2F?d#.tar?")))[1] == ramp(50)


# Whose credentials go where


async def test_an_endpoint_nobody_named_gets_no_signature(server: ScriptedOrigin, client: S3Client) -> None:
    """A client may not have the sidecar's credentials sent to its own server; without them it may ask."""
    async with ScriptedOrigin() as other:
        other.put("/b/k.tar", ramp(1000))
        with pytest.raises(OriginRefused) as refused:
            await client.get(s3_shard(f"s3://b/k.tar?endpoint={other.base}"), FIRST)
        assert f"--allow-origin {other.base}" in refused.value.next_step
        assert "unsigned=1" in refused.value.next_step
        assert other.requests == []
        async with s3_client([server.base, other.base]) as allowed:
            await allowed.get(s3_shard(f"s3://b/k.tar?endpoint={other.base}"), FIRST)
        assert "X-Amz-Signature" in other.requests[0].target


@pytest.mark.parametrize("option", ["endpoint=http://127.0.0.1:9", "endpoint=http://203.0.113.7", "profile=another"])
async def test_who_is_refused_makes_nobody_look_for_credentials(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """The SDK would ask files, commands and the machine's metadata service, for a request that goes nowhere."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    async with ScriptedOrigin() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.base)
        async with s3_client() as client:
            with pytest.raises(OriginRefused):
                await client.get(s3_shard(f"s3://b/k.tar?{option}"), FIRST)
            assert metadata.requests == []
            with pytest.raises(ShardForbidden):  # who is not does: else this test would see nothing
                await client.get(SHARD, FIRST)
            assert metadata.requests


async def test_profiles_are_the_operators_to_allow(server: ScriptedOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those allowed, and the SDK's own."""
    config = tmp_path / "config"
    config.write_text(
        "".join(f"[profile {name}]\naws_access_key_id = AKIA{name.upper()}\naws_secret_access_key = s\n" for name in ("one", "two"))
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with s3_client([server.base], profiles=frozenset({"one"})) as client:
        await client.get(s3_shard("s3://b/k.tar?profile=one"), FIRST)
        assert "AKIAONE" in server.requests[0].target
        with pytest.raises(OriginRefused) as refused:
            await client.get(s3_shard("s3://b/k.tar?profile=two"), FIRST)
        assert "--allow-profile two" in refused.value.next_step
    monkeypatch.setenv("AWS_PROFILE", "two")
    async with s3_client([server.base]) as own:
        await own.get(s3_shard("s3://b/k.tar?profile=two"), FIRST)
        assert "AKIATWO" in server.requests[1].target


async def test_an_endpoint_in_the_configuration_file_counts_as_named(
    server: ScriptedOrigin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """endpoint_url of the profile is where its credentials belong."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {server.base}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with s3_client([server.base]) as client:
        assert (await client.get(SHARD, FIRST))[1] == ramp(10)
        assert server.requests[0].path == "/b/k.tar"


async def test_missing_credentials_are_a_clear_403(server: ScriptedOrigin, client: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step names the variables and unsigned=1."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ShardForbidden) as missing:
        await client.get(SHARD, FIRST)
    assert missing.value.status == 403
    assert "unsigned=1" in missing.value.next_step
    assert server.requests == []


async def test_strict_origins_name_buckets_or_endpoints(server: ScriptedOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's own endpoint is named by being configured; AWS itself holds everybody's buckets, so there each is named."""
    async with s3_client([server.base], strict_origins=True) as client:
        await client.get(SHARD, FIRST)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    async with s3_client(["s3://mine"], strict_origins=True) as client:
        assert (await client.origin.prepare(s3_shard("s3://mine/k"))).vouched
        with pytest.raises(OriginRefused) as refused:
            await client.origin.prepare(SHARD)
        assert "--allow-origin s3://b " in refused.value.next_step


async def test_a_password_in_the_endpoint_goes_to_it_alone(
    server: ScriptedOrigin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Basic authorization, beside the signature, for a gateway behind a proxy that asks for one; not along a redirect."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.base.replace("://", "://user:canary@"))
    async with ScriptedOrigin() as other, s3_client([server.base, other.base]) as client:
        other.put("/b/k.tar", ramp(1000))
        await client.get(SHARD, FIRST)
        server.redirect("/b/k.tar", f"{other.base}/b/k.tar", 307)
        await client.get(SHARD, FIRST)
        ask = await client.origin.prepare(SHARD)
    assert [request.headers.get("authorization") for request in server.requests] == ["Basic dXNlcjpjYW5hcnk="] * 2
    assert "X-Amz-Signature" in server.requests[0].target
    assert "authorization" not in other.requests[0].headers
    assert "canary" not in repr(ask) + caplog.text


async def test_secrets_stay_out_of_sight(server: ScriptedOrigin, client: S3Client) -> None:
    """No representation of what is passed around shows a signature."""
    ask = await client.origin.prepare(SHARD)
    assert "X-Amz-Signature" in ask.url
    assert "X-Amz" not in repr(ask) + repr(client.origin._signatures)


def test_awss_own_hosts_are_known() -> None:
    """Only S3 itself, over https; a bucket's name cannot pass for it."""
    for url in ("https://s3.amazonaws.com", "https://s3.eu-west-1.amazonaws.com", "https://s3.cn-north-1.amazonaws.com.cn"):
        assert is_aws(place_of(url))
    for url in ("http://s3.amazonaws.com", "https://evil.s3.amazonaws.com", "https://s3.evil.com", "https://s3.amazonaws.com.evil.com"):
        assert not is_aws(place_of(url))


# moto


@pytest.fixture
async def from_moto(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Client]:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    with moto.client() as boto:
        boto.create_bucket(Bucket="shards")
        boto.put_object(Bucket="shards", Key="a.tar", Body=ramp(100_000))
        boto.put_object(Bucket="shards", Key="empty", Body=b"")
    async with s3_client([moto.url]) as made:
        yield made


async def test_moto_ranges_pins_and_absence(from_moto: S3Client) -> None:
    """The everyday life of a shard."""
    shard = s3_shard("s3://shards/a.tar")
    version = await from_moto.origin.head(shard)
    assert version.length == 100_000
    assert version.pin.kind is PinKind.ETAG
    body, data = await from_moto.get(shard, ByteRange(500, 999), version.pin)
    assert data == ramp(500, 500)
    assert replace(body.version, second_over=version.second_over) == version  # its second may have ended since
    with pytest.raises(ShardChanged):
        await from_moto.get(shard, FIRST, Pin(PinKind.ETAG, '"other"'))
    with pytest.raises(RangeNotSatisfiable):
        await from_moto.get(shard, ByteRange(100_000))
    with pytest.raises(ShardNotFound, match="NoSuchKey"):
        await from_moto.get(s3_shard("s3://shards/none"), FIRST)
    with pytest.raises(ShardNotFound, match="NoSuchBucket"):
        await from_moto.get(s3_shard("s3://no-such-bucket/none"), FIRST)
    assert (await from_moto.origin.head(s3_shard("s3://shards/empty"))).length == 0
