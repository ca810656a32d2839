"""s3 behind TLS of one's own and behind an upstream proxy: our requests and the SDK's own heed the same variables."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.netns import lonely_network
from support.s3_origin import s3_client, s3_shard
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin
from support.tinyproxy import tinyproxy
from support.tls import Authority

from forebay_proxy.core.errors import OriginUnavailable
from forebay_proxy.core.shard import ByteRange

SHARD = s3_shard("s3://b/k.tar")
FIRST = ByteRange(0, 9)
NEAR = "10.7.7.7"
CONFIG = """
[profile role]
role_arn = arn:aws:iam::123456789012:role/reader
source_profile = base
[profile base]
aws_access_key_id = AKIATEST
aws_secret_access_key = canary-secret
"""
STS = (
    b'<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId>'
    b"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
    b"</AssumeRoleResult></AssumeRoleResponse>"
)


@pytest.fixture
def as_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar's credentials come from STS: that is a request of the SDK's own."""
    (tmp_path / "config").write_text(CONFIG)
    for name, value in {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_PROFILE": "role", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def endpoint(monkeypatch: pytest.MonkeyPatch, server: ScriptedOrigin) -> None:
    server.put("/b/k.tar", ramp(1000))
    server.put("/", STS)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.base)


@pytest.mark.usefixtures("as_role")
async def test_a_bundle_counts_for_our_requests_and_for_the_sdks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_CA_BUNDLE alone lets STS hand out credentials and the shard be read; without it both fail, and nothing switches that off."""
    authority = Authority(tmp_path)
    async with ScriptedOrigin(tls=authority.server("127.0.0.1")) as server:
        endpoint(monkeypatch, server)
        async with s3_client([server.base]) as untrusting:
            with pytest.raises(OriginUnavailable) as failed:
                await untrusting.get(SHARD, FIRST)
        assert failed.value.hopeless
        assert "AWS_CA_BUNDLE" in failed.value.next_step
        assert server.requests == []
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.bundle))
        async with s3_client([server.base]) as client:
            assert (await client.get(SHARD, FIRST))[1] == ramp(10)
        assert [request.path for request in server.requests] == ["/", "/b/k.tar"]
        assert "ASIAROLE" in server.requests[1].target


async def test_a_bundle_of_the_sdk_is_not_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With AWS_CA_BUNDLE the authorities of SSL_CERT_FILE do not count for s3."""
    other = tmp_path / "other"
    other.mkdir()
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(Authority(other).bundle))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.bundle))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    async with ScriptedOrigin(tls=authority.server("127.0.0.1")) as server:
        endpoint(monkeypatch, server)
        async with s3_client([server.base]) as client:
            with pytest.raises(OriginUnavailable, match="certificate is not trusted"):
                await client.get(s3_shard("s3://b/k.tar?unsigned=1"), FIRST)
        assert server.requests == []


@pytest.mark.usefixtures("as_role")
async def test_both_go_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable, two programs: the SDK's tunnel and ours."""
    authority = Authority(tmp_path)
    with lonely_network(NEAR), tinyproxy(tmp_path) as proxy:
        async with ScriptedOrigin(tls=authority.server(NEAR), host=NEAR) as server:
            endpoint(monkeypatch, server)
            monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.bundle))
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            async with s3_client() as client:
                assert (await client.get(SHARD, FIRST))[1] == ramp(10)
            assert proxy.asked() == [f"CONNECT {NEAR}:{server.port}"] * 2
