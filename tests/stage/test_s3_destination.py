"""s3_destination.py: refusals, a quota reached half-way, torn uploads, and objects that someone changes meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.awsrequest import AWSResponse
from support.s3_servers import S3Server

from forebay_stage import s3_destination
from forebay_stage.destination import destination_of
from forebay_stage.errors import DestinationFailed
from forebay_stage.s3_destination import S3Destination
from forebay_stage.stage_lock import SPEC

PART = 5 << 20


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    made = tmp_path / "scratch.tar"
    made.write_bytes(random.Random(1).randbytes(100_000))
    return made


@contextmanager
def answering(destination: S3Destination, operation: str, answer: Callable[..., AWSResponse | None]) -> Iterator[None]:
    """``answer`` stands in for the store; None: the store is asked."""
    events = destination._client.meta.events
    events.register(f"before-send.s3.{operation}", answer)
    yield
    events.unregister(f"before-send.s3.{operation}", answer)


class _Raw:
    """A body as urllib3 gives it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._data


def refusal(request: Any, status: int, code: str) -> AWSResponse:
    return AWSResponse(request.url, status, {}, _Raw(f"<Error><Code>{code}</Code></Error>".encode()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "code", "step"),
    [
        (403, "AccessDenied", "s3:PutObject"),
        (403, "QuotaExceeded", "raise the quota"),
        (507, "InsufficientStorage", "raise the quota"),
        (301, "PermanentRedirect", "?region="),
    ],
)
def test_refusals(on_moto: S3Destination, shard: Path, status: int, code: str, step: str) -> None:
    """Each way to write says what the store said, and what to do."""
    with answering(on_moto, "PutObject", lambda request, **_: refusal(request, status, code)):
        for put in (lambda: on_moto.put_file("0.tar", shard), lambda: on_moto.put("a", b""), lambda: on_moto.put("a", b"", only_new=True)):
            with pytest.raises(DestinationFailed, match=rf"(0\.tar|a): the store answers {status} {code}") as refused:
                put()
            assert step in refused.value.step
    assert list(on_moto.names()) == []


def test_quota_half_way(on_moto: S3Destination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moto: S3Server) -> None:
    """Nothing is under the name, and no part is left; with more room the same call works."""
    monkeypatch.setattr(s3_destination, "_PARTS", TransferConfig(multipart_threshold=PART, multipart_chunksize=PART, max_concurrency=1))
    (tmp_path / "large").write_bytes(bytes(2 * PART))

    def full(request: Any, **_: Any) -> AWSResponse | None:
        return refusal(request, 403, "QuotaExceeded") if "partNumber=2" in request.url else None

    with answering(on_moto, "UploadPart", full), pytest.raises(DestinationFailed, match=r"0\.tar: the store answers 403 QuotaExceeded"):
        on_moto.put_file("0.tar", tmp_path / "large")
    assert (list(on_moto.names()), unfinished(moto, on_moto)) == ([], [])
    assert on_moto.put_file("0.tar", tmp_path / "large") == 2 * PART


def unfinished(server: S3Server, destination: S3Destination) -> list[str]:
    with server.client() as client:
        return [upload["Key"] for upload in client.list_multipart_uploads(Bucket=destination.bucket).get("Uploads", ())]


def test_torn_upload(on_gateway: S3Destination, rados_gateway: S3Server) -> None:
    """An upload that a kill left unfinished is no object; the next holder of the lock ends it, and no one else's."""
    with rados_gateway.client() as client:
        for key in ("data/0.tar", "data-of-others/b.tar"):
            upload = client.create_multipart_upload(Bucket=on_gateway.bucket, Key=key)["UploadId"]
            client.upload_part(Bucket=on_gateway.bucket, Key=key, UploadId=upload, PartNumber=1, Body=bytes(1000))
    assert list(on_gateway.names()) == []
    lock = on_gateway.lock()
    lock.take()
    assert len(unfinished(rados_gateway, on_gateway)) == 2, "nothing says that they are a stage's"
    lock.release()
    on_gateway.put(SPEC, b"{}")
    on_gateway.lock().take()
    assert unfinished(rados_gateway, on_gateway) == ["data-of-others/b.tar"]


def test_no_right_to_list_uploads(on_moto: S3Destination, caplog: pytest.LogCaptureFixture) -> None:
    """Such a stage goes on, and says so."""
    with answering(on_moto, "ListMultipartUploads", lambda request, **_: refusal(request, 403, "AccessDenied")):
        on_moto.put(SPEC, b"{}")
        on_moto.lock().take()
    assert "Unfinished uploads of earlier stages stay" in caplog.text


@pytest.mark.parametrize(("moment", "cause"), [("HeadObject", "someone changed"), ("PutObject", "bytes 0 to 99999 are not those")])
def test_changed_after_its_upload(on_moto: S3Destination, moto: S3Server, shard: Path, moment: str, cause: str) -> None:
    """Reading back finds other bytes of the same length, and a change while it reads."""

    def change(**_: Any) -> None:
        with moto.client() as client:
            client.put_object(Bucket=on_moto.bucket, Key="data/0.tar", Body=bytes(100_000))

    on_moto._client.meta.events.register(f"after-call.s3.{moment}", change)
    with pytest.raises(DestinationFailed, match=rf"0\.tar: {cause}"):
        on_moto.put_file("0.tar", shard)


def test_body_breaks(on_moto: S3Destination, shard: Path) -> None:
    """A body that breaks off is asked for again, thrice in all."""
    on_moto.put_file("0.tar", shard)
    broken = iter([True, True])

    def cut(request: Any, **_: Any) -> AWSResponse | None:
        return AWSResponse(request.url, 200, {"content-length": "9"}, _Short()) if next(broken, False) else None  # type: ignore[arg-type]

    with answering(on_moto, "GetObject", cut):
        assert on_moto.get("0.tar") == shard.read_bytes()


class _Short(_Raw):
    def __init__(self) -> None:
        super().__init__(b"cut")

    def read(self, *_: Any) -> bytes:
        return self._data

    def close(self) -> None:
        pass


def test_signed_with_other_keys(on_gateway: S3Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway refuses, and the person learns which rights are needed."""
    s3_destination._client.cache_clear()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(DestinationFailed, match="403 SignatureDoesNotMatch") as refused:
        on_gateway.put("a", b"")
    assert "s3:PutObject" in refused.value.step


def test_no_right_to_write(on_gateway: S3Destination, rados_gateway: S3Server, shard: Path) -> None:
    """A bucket that may be read and not written refuses each way to write."""
    policy = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:PutObject",'
        f'"Resource":"arn:aws:s3:::{on_gateway.bucket}/*"}}]}}'
    )
    with rados_gateway.client() as client:
        client.put_bucket_policy(Bucket=on_gateway.bucket, Policy=policy)
    with pytest.raises(DestinationFailed, match="403 AccessDenied"):
        on_gateway.put_file("0.tar", shard)
    with pytest.raises(DestinationFailed, match="403 AccessDenied"):
        on_gateway.lock().take()


def test_body_changed_on_the_way(on_gateway: S3Destination, shard: Path) -> None:
    """The gateway refuses a body that is not the one that was signed."""

    def change(request: Any, **_: Any) -> None:
        request.body = b"x" + shard.read_bytes()[1:]

    with answering(on_gateway, "PutObject", change), pytest.raises(DestinationFailed, match=r"0\.tar: the store answers 400"):
        on_gateway.put_file("0.tar", shard)
    assert list(on_gateway.names()) == []


def test_no_bucket(on_moto: S3Destination) -> None:
    """It is not made: a mistyped name would get a bucket of its own."""
    with pytest.raises(DestinationFailed, match="404 NoSuchBucket") as refused:
        destination_of(f"s3://no-such-bucket/data?endpoint={on_moto.endpoint}").put("a", b"")
    assert "make the bucket no-such-bucket" in refused.value.step


def test_no_credentials(on_moto: S3Destination, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A profile that is not there is told without the SDK's own text."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(DestinationFailed, match="no usable AWS credentials") as refused:
        destination_of(f"s3://bucket/data?endpoint={on_moto.endpoint}&profile=nobody").put("a", b"")
    assert "AWS_PROFILE" in refused.value.step


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, forgotten: None) -> None:
    """The endpoint is named as what to check."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(DestinationFailed, match="the store did not answer") as refused:
        destination_of("s3://bucket/data?endpoint=http://127.0.0.1:9&region=us-east-1").get("a")
    assert "?endpoint=" in refused.value.step
