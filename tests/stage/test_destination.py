"""destination.py and both kinds of destination: what they promise alike, over a folder, moto and a real RADOS gateway."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from boto3.s3.transfer import TransferConfig

from forebay_proxy.core.errors import ConfigError
from forebay_stage import s3_destination
from forebay_stage.destination import Destination, destination_of
from forebay_stage.errors import DestinationFailed


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    made = tmp_path / "scratch.tar"
    made.write_bytes(random.Random(1).randbytes(100_000))
    return made


def test_a_file_and_small_objects(destination: Destination, shard: Path) -> None:
    """What is put is got, by each way of asking, also from another process's copy; an object replaces the one before."""
    assert list(destination.names()) == []
    destination.put_file("00000.tar", destination_copy(shard))
    assert destination.put_file("00000.tar", shard) == 100_000
    assert destination.put("_stage/done/0.json", b"{}")
    copy: Destination = pickle.loads(pickle.dumps(destination))
    assert (copy.size("00000.tar"), copy.get("00000.tar")) == (100_000, shard.read_bytes())
    assert copy.read("00000.tar", 99_000, 1000) == shard.read_bytes()[99_000:]
    assert (copy.read("00000.tar", 5, 0), copy.get("_stage/done/0.json")) == (b"", b"{}")
    assert sorted(copy.names()) == ["00000.tar", "_stage/done/0.json"]
    assert list(copy.names("_stage/do")) == ["_stage/done/0.json"]


def destination_copy(shard: Path) -> Path:
    """Another file of another length."""
    other = shard.with_name("other.tar")
    other.write_bytes(shard.read_bytes() * 2)
    return other


def test_nothing_there(destination: Destination) -> None:
    """None, and no error; deleting twice is deleting."""
    assert (destination.size("a"), destination.get("a")) == (None, None)
    destination.put("a", b"1")
    destination.delete("a")
    destination.delete("a")
    assert destination.get("a") is None


def test_only_new(destination: Destination) -> None:
    """The first one stays."""
    assert destination.put("spec.json", b"1", only_new=True)
    assert not destination.put("spec.json", b"2", only_new=True)
    assert destination.get("spec.json") == b"1"


def test_no_such_bytes(destination: Destination) -> None:
    """A range that ends too late is an error, and no shorter answer."""
    destination.put("a", b"12345")
    with pytest.raises(DestinationFailed, match="a: it ends 3 bytes before byte 8"):
        destination.read("a", 3, 5)


def test_empty_file(destination: Destination, tmp_path: Path) -> None:
    """A file of no bytes is stored and read back too."""
    (tmp_path / "empty").touch()
    assert destination.put_file("a", tmp_path / "empty") == 0


def test_in_parts(destination: Destination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that goes up in three parts is one object."""
    monkeypatch.setattr(s3_destination, "_PARTS", TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20))
    data = random.Random(2).randbytes(11_000_000)
    (tmp_path / "large").write_bytes(data)
    assert destination.put_file("00000.tar", tmp_path / "large") == 11_000_000
    assert destination.read("00000.tar", 9_000_000, 2_000_000) == data[9_000_000:]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/out", "/data/out"),
        ("file:///data/o%20ut/", "/data/o ut/"),
        ("s3://bucket/out/", "s3://bucket/out"),
        ("s3://bucket/a/b?region=eu-west-1&profile=me&endpoint=https://store.example", "s3://bucket/a/b"),
    ],
)
def test_places(text: str, shown: str) -> None:
    """A place is shown without its options."""
    assert str(destination_of(text)) == shown.rstrip("/")


@pytest.mark.parametrize(
    "text",
    ["", "s3://bucket", "s3://", "s3://b/p?unsigned=1", "s3://b/p?colour=red", "https://host/x", "hf://datasets/a/b", "file://host/a"],
)
def test_no_destination(text: str) -> None:
    """Refused before anything is asked, with what would be right."""
    with pytest.raises(ConfigError) as refused:
        destination_of(text)
    assert refused.value.step
