"""file.py: shards on a mounted path."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.scripted_answers import ramp
from support.seams import refuses

from forebay_proxy.core.errors import (
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
)
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins import file as file_module
from forebay_proxy.origins.file import PIECE_BYTES, FileOrigin
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SIZE = 2 * PIECE_BYTES + 5


def shard_of(path: Path | str) -> Shard:
    return Shard.of(parse_origin_url(f"file://{path}"))


@pytest.fixture
def nas(tmp_path: Path) -> Path:
    root = tmp_path / "nas"
    root.mkdir()
    (root / "a.tar").write_bytes(ramp(SIZE))
    (tmp_path / "secret").write_bytes(b"secret")
    return root


@pytest.fixture
async def origin(nas: Path) -> AsyncIterator[FileOrigin]:
    made = FileOrigin([nas], idle_timeout_s=5.0)
    yield made
    await made.aclose()


async def get(origin: FileOrigin, shard: Shard, range: ByteRange | None = None, pin: Pin = Pin()) -> bytes:  # noqa: B008
    async with origin.read(shard, range, pin) as body:
        return b"".join([chunk async for chunk in body.chunks])


async def test_whole_and_ranges(origin: FileOrigin, nas: Path) -> None:
    """A body says where it is, and files always honour ranges."""
    shard = shard_of(nas / "a.tar")
    assert await get(origin, shard) == ramp(SIZE)
    async with origin.read(shard, ByteRange(PIECE_BYTES - 3, SIZE + 100), Pin()) as body:
        assert (body.first, body.length, body.ranged, body.framed) == (PIECE_BYTES - 3, PIECE_BYTES + 8, True, True)
        assert body.version.length == SIZE
        pieces = [chunk async for chunk in body.chunks]
    assert max(map(len, pieces)) == PIECE_BYTES
    assert b"".join(pieces) == ramp(PIECE_BYTES + 8, PIECE_BYTES - 3)


async def test_a_range_past_the_end_tells_the_length(origin: FileOrigin, nas: Path) -> None:
    """416, also for the first byte of an empty file."""
    (nas / "empty").touch()
    for name, length in (("a.tar", SIZE), ("empty", 0)):
        with pytest.raises(RangeNotSatisfiable) as past:
            await get(origin, shard_of(nas / name), ByteRange(length, length))
        assert past.value.length == length
    assert await get(origin, shard_of(nas / "empty")) == b""


async def test_identity_follows_content(origin: FileOrigin, nas: Path) -> None:
    """Inode, size and time of change: replaced or rewritten is another version."""
    shard = shard_of(nas / "a.tar")
    first = await origin.head(shard)
    assert first.identity == (await origin.head(shard)).identity  # its second may have ended since
    os.utime(nas / "a.tar", ns=(1, 1))
    second = await origin.head(shard)
    (nas / "b").write_bytes(b"other")
    os.replace(nas / "b", nas / "a.tar")
    third = await origin.head(shard)
    assert len({version.identity for version in (first, second, third)}) == 3


async def test_a_pin_holds(origin: FileOrigin, nas: Path) -> None:
    """Asked for one version, another is refused."""
    shard = shard_of(nas / "a.tar")
    version = await origin.head(shard)
    assert await get(origin, shard, ByteRange(0, 9), version.pin) == ramp(10)
    os.utime(nas / "a.tar", ns=(1, 1))
    with pytest.raises(ShardChanged):
        await get(origin, shard, ByteRange(0, 9), version.pin)


async def test_a_change_while_reading_is_noticed(origin: FileOrigin, nas: Path) -> None:
    """No piece of a rewritten file follows pieces of the old one."""
    async with origin.read(shard_of(nas / "a.tar"), None, Pin()) as body:
        assert await anext(body.chunks) == ramp(PIECE_BYTES)
        with (nas / "a.tar").open("r+b") as file:
            file.write(b"changed")
        os.utime(nas / "a.tar", ns=(1, 1))
        with pytest.raises(ShardChanged):
            await anext(body.chunks)


async def test_a_replaced_file_is_read_to_its_end(origin: FileOrigin, nas: Path) -> None:
    """Renaming a new file over it leaves the opened one as it was."""
    async with origin.read(shard_of(nas / "a.tar"), None, Pin()) as body:
        (nas / "b").write_bytes(b"other")
        os.replace(nas / "b", nas / "a.tar")
        assert b"".join([chunk async for chunk in body.chunks]) == ramp(SIZE)


async def test_a_root_may_be_a_symlink(nas: Path, tmp_path: Path) -> None:
    """Both its spellings work."""
    (tmp_path / "link").symlink_to(nas)
    origin = FileOrigin([tmp_path / "link"])
    for root in (tmp_path / "link", nas):
        assert await get(origin, shard_of(root / "a.tar"), ByteRange(0, 9)) == ramp(10)
    await origin.aclose()


async def test_absence_is_404(origin: FileOrigin, nas: Path) -> None:
    """Also where a part of the path is a file."""
    for name in ("none.tar", "a.tar/x", "n" * 300):
        with pytest.raises(ShardNotFound):
            await get(origin, shard_of(nas / name))


@pytest.mark.parametrize(
    ("error", "kind"),
    [(PermissionError(13, "x"), ShardForbidden), (OSError(5, "/secret/path"), OriginUnavailable), (OSError(116, "x"), OriginUnavailable)],
)
async def test_errnos_are_mapped(
    origin: FileOrigin, nas: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[ShardError]
) -> None:
    """EACCES is the reader's trouble, EIO and ESTALE the file system's; no foreign path is in the text."""
    refuses(monkeypatch, file_module, error, "_open")
    with pytest.raises(kind) as raised:
        await get(origin, shard_of(nas / "a.tar"))
    assert "secret" not in str(raised.value)


async def test_a_hung_mount_times_out(nas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader gets a 504; the descriptor that comes late is closed."""
    release, opened = threading.Event(), list[Any]()
    real = file_module._open

    def slow(*arguments: object) -> object:
        release.wait(60)
        opened.append(real(*arguments))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr(file_module, "_open", slow)
    origin = FileOrigin([nas], idle_timeout_s=0.05)
    with pytest.raises(OriginTimeout):
        await get(origin, shard_of(nas / "a.tar"))
    release.set()
    async with asyncio.timeout(60):
        while not (opened and _is_closed(opened[0][0])):
            await asyncio.sleep(0.01)
    await origin.aclose()


def _is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


async def test_no_descriptor_is_left(origin: FileOrigin, nas: Path) -> None:
    """Whole, abandoned and refused reads all give their descriptor back."""
    shard = shard_of(nas / "a.tar")
    await get(origin, shard)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with origin.read(shard, None, Pin()) as body:
            await anext(body.chunks)
        with pytest.raises(RangeNotSatisfiable):
            await get(origin, shard, ByteRange(SIZE))
    async with asyncio.timeout(60):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.01)
