"""shard_writer.py: bytes that depend on the samples alone, an index that agrees with the tar, and samples that no reader would get back."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import xxhash
from support.indexes import indexed

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.tar.sample_index import decode, encode
from forebay_stage.errors import SampleFailed, StageError
from forebay_stage.shard_writer import ShardWriter, Written

SAMPLES: list[dict[str, Any]] = [
    {"__key__": "a/b", "__url__": "s3://b/0.tar", "jpg": bytes(513), "cls": b"7"},
    {"__key__": "é" * 80, "__url__": "s3://b/0.tar", "seg.png": b""},  # too long for one header
    {"__key__": "\udcff", "__url__": "s3://b/1.tar", "JPG": b"x"},
]


def written(path: Path, samples: list[dict[str, Any]] = SAMPLES, zstd_level: int | None = None) -> Written:
    with ShardWriter(path, zstd_level) as writer:
        for sample in samples:
            writer.add(sample)
    return writer.finished()


def test_bytes_of_tarfile(tmp_path: Path) -> None:
    """The tar is the one that tarfile writes, with no time and no owner; size and checksum are the file's."""
    found = written(tmp_path / "a.tar")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for sample in SAMPLES:
            for field, data in sample.items():
                if field not in ("__key__", "__url__"):
                    member = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                    member.size, member.mode = len(data), 0o444
                    tar.addfile(member, io.BytesIO(data))
    assert (tmp_path / "a.tar").read_bytes() == made.getvalue()
    assert (found.bytes, found.samples, found.xxh128) == (len(made.getvalue()), 3, xxhash.xxh3_128_hexdigest(made.getvalue()))


def test_index_is_that_of_the_tar(tmp_path: Path) -> None:
    """Byte for byte what the sidecar makes of the same shard."""
    assert written(tmp_path / "a.tar").index == encode(indexed((tmp_path / "a.tar").read_bytes()))


def test_samples_come_back(tmp_path: Path) -> None:
    """The index finds each field of each sample in the tar."""
    index = decode(written(tmp_path / "a.tar").index)
    tar = (tmp_path / "a.tar").read_bytes()
    found = [{"__key__": key, **{file.suffix: tar[file.offset : file.offset + file.size] for file in files}} for key, files in index]
    assert found == [{name.lower(): data for name, data in sample.items() if name != "__url__"} for sample in SAMPLES]


def test_empty_shard(tmp_path: Path) -> None:
    """No samples make a tar that readers find empty."""
    found = written(tmp_path / "a.tar", [])
    assert (found.samples, len(indexed((tmp_path / "a.tar").read_bytes()))) == (0, 0)
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == []


def test_key_twice(tmp_path: Path) -> None:
    """The error names the key and both sources."""
    with pytest.raises(StageError, match=r"sample a/b, from s3://b/2\.tar: .*from s3://b/0\.tar"):
        written(tmp_path / "a.tar", [SAMPLES[0], {"__key__": "a/b", "__url__": "s3://b/2.tar", "txt": b""}])


@pytest.mark.parametrize(
    ("sample", "cause"),
    [
        ({"jpg": b""}, "__key__ is NoneType"),
        ({"__key__": "a"}, "no fields"),
        ({"__key__": "", "jpg": b""}, "would not find"),
        ({"__key__": "a.b", "jpg": b""}, "would not find"),
        ({"__key__": "a", "b/c": b""}, "would not find"),
        ({"__key__": "a\0b", "jpg": b""}, "would not find"),
        ({"__key__": "._a", "jpg": b""}, "would not find"),
        ({"__key__": "a", "__BAD__": b""}, "would not find"),
        ({"__key__": "a", "jpg": b"", "JPG": b""}, "ignores capitals"),
        ({"__key__": "a", "jpg": "text"}, "is str, not bytes"),
        ({"__key__": "a", 7: b""}, "not text"),
    ],
)
def test_no_reader_would_get_it_back(tmp_path: Path, sample: dict[Any, Any], cause: str) -> None:
    """The sample fails by itself: nothing of it is in the shard, which goes on."""
    with ShardWriter(tmp_path / "a.tar") as writer:
        writer.add(SAMPLES[0])
        with pytest.raises(SampleFailed, match=cause):
            writer.add(sample)
        writer.add(SAMPLES[1])
    writer.finished()
    written(tmp_path / "b.tar", SAMPLES[:2])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_full_scratch_disk() -> None:
    """Both at a write and at the end, the error says what to do."""
    with pytest.raises(StageError, match="No space left on device") as small, ShardWriter(Path("/dev/full")) as writer:
        writer.add(SAMPLES[0])
    with pytest.raises(StageError, match="No space left on device"), ShardWriter(Path("/dev/full")) as writer:
        writer.add({"__key__": "a", "jpg": bytes(3_000_000)})
    assert "make room" in small.value.step


def test_memory_does_not_grow_with_the_shard(tmp_path: Path) -> None:
    """A hundred samples of 200 KB take less than a megabyte beyond the file's own buffer."""
    data = bytes(200_000)
    with ShardWriter(tmp_path / "a.tar") as writer:
        tracemalloc.start()
        for number in range(100):
            writer.add({"__key__": f"{number}", "__url__": "u", "jpg": data})
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 1_000_000


def test_zstd(tmp_path: Path) -> None:
    """The tar inside is the same; a compressed shard has no index."""
    zstd: Any = pytest.importorskip("backports.zstd")
    found = written(tmp_path / "a.tar.zst", zstd_level=3)
    written(tmp_path / "a.tar")
    packed = (tmp_path / "a.tar.zst").read_bytes()
    assert zstd.decompress(packed) == (tmp_path / "a.tar").read_bytes()
    assert (found.bytes, found.xxh128, found.index) == (len(packed), xxhash.xxh3_128_hexdigest(packed), b"")


def test_no_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without it is told what to install."""
    monkeypatch.setattr("forebay_stage.shard_writer._ZSTD_MODULES", ("no_such_module",))
    with pytest.raises(ConfigError, match="--zstd") as told:
        ShardWriter(tmp_path / "a.tar.zst", 3)
    assert "backports.zstd" in told.value.step
