"""Compressed shards, beyond what ``tarfile`` reads of them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import types
from collections.abc import Callable
from typing import Any

import pytest
from support.indexes import samples_of
from support.tarmaking import written

from forebay_loader.samples.decompress import Unpacking
from forebay_loader.samples.tar import TarFault

CONTENT = written([(f"{n}.x", os.urandom(50_000)) for n in range(8)])
FRAME = b"\x28\xb5\x2f\xfd"
PACKS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read(content: bytes, **options: Any) -> list[Any]:
    return list(samples_of([{"url": "u", "stream": io.BytesIO(content)}], **options))


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_what_follows_the_first_compressed_stream_is_read_too(pack: Callable[[bytes], bytes]) -> None:
    """Joined streams, as pigz, bgzip and ``cat`` write them, with padding between; webdataset loses all but the first."""
    assert read(pack(CONTENT[:100_000]) + bytes(20) + pack(CONTENT[100_000:])) == read(CONTENT)


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_a_cut_compressed_shard_is_an_error(pack: Callable[[bytes], bytes]) -> None:
    """Also one whose tar is whole and whose checksum is missing, and under either rule."""
    for cut in (1000, 4):
        with pytest.raises(tarfile.ReadError, match="unexpected end of data"):
            read(pack(CONTENT)[:-cut], on_tar_fault="warn")


def test_a_damaged_gzip_is_an_error() -> None:
    """Its checksum is compared, which ``tarfile`` does not do for streams."""
    packed = bytearray(gzip.compress(CONTENT, 0))
    packed[len(packed) // 2] ^= 1
    with pytest.raises(tarfile.ReadError, match="invalid compressed data"):
        read(bytes(packed))


def test_data_behind_the_compressed_stream_is_data_after_the_end() -> None:
    """The same knob as for a bare tar."""
    with pytest.raises(TarFault, match="data that is not gz after the compressed stream"):
        read(gzip.compress(CONTENT) + b"garbage, and more of it")
    assert read(gzip.compress(CONTENT) + b"garbage, and more of it", on_tar_fault="warn") == read(CONTENT)


def test_zstd_without_a_module_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear error where this Python cannot read it."""
    for name in ("compression.zstd", "backports.zstd", "zstandard", "pyzstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(tarfile.CompressionError, match="install `zstandard`"):
        read(b"\x28\xb5\x2f\xfd" + bytes(100))


def test_zstd_by_whichever_module_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14's own, its backport and pyzstd share one interface; zstandard has its own."""

    class Fake:
        """Takes four bytes of magic off and 0xff for the end."""

        eof, unused_data = False, b""

        def decompressobj(self) -> Fake:
            return self

        def decompress(self, data: bytes) -> bytes:
            self.eof = data.endswith(b"\xff")
            return data.replace(b"\x28\xb5\x2f\xfd", b"").removesuffix(b"\xff")

    plain = written([("a.x", b"1")])
    for name in ("compression.zstd", "backports.zstd", "zstandard", "pyzstd"):
        with monkeypatch.context() as patch:
            for other in ("compression.zstd", "backports.zstd", "zstandard", "pyzstd"):
                patch.setitem(sys.modules, other, None)
            module = types.ModuleType(name)
            module.ZstdDecompressor = Fake  # type: ignore[attr-defined]
            patch.setitem(sys.modules, name, module)
            assert read(b"\x28\xb5\x2f\xfd" + plain + b"\xff") == read(plain)


def test_zstd_frames_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """pzstd puts a skippable frame before each frame, seekable files end in one: they are zstd, too."""

    class Frames:
        """A frame is its magic, its length in four bytes and its content; that of a skippable one is no data."""

        def __init__(self) -> None:
            self.eof, self.unused_data, self._seen = False, b"", b""

        def decompress(self, data: bytes) -> bytes:
            self._seen += data
            end = 8 + int.from_bytes(self._seen[4:8], "little")
            if len(self._seen) < end:
                return b""
            self.eof, self.unused_data = True, self._seen[end:]
            return self._seen[8:end] if self._seen.startswith(FRAME) else b""

    module = types.ModuleType("compression.zstd")
    module.ZstdDecompressor = Frames  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "compression.zstd", module)
    skipped = b"\x5e\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"1234"
    parts = [FRAME + len(part).to_bytes(4, "little") + part for part in (CONTENT[:100_000], CONTENT[100_000:])]
    assert read(skipped + parts[0] + skipped + parts[1] + skipped) == read(CONTENT)


@pytest.mark.parametrize("kind", ["bz2", "xz"])
def test_a_part_that_holds_very_much_comes_in_pieces(kind: str) -> None:
    """A worker's memory is not a shard's to fill: a few KiB may hold all of it."""
    content = bytes(40 << 20)
    packed = io.BytesIO(PACKS[kind](content))
    unpacking, sizes = Unpacking(packed.read, kind), []
    while part := unpacking(1):
        sizes.append(len(part))
    assert sum(sizes) == len(content)
    assert max(sizes) <= 4 << 20
