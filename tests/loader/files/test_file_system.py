"""The fsspec file system: how it is found, what it says is there, and the errors of files."""

from __future__ import annotations

from dataclasses import replace

import fsspec
import pytest
from support.fake_proxy import Cut, FakeServer, Refuse, ramp

from forebay_loader.base.errors import ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.files.file_system import ForebayFileSystem
from forebay_loader.files.target import file_name

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


def spans(server: FakeServer) -> list[tuple[str, str]]:
    return [(request.method, request.headers.get("Range", "")) for request in server.asked(TARGET)]


def test_reading_in_order_is_one_stream_of_one_version(shard: FakeServer) -> None:
    """However small the pieces: the sidecar can fetch ahead of it."""
    with fsspec.filesystem("forebay").open(URL, block_size=100_000) as file:
        assert b"".join(iter(lambda: file.read(7_000), b"")) == DATA
    (head, _), (get, span) = spans(shard)
    assert (head, get, span) == ("HEAD", "GET", f"bytes=0-{len(DATA) - 1}")
    assert shard.asked(TARGET)[1].headers["If-Match"] == shard.shown[TARGET].etag


def test_seeking_asks_for_what_is_read(shard: FakeServer) -> None:
    """A table's end, then some of its middle: ranges of a block, no stream to the end."""
    with fsspec.filesystem("forebay").open(URL, block_size=1000) as file:
        file.seek(-500, 2)
        assert file.read() == DATA[-500:]
        file.seek(1_000_000)
        assert file.read(10) == DATA[1_000_000:1_000_010]
    assert [span for _, span in spans(shard)[1:]] == [f"bytes={len(DATA) - 500}-{len(DATA) - 1}", "bytes=1000000-1001009"]


def test_a_broken_stream_goes_on_where_it_broke(shard: FakeServer) -> None:
    """And what was cut is asked for again, of the same version."""
    shard.fault(TARGET, Cut(after=1_234_567), Cut(after=10))
    with fsspec.open(f"forebay::{URL}", "rb") as file:
        assert file.read() == DATA
    assert all(request.headers.get("If-Match") for request in shard.asked(TARGET)[1:])


def test_another_version_is_an_error_and_no_mixture(shard: FakeServer) -> None:
    """The bytes that came are of the version that was opened."""
    with fsspec.filesystem("forebay").open(URL, block_size=1000) as file:
        assert file.read(500) == DATA[:500]
        shard.put(TARGET, ramp(3_000_000, 2))
        file.seek(2_000_000)
        with pytest.raises(ShardChanged):
            file.read(10)


def test_a_lost_sidecar_is_followed_by_the_store_for_the_same_version_only(
    shard: FakeServer, origin: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a file: the same ETag and length, or it ends with an error. Later openings go to the store, with one warning."""
    url = f"{origin.url}/a.tar"
    target = file_name(url).removeprefix("forebay:/")
    for server, path in ((shard, target), (origin, "/a.tar")):
        server.put(path, DATA)
    fs = ForebayFileSystem(target_protocol="http", limits=HASTY)
    with fs.open(url, block_size=1000) as same, fs.open(url, block_size=1000) as other:
        assert (same.read(10), other.read(10)) == (DATA[:10], DATA[:10])
        shard.stop()
        same.seek(2_000_000)
        assert same.read(100) == DATA[2_000_000:2_000_100]
        origin.put("/a.tar", ramp(3_000_000, 2))
        other.seek(2_000_000)
        with pytest.raises(ProxyUnreachable):
            other.read(100)
    assert fs.cat_file(url, 0, 100) == ramp(3_000_000, 2)[:100]
    assert len([record for record in caplog.records if "past Forebay" in record.message]) == 1
