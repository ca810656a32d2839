"""A shared tier between sidecars and a far origin: a real S3 store, real sidecars."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.lengths import LEFT, LONG
from support.s3_servers import S3Server, moto, rados_gateway  # noqa: F401
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running, small_segments, wait_until

SEGMENT = 1 << 16
PROGRAM = small_segments(SEGMENT)
if not LONG:
    LEFT.append("a shared tier whose gateway is killed, and one with two sizes of segments")
SHARDS = 6
HURRIED = {"TESTS_PATIENCE_S": "0"}  # the tier's own limits


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
def cluster(
    directory: Path, count: int, store: S3Server, far: ScriptedOrigin, bucket: str, program: Sequence[str] = PROGRAM, **variables: str
) -> Iterator[list[Sidecar]]:
    """So many nodes with one tier."""
    with ExitStack() as nodes:
        sidecars = []
        for number in range(count):
            home = directory / f"node-{number}"
            home.mkdir(parents=True)
            shared = f"s3://{bucket}/tier?endpoint={store.url}"
            environ = {**store.environ, "TESTS_PATIENCE_S": "60", **variables}
            flags = ("--cache-size", "64MB", "--shared", shared)
            sidecars.append(nodes.enter_context(running(home, *flags, allow=[far.base], environ=environ, program=program)))
        yield sidecars


def from_afar(nodes: list[Sidecar]) -> int:
    """Bytes that they had from the far origin."""
    return int(sum(node.metric("forebay_origin_bytes_total") for node in nodes))


def read_all(sidecar: Sidecar, far: ScriptedOrigin, paths: Sequence[str] = ()) -> None:
    """Every byte is right."""
    for path in paths or DATA:
        data = DATA[path]
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


ALL = sum(map(len, DATA.values()))
PATHS = [*DATA]


def failures(sidecar: Sidecar, reason: str) -> float:
    return sidecar.metric("forebay_shared_failures_total", reason=reason)


def objects(store: S3Server, bucket: str, kind: str) -> list[str]:
    with store.client() as client:
        found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [each["Key"] for each in found if each["Key"].endswith(kind)]


def put(store: S3Server, bucket: str, key: str, data: bytes) -> None:
    with store.client() as client:
        client.put_object(Bucket=bucket, Key=key, Body=data)


@pytest.mark.parametrize("number", [signal.SIGSTOP, *([signal.SIGKILL] if LONG else [])])
def test_the_gateway_goes_in_mid_epoch(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin, number: signal.Signals) -> None:  # noqa: F811
    """Every byte is right, and who was about to ask the gateway waits a second for it, once: then the origin is asked."""
    bucket = bucket_of(rados_gateway, f"gone-{number}")
    with cluster(tmp_path / "first", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        wait_until(lambda: manifests(rados_gateway, bucket) == SHARDS)
    with cluster(tmp_path / "second", 1, rados_gateway, far, bucket, **HURRIED) as [node]:
        read_all(node, far, PATHS[:2])
        before, reason = from_afar([node]), "timeout" if number == signal.SIGSTOP else "unavailable"
        with rados_gateway.signalled(number):
            read_all(node, far, PATHS[2:])
            assert from_afar([node]) - before == sum(len(DATA[path]) for path in PATHS[2:])
            assert 1 <= failures(node, reason) < len(PATHS[2:])  # not each shard waited for it
            assert node.status()["shared"]["troubles"]


def test_a_node_dies_in_mid_shard(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """Those that wait for it see it: one of them fetches the shard, the others have it from that one."""
    bucket = bucket_of(rados_gateway, "dies")
    with cluster(tmp_path, 3, rados_gateway, far, bucket, **HURRIED) as [dying, *others]:
        path = PATHS[0]
        request = urllib.request.Request(dying.proxied(far.url(path)), headers={"Range": "bytes=0-"})
        with urllib.request.urlopen(request) as answer:
            answer.read(100)
        assert objects(rados_gateway, bucket, ".lease")
        lost = from_afar([dying])
        dying.kill()
        for node in others:
            node.plan("job/0/0/0.0", [far.url(path) for path in PATHS])  # ahead of need: a reader would wait 10 s at most
        for node in others:
            node.wait_complete(SHARDS)
            read_all(node, far)
        assert 0 < lost <= len(DATA[path])
        assert ALL <= from_afar(others) < 2 * ALL  # each once, but for what a busy machine keeps waiting for too long
        wait_until(lambda: not objects(rados_gateway, bucket, ".lease"))


def test_a_bucket_without_write_rights(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """What is there is read; nothing is written, and nobody waits. It is said once, with what to look at."""
    bucket = bucket_of(rados_gateway, "rights")
    with cluster(tmp_path / "first", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far, PATHS[:3])
        wait_until(lambda: manifests(rados_gateway, bucket) == 3)
    rados_gateway.admin("user", "create", "--uid", "ro", "--display-name", "ro", "--access-key", "ro-key", "--secret", "ro-secret")
    arns = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    who = {"AWS": ["arn:aws:iam:::user/ro"]}
    policy = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": who, "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": arns}],
    }
    with rados_gateway.client() as client:
        client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    keys = {"AWS_ACCESS_KEY_ID": "ro-key", "AWS_SECRET_ACCESS_KEY": "ro-secret"}
    with cluster(tmp_path / "second", 1, rados_gateway, far, bucket, **keys) as [node]:
        read_all(node, far)
        assert from_afar([node]) == sum(len(DATA[path]) for path in PATHS[3:])
        assert (failures(node, "refused"), failures(node, "unavailable")) == (1, 0)
        assert node.log_text().count("credentials of --shared") == 1
    assert manifests(rados_gateway, bucket) == 3


def test_a_quota_that_is_reached_half_way(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """Every byte all the same; what had room is of use to the next cluster."""
    bucket = bucket_of(rados_gateway, "quota")
    half = str(sum(len(DATA[path]) for path in PATHS[:3]) + 20_000)
    rados_gateway.admin("quota", "set", "--quota-scope=bucket", f"--bucket={bucket}", f"--max-size={half}")
    rados_gateway.admin("quota", "enable", "--quota-scope=bucket", f"--bucket={bucket}")
    with cluster(tmp_path / "first", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        wait_until(lambda: failures(node, "full"))
        assert node.log_text().count("lifecycle rule") == 1
        there = manifests(rados_gateway, bucket)
        assert 1 <= there < SHARDS
    with cluster(tmp_path / "second", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        assert node.status()["shared"]["hits"] == there


def test_somebody_elses_objects(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """Other bytes under a manifest, and something else where a manifest was: no reader has a byte of them, and both are written again."""
    bucket = bucket_of(rados_gateway, "others")
    with cluster(tmp_path / "first", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        wait_until(lambda: manifests(rados_gateway, bucket) == SHARDS)
    stems = sorted(key.removesuffix(".json") for key in objects(rados_gateway, bucket, ".json"))
    put(rados_gateway, bucket, f"{stems[0]}.bytes", b"not a shard" * 100_000)
    put(rados_gateway, bucket, f"{stems[1]}.json", b"<html>hello</html>")
    put(rados_gateway, bucket, "tier/holiday.jpg", b"beach")
    with cluster(tmp_path / "second", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        assert 0 < from_afar([node]) < ALL
        assert failures(node, "foreign") >= 1
        wait_until(lambda: node.status()["shared"]["written"] == 2)
    with cluster(tmp_path / "third", 1, rados_gateway, far, bucket) as [node]:
        read_all(node, far)
        assert from_afar([node]) == 0
    assert objects(rados_gateway, bucket, "holiday.jpg")


@pytest.mark.skipif(not LONG, reason="in a long run")
def test_another_segment_size(tmp_path: Path, rados_gateway: S3Server, far: ScriptedOrigin) -> None:  # noqa: F811
    """Sidecars that cut shards in another way have objects of their own, and do not read those of the others."""
    bucket = bucket_of(rados_gateway, "sizes")
    for count, size in enumerate((SEGMENT, 2 * SEGMENT), 1):
        with cluster(tmp_path / str(size), 1, rados_gateway, far, bucket, small_segments(size)) as [node]:
            read_all(node, far)
            assert from_afar([node]) == ALL
            wait_until(lambda count=count: manifests(rados_gateway, bucket) == count * SHARDS)
