"""The demo's shards: real photographs in well-formed tars."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from demo import shards


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> shards.Built:
    try:
        shards.photographs()
    except shards.NoPhotographs as missing:
        pytest.skip(str(missing))
    return shards.build(tmp_path_factory.mktemp("shards"), 2, 1_000_000)


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member))}


def test_every_sample_has_a_picture_and_a_class(built: shards.Built) -> None:
    """A sample is a JPEG and the number of its class."""
    for name in built.names:
        files = members(built.directory / name)
        assert {Path(file).suffix for file in files} == {".jpg", ".cls"}
        for file, data in files.items():
            if file.endswith(".jpg"):
                Image.open(io.BytesIO(data)).load()
            else:
                assert 0 <= int(data) < 10


def test_counts_are_true(built: shards.Built) -> None:
    """The samples and bytes that are announced are there."""
    assert built.samples == sum(len(shards.sample_names(built.directory / name)) for name in built.names)
    assert built.bytes == sum((built.directory / name).stat().st_size for name in built.names)
    assert all((built.directory / name).stat().st_size >= 1_000_000 for name in built.names)


def test_cut_at_a_boundary_reads_as_a_shorter_shard(built: shards.Built, tmp_path: Path) -> None:
    """A body cut at ``member_boundary`` opens without an error and holds exactly the samples before it."""
    source = built.directory / built.names[0]
    offset, before = shards.member_boundary(source, 0.5)
    (tmp_path / "short.tar").write_bytes(source.read_bytes()[:offset])
    assert shards.sample_names(tmp_path / "short.tar") == shards.sample_names(source)[:before]
