"""``pipe:aws s3 cp`` as people write it, against the real S3: endpoint in three positions, credentials, versions, and a refusal."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.lengths import ordinarily
from support.s3_servers import S3Server
from support.sidecar import Sidecar, environment, running, wait_until
from support.tars import expected, tar_shard

import forebay_loader as fb

pytestmark = pytest.mark.webdataset

BUCKET, KEYS = "pictures", [f"train/{shard:03d}.tar" for shard in range(3)]
SAMPLES, SIZE = 10, 40_000
POSITIONS = [
    "pipe:aws --endpoint-url {endpoint} s3 cp s3://{path} -",
    "pipe:aws s3 cp --endpoint-url={endpoint} s3://{path} -",
    "pipe:aws s3 cp --quiet s3://{path} - --endpoint-url {endpoint} || true",
]
COMPARED = POSITIONS[: ordinarily(1, of=3, what="positions of an endpoint that the aws tool is run with")]  # a second of a processor each


@pytest.fixture(scope="module")
def bucket(rados_gateway: S3Server) -> str:
    with rados_gateway.client() as boto:
        boto.create_bucket(Bucket=BUCKET)
        boto.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        for shard, key in enumerate(KEYS):
            boto.put_object(Bucket=BUCKET, Key=key, Body=tar_shard(shard, SAMPLES, SIZE))
    return BUCKET


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Takeover in this process, as ``fb.enable()`` in a script; the endpoint is only in the command."""
    fb.enable()
    yield monkeypatch
    fb.disable()


def credentials(gateway: S3Server) -> dict[str, str]:
    """The sidecar's keys, without the endpoint: the command names that."""
    return {name: value for name, value in gateway.environ.items() if name != "AWS_ENDPOINT_URL"}


def epoch(urls: list[str], **how: Any) -> dict[str, bytes]:
    wds = importlib.import_module("webdataset")
    return {sample["__key__"]: sample["bin"] for sample in wds.WebDataset(urls, shardshuffle=False, **how)}


def reads_as(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_URL", sidecar.url)


@pytest.mark.once
@pytest.mark.parametrize("position", POSITIONS)
def test_the_endpoint_in_three_positions(
    place: Path, rados_gateway: S3Server, bucket: str, enabled: pytest.MonkeyPatch, position: str
) -> None:
    """fb.enable(): every sample once, the URL stays the command, no aws process is started."""
    urls = [position.format(endpoint=rados_gateway.url, path=f"{bucket}/{key}") for key in KEYS]
    with running(place, "--cache-size", "100MB", allow=[rados_gateway.url], environ=credentials(rados_gateway)) as sidecar:
        reads_as(sidecar, enabled)
        enabled.setenv("PATH", "/nowhere")
        assert epoch(urls) == expected(len(KEYS), SAMPLES, SIZE)
        wait_until(lambda: not sidecar.status()["cache"]["in_flight"])  # the last bytes were readable before they were stored
        assert epoch(urls) == expected(len(KEYS), SAMPLES, SIZE)
        requests, counted = sidecar.status()["requests"], sidecar.status()["bytes"]
    assert requests["hit"] == requests["miss"] == len(KEYS)
    assert counted["sent"] == 2 * counted["origin"]


@pytest.mark.once
def test_a_version(place: Path, rados_gateway: S3Server, bucket: str, enabled: pytest.MonkeyPatch) -> None:
    """s3api with --version-id and s3://…?versionId= read the old object; without it the new one."""
    with rados_gateway.client() as boto:
        old = boto.put_object(Bucket=bucket, Key="kept.tar", Body=tar_shard(7, SAMPLES, SIZE))["VersionId"]
        boto.put_object(Bucket=bucket, Key="kept.tar", Body=tar_shard(8, SAMPLES, SIZE))
    api = f"pipe:aws s3api get-object --bucket {bucket} --key kept.tar --version-id {old} /dev/stdout"
    with running(place, "--cache-size", "100MB", allow=[rados_gateway.url], environ=rados_gateway.environ) as sidecar:
        reads_as(sidecar, enabled)
        assert {key[:3] for key in epoch([f"s3://{bucket}/kept.tar?versionId={old}"])} == {"007"}
        assert {key[:3] for key in epoch([f"s3://{bucket}/kept.tar"])} == {"008"}
        assert {key[:3] for key in epoch([api])} == {"007"}
        assert len(sidecar.shards()) == 2


@pytest.mark.once
@pytest.mark.needs("aws")
def test_the_same_bytes_as_aws_itself(place: Path, rados_gateway: S3Server, bucket: str, enabled: pytest.MonkeyPatch) -> None:
    """What the tool writes to its stdout and what the sidecar streams are the same, in each position."""
    with running(place, "--cache-size", "100MB", allow=[rados_gateway.url], environ=credentials(rados_gateway)) as sidecar:
        reads_as(sidecar, enabled)
        for position in COMPARED:
            url = position.format(endpoint=rados_gateway.url, path=f"{bucket}/{KEYS[0]}")
            environ = environment(place, **credentials(rados_gateway))
            tool = subprocess.run(["sh", "-c", url.removeprefix("pipe:")], env=environ, capture_output=True, timeout=240, check=False)
            if tool.returncode or not tool.stdout:
                pytest.skip(f"{shutil.which('aws')} does not run here: {tool.stderr[-200:]!r}")
            with importlib.import_module("webdataset.gopen").gopen(url) as stream:
                assert stream.read() == tool.stdout
