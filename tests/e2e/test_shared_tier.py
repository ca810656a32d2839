"""A shared tier between sidecars and a far origin: a real S3 store, real sidecars."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.s3_servers import S3Server, moto, rados_gateway  # noqa: F401
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running, small_segments, wait_until

SEGMENT = 1 << 16
PROGRAM = small_segments(SEGMENT)
SHARDS = 6


def tar_of(number: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for at in range(10 + number):
            member = tarfile.TarInfo(f"{number:03}-{at:03}.bin")
            data = bytes([number, at]) * 10_000
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


DATA = {f"/set/{number:03}.tar": tar_of(number) for number in range(SHARDS)}


@pytest.fixture
def far() -> Iterator[ScriptedOrigin]:
    with in_a_thread(ScriptedOrigin()) as origin:
        for path, data in DATA.items():
            origin.put(path, data, etag=f'"{path[5:8]}"')
        yield origin


@contextmanager
def cluster(directory: Path, count: int, store: S3Server, far: ScriptedOrigin, bucket: str, **variables: str) -> Iterator[list[Sidecar]]:
    """So many nodes with one tier."""
    with ExitStack() as nodes:
        sidecars = []
        for number in range(count):
            home = directory / f"node-{number}"
            home.mkdir(parents=True)
            shared = f"s3://{bucket}/tier?endpoint={store.url}"
            environ = {**store.environ, **variables}
            flags = ("--cache-size", "64MB", "--shared", shared)
            sidecars.append(nodes.enter_context(running(home, *flags, allow=[far.base], environ=environ, program=PROGRAM)))
        yield sidecars


def from_afar(nodes: list[Sidecar]) -> int:
    """Bytes that they had from the far origin."""
    return int(sum(node.metric("forebay_origin_bytes_total") for node in nodes))


def read_all(sidecar: Sidecar, far: ScriptedOrigin) -> None:
    for path, data in DATA.items():
        assert sidecar.ask(sidecar.proxied(far.url(path)).removeprefix(sidecar.url)) == data


def bucket_of(store: S3Server, name: str) -> str:
    with store.client() as client:
        client.create_bucket(Bucket=name)
    return name


def manifests(store: S3Server, bucket: str) -> int:
    with store.client() as client:
        return sum(each["Key"].endswith(".json") for each in client.list_objects_v2(Bucket=bucket).get("Contents", []))


def test_a_cluster_asks_the_far_origin_once(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """Three nodes read the same at the same time; each byte comes from afar once, and each node has every byte."""
    bucket = bucket_of(rados_gateway, "once")
    with cluster(tmp_path, 3, rados_gateway, far, bucket) as nodes:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda node: read_all(node, far), nodes))
        assert from_afar(nodes) == sum(map(len, DATA.values()))
        assert sum(node.status()["shared"]["written"] for node in nodes) == SHARDS


def test_a_second_cluster_reads_nothing_from_afar(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    bucket = bucket_of(rados_gateway, "second")
    with cluster(tmp_path / "first", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        wait_until(lambda: manifests(rados_gateway, bucket) == SHARDS)
    with cluster(tmp_path / "second", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        assert from_afar([node]) == 0
        assert node.status()["shared"]["hits"] == SHARDS
        assert node.metric("forebay_shared_bytes_total", way="read") == sum(map(len, DATA.values()))
