"""s3.py against a Ceph RADOS gateway, which checks signatures, conditions and versions for real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.ramp import ramp
from support.s3_origin import S3Client, s3_client, s3_shard
from support.s3_servers import S3Server

from forebay_proxy.core.errors import RangeNotSatisfiable, ShardChanged, ShardForbidden, ShardNotFound
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
    """The gateway verifies the signature; Range beside it is served."""
    body, data = await client.get(s3_shard("s3://shards/a.tar"), ByteRange(1_000_000, 1_999_999))
    assert data == ramp(1_000_000, 1_000_000)
    assert (body.version.length, body.version.pin.kind, body.ranged) == (SIZE, PinKind.ETAG, True)
    assert (await client.get(s3_shard("s3://shards/a.tar")))[1] == ramp(SIZE)


async def test_odd_keys(client: S3Client) -> None:
    """Every character of a key survives signing."""
    assert (await client.get(s3_shard("s3://shards/dir/odd name+%2F#?.tar?")))[1] == ramp(SIZE)


async def test_a_changed_object_is_refused_by_the_pin(client: S3Client, rados_gateway: S3Server) -> None:
    """If-Match 412, with Range."""
    shard = s3_shard("s3://shards/a.tar")
    version = await client.origin.head(shard)
    with rados_gateway.client() as boto:
        boto.put_object(Bucket="shards", Key="a.tar", Body=b"new")
    with pytest.raises(ShardChanged):
        await client.get(shard, ByteRange(0, 9), version.pin)
    assert (await client.origin.head(shard)).identity != version.identity


async def test_past_the_end_and_absent(client: S3Client) -> None:
    """416 and 404, each with its words."""
    with pytest.raises(RangeNotSatisfiable):
        await client.get(s3_shard("s3://shards/a.tar"), ByteRange(SIZE))
    with pytest.raises(ShardNotFound, match="NoSuchKey"):
        await client.get(s3_shard("s3://shards/none"), ByteRange(0, 9))


async def test_versions(client: S3Client, rados_gateway: S3Server) -> None:
    """versionId reads an old version, and is the identity of any."""
    with rados_gateway.client() as boto:
        boto.create_bucket(Bucket="kept")
        boto.put_bucket_versioning(Bucket="kept", VersioningConfiguration={"Status": "Enabled"})
        old = boto.put_object(Bucket="kept", Key="k", Body=b"old")["VersionId"]
        new = boto.put_object(Bucket="kept", Key="k", Body=b"newer")["VersionId"]
    body, data = await client.get(s3_shard(f"s3://kept/k?versionId={old}"), ByteRange(0, 9))
    assert (data, body.version.identity) == (b"old", f"s3:{old}")
    body, data = await client.get(s3_shard("s3://kept/k"), ByteRange(0, 9))
    assert (data, body.version.identity) == (b"newer", f"s3:{new}")


async def test_unsigned_needs_a_public_object(client: S3Client, rados_gateway: S3Server) -> None:
    """403 until the object is public."""
    shard = s3_shard("s3://shards/a.tar?unsigned=1")
    with pytest.raises(ShardForbidden) as denied:
        await client.get(shard, ByteRange(0, 9))
    assert denied.value.status == 403
    with rados_gateway.client() as boto:
        boto.put_object_acl(Bucket="shards", Key="a.tar", ACL="public-read")
    assert (await client.get(shard, ByteRange(0, 9)))[1] == ramp(10)
    assert (await client.origin.head(shard)).length == SIZE


async def test_a_wrong_secret_is_told(client: S3Client, rados_gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """SignatureDoesNotMatch reaches the person."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ShardForbidden, match="SignatureDoesNotMatch"):
        await client.get(s3_shard("s3://shards/a.tar"), ByteRange(0, 9))


async def test_an_unknown_key_is_told(client: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """InvalidAccessKeyId, after one look for newer credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    with pytest.raises(ShardForbidden, match="InvalidAccessKeyId"):
        await client.get(s3_shard("s3://shards/a.tar"), ByteRange(0, 9))


async def test_the_endpoint_option(client: S3Client, rados_gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint in the URL serves like one in the environment, where the operator allowed it."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    async with s3_client([rados_gateway.url]) as without:
        shard = s3_shard(f"s3://shards/a.tar?endpoint={rados_gateway.url}")
        assert (await without.get(shard, ByteRange(0, 9)))[1] == ramp(10)


async def test_requester_pays(client: S3Client) -> None:
    """The signed header travels, so the signature holds."""
    assert (await client.get(s3_shard("s3://shards/a.tar?requester_pays=1"), ByteRange(0, 9)))[1] == ramp(10)


async def test_a_multipart_object(client: S3Client, rados_gateway: S3Server) -> None:
    """Its ETag is no checksum, and pins all the same."""
    with rados_gateway.client() as boto:
        upload = boto.create_multipart_upload(Bucket="shards", Key="parts")["UploadId"]
        parts = []
        for number, start in ((1, 0), (2, 5 << 20)):
            tag = boto.upload_part(Bucket="shards", Key="parts", UploadId=upload, PartNumber=number, Body=ramp(5 << 20, start))["ETag"]
            parts.append({"PartNumber": number, "ETag": tag})
        boto.complete_multipart_upload(Bucket="shards", Key="parts", UploadId=upload, MultipartUpload={"Parts": parts})
    shard = s3_shard("s3://shards/parts")
    version = await client.origin.head(shard)
    assert version.length == 10 << 20
    assert version.pin.value.endswith('-2"')
    assert (await client.get(shard, ByteRange(5 << 20, (6 << 20) - 1), version.pin))[1] == ramp(1 << 20, 5 << 20)
