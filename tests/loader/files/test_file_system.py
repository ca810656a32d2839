"""The fsspec file system: how it is found, what it says is there, and the errors of files."""

from __future__ import annotations

from dataclasses import replace

import fsspec
import pytest
from support.fake_proxy import FakeServer, Refuse, ramp

from forebay_loader.base.errors import ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.files.file_system import ForebayFileSystem

DATA = ramp(3_000_000)
URL = "https://h/dir/a%20b.tar"
TARGET = "/https/h/dir/a%20b.tar"
HASTY = replace(DEFAULT_LIMITS, resume_s=0.3, open_s=0.3, patience_s=5.0)


@pytest.fixture
def shard(proxy: FakeServer) -> FakeServer:
    proxy.put(TARGET, DATA, headers={"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"})
    return proxy


def test_it_is_registered() -> None:
    """fsspec finds it by the entry point, chained and by its own scheme."""
    assert isinstance(fsspec.filesystem("forebay"), ForebayFileSystem)
    fs, path = fsspec.url_to_fs(f"forebay::{URL}")
    assert isinstance(fs, ForebayFileSystem)
    assert (fs.target_protocol, path) == ("https", URL)


def test_an_older_chaining_names_the_file_otherwise(shard: FakeServer) -> None:
    """Without a path, and with ``fo``: before fsspec 2025.9."""
    fs = ForebayFileSystem(target_protocol="https", target_options={}, fo=URL)
    with fs.open("") as file:
        assert file.read() == DATA


@pytest.mark.parametrize(
    ("status", "kind"), [(404, FileNotFoundError), (403, PermissionError), (401, PermissionError), (400, ShardReadError)]
)
def test_refusals_are_the_errors_of_files(proxy: FakeServer, status: int, kind: type[Exception]) -> None:
    """With the sidecar's own words."""
    proxy.put(TARGET, DATA)
    fs = fsspec.filesystem("forebay")
    proxy.fault(TARGET, Refuse(status, "the reason"))
    if status == 404:
        del proxy.shown[TARGET]
        with pytest.raises(kind):
            fs.open(URL)
        assert not fs.exists(URL)
        return
    with pytest.raises(kind, match="the reason"):
        fs.cat_file(URL)


def test_what_is_there(shard: FakeServer) -> None:
    """Size, ETag and date, as an origin has them; nothing is a folder."""
    fs = fsspec.filesystem("forebay")
    info = fs.info(URL)
    assert (info["name"], info["size"], info["type"], info["ETag"]) == (f"forebay:/{TARGET}", len(DATA), "file", shard.shown[TARGET].etag)
    assert (fs.modified(URL).isoformat(), info["mtime"]) == ("2023-11-14T22:13:20+00:00", 1_700_000_000)
    assert (fs.exists(URL), fs.isfile(URL), fs.isdir(URL), fs.glob(URL)) == (True, True, False, [f"forebay:/{TARGET}"])
    shard.put(TARGET, DATA)
    with pytest.raises(NotImplementedError):
        fs.modified(URL)
    for mode in ("wb", "ab", "r+b"):
        with pytest.raises(NotImplementedError):
            fs.open(URL, mode)


@pytest.mark.parametrize(
    ("start", "end"), [(None, None), (5, 10), (-10, None), (None, -10), (10, 5), (2_999_999, 4_000_000), (4_000_000, None)]
)
def test_a_piece_is_a_slice(shard: FakeServer, start: int | None, end: int | None) -> None:
    """As Python has it."""
    assert fsspec.filesystem("forebay").cat_file(URL, start, end) == DATA[start:end]
