"""s3.py against a Ceph RADOS gateway, which checks signatures, conditions and versions for real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.s3_origin import S3Client, s3_client, s3_shard
from support.s3_servers import S3Server
from support.scripted_answers import ramp

from forebay_proxy.core.errors import ShardForbidden
from forebay_proxy.core.shard import ByteRange, PinKind

SIZE = 3_000_000


@pytest.fixture
async def client(rados_gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S3Client]:
    for name, value in rados_gateway.environ.items():
        monkeypatch.setenv(name, value)
    with rados_gateway.client() as boto:
        boto.create_bucket(Bucket="shards")
        for key in ("a.tar", "dir/odd name+%2F#?.tar"):
            boto.put_object(Bucket="shards", Key=key, Body=ramp(SIZE))
    async with s3_client([rados_gateway.url]) as made:
        yield made


async def test_a_signed_range(client: S3Client) -> None:
    """The gateway verifies the signature; Range beside it is served, every character of a key and a signed header survive signing."""
    body, data = await client.get(s3_shard("s3://shards/a.tar"), ByteRange(1_000_000, 1_999_999))
    assert data == ramp(1_000_000, 1_000_000)
    assert (body.version.length, body.version.pin.kind, body.ranged) == (SIZE, PinKind.ETAG, True)
    for url in ("s3://shards/a.tar?requester_pays=1", "s3://shards/dir/odd name+%2F#?.tar?"):
        assert (await client.get(s3_shard(url)))[1] == ramp(SIZE)


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"), ("AWS_ACCESS_KEY_ID", "nobody", "InvalidAccessKeyId")],
)
async def test_wrong_credentials_are_told(client: S3Client, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: str) -> None:
    """The gateway's own word reaches the person."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ShardForbidden, match=code):
        await client.get(s3_shard("s3://shards/a.tar"), ByteRange(0, 9))
