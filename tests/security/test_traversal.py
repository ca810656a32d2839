"""Names that try to leave where they belong: below a file root, inside a bucket, in the cache directory, on our own paths."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fake_cache import FakeShard
from support.http_server import Reply, World, listening, talk
from support.refusals import refused

from forebay_proxy.core.errors import ShardError
from forebay_proxy.core.shard import Pin, Shard, store_key
from forebay_proxy.origins.file import FileOrigin
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url, parse_proxy_target

SECRET = b"not for you"
CLIMBS = [
    "..", "%2e%2e", "%2E%2E", ".%2e", "%2e.", "..%2f..", "%2e%2e%2f", "..%5c..", "..\\..", "....//", "%252e%252e", "..;", "..%00",
    "%c0%ae%c0%ae",
    "%u002e%u002e", "..%ff", "．．", "..%2f", ".%00.", "%2e%2e%5c",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file root with a shard; beside it what must not be read."""
    (tmp_path / "secret.tar").write_bytes(SECRET)
    (tmp_path / "root-not").mkdir()
    (tmp_path / "root-not" / "secret.tar").write_bytes(SECRET)
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "0.tar").write_bytes(b"shard")
    return root


async def read(root: Path, target: str) -> bytes:
    """What a file target gives; raises what the route would answer with."""
    shard = Shard.of(parse_proxy_target(target))
    origin = FileOrigin([root])
    try:
        async with origin.read(shard, None, Pin()) as body:
            return b"".join([bytes(chunk) async for chunk in body.chunks])
    finally:
        await origin.aclose()


async def is_refused(root: Path, target: str) -> bool:
    try:
        return SECRET not in await read(root, target)
    except (InvalidShardUrl, ShardError):
        return True


async def test_what_is_below_the_root_is_read(root: Path) -> None:
    """Or nothing here would show anything."""
    assert await read(root, f"/file{root}/deep/0.tar") == b"shard"


@pytest.mark.parametrize("climb", CLIMBS)
async def test_no_name_climbs_out_of_a_file_root(root: Path, climb: str) -> None:
    """However the dots, the slashes and the ends are written."""
    for target in (
        f"/file{root}/deep/{climb}/{climb}/secret.tar",
        f"/file{root}/{climb}/secret.tar",
        f"/file{root}/{climb}/root-not/secret.tar",
    ):
        refused(f"traversal: {climb!r} in {target.removeprefix(f'/file{root}')!r}", held=await is_refused(root, target))


@pytest.mark.parametrize("target", ["-not/secret.tar", "/../secret.tar", "", "/", "/deep", "/deep/0.tar/", "/deep/0.tar/x"])
async def test_neither_siblings_nor_directories_are_shards(root: Path, target: str) -> None:
    """A root ends at a slash; a directory is no file."""
    try:
        found = await read(root, f"/file{root}{target}")
    except (InvalidShardUrl, ShardError):
        found = b""
    refused(f"traversal: {target!r} of a root", held=SECRET not in found and (found == b"" or target == "/deep/0.tar/"))


@pytest.mark.parametrize("kind", ["file", "directory", "chain", "relative", "into /proc", "fifo", "device"])
async def test_no_link_leads_out_of_a_file_root(root: Path, kind: str) -> None:
    """Links inside the root are followed only to places inside it; what is no regular file is not opened at all."""
    link = root / "link.tar"
    target = f"/file{link}"
    match kind:
        case "file":
            link.symlink_to(root.parent / "secret.tar")
        case "directory":
            (root / "dir").symlink_to(root.parent)
            target = f"/file{root}/dir/secret.tar"
        case "chain":
            (root / "one").symlink_to(root.parent / "secret.tar")
            link.symlink_to(root / "one")
        case "relative":
            link.symlink_to("../secret.tar")
        case "into /proc":
            link.symlink_to("/proc/self/environ")
        case "fifo":
            os.mkfifo(link)
        case "device":
            link.symlink_to("/dev/zero")
    async with asyncio.timeout(60):
        refused(f"traversal: a link, {kind}", held=await is_refused(root, target))


async def test_without_a_root_no_file_is_read(root: Path) -> None:
    """The default."""
    origin = FileOrigin([])
    with pytest.raises(ShardError) as caught:
        async with origin.read(Shard.of(parse_origin_url(f"file://{root}/deep/0.tar")), None, Pin()):
            pass
    await origin.aclose()
    refused("traversal: a file without any root", held=caught.value.status == 403 and "--file-root" in caught.value.next_step)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening({"s3://b/0.tar": FakeShard(b"shard")}) as found:
        yield found


@pytest.mark.parametrize("climb", CLIMBS)
async def test_no_shard_path_becomes_one_of_ours(world: World, climb: str) -> None:
    """Commands and status are reached by their own names only, and they hide behind no shard."""
    for target in (
        f"/s3/b/{climb}/v1/evict",
        f"/s3/{climb}/{climb}/v1/evict",
        f"/{climb}/v1/evict",
        f"/page/{climb}/v1/status",
        f"/page/{climb}/0.tar",
    ):
        reply = await post(world, target)
        refused(f"traversal: POST {target}", held=reply.status >= 400 and world.operations.evicted == [])


@pytest.mark.parametrize(
    "target", ["//v1/evict", "/v1//evict", "/v1/evict/", "/V1/EVICT", "/v1/%65vict", "/v1/evict%00", "/v1/evict;x", "/v1\\evict"]
)
async def test_a_command_has_one_spelling(world: World, target: str) -> None:
    """What checks a path and what answers it cannot differ, since both compare the very bytes."""
    refused(f"traversal: POST {target}", held=(await post(world, target)).status == 404 and world.operations.evicted == [])


async def post(world: World, target: str) -> Reply:
    sent = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 13\r\n\r\n".encode(
        "utf-8", "surrogateescape"
    )
    return await talk(world.port, sent + b'{"all": true}')


@pytest.mark.parametrize("climb", ["..", "%2e%2e", "a/../..", "./.", "%2E."])
def test_an_object_name_holds_no_dots(climb: str) -> None:
    """HTTP clients and S3 servers would fold them, and then the name would mean another bucket."""
    for scheme in ("s3", "gs", "hf"):
        with pytest.raises(InvalidShardUrl):
            parse_proxy_target(f"/{scheme}/bucket/{climb}/other-bucket/key")
    refused(f"traversal: {climb} in an object's name", held=True)


@pytest.mark.parametrize("name", ["s3://b/../../x", "s3://b/" + "a/" * 500, "file:///nas/\udcff", "https://h/%2e%2e/%00"])
def test_no_name_becomes_a_path_of_the_cache(name: str) -> None:
    """What lies on the disk is called by a digest: 64 hexadecimal digits whatever was asked for."""
    key = store_key(name, "etag:../../x")
    refused(f"traversal: the stored name of {name[:20]!r}", held=len(key) == 64 and set(key) <= set("0123456789abcdef"))
