"""The fsspec file system: names, versions, what is asked of the sidecar, and what becomes of its troubles."""

from __future__ import annotations

import json
from dataclasses import replace

import fsspec
import pytest
from support.fake_proxy import Cut, FakeServer, Refuse, ramp

from forebay_loader.base.errors import ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.files.file_system import ForebayFileSystem
from forebay_proxy.wire.urls.shard_url import proxy_url

DATA = ramp(3_000_000)
URL = "https://h/dir/a%20b.tar"
TARGET = "/https/h/dir/a%20b.tar"
HASTY = replace(DEFAULT_LIMITS, resume_s=0.3, open_s=0.3, patience_s=5.0)


@pytest.fixture
def shard(proxy: FakeServer) -> FakeServer:
    proxy.put(TARGET, DATA, headers={"Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT"})
    return proxy


def spans(server: FakeServer) -> list[tuple[str, str]]:
    return [(request.method, request.headers.get("Range", "")) for request in server.asked(TARGET)]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (URL, f"forebay:/{TARGET}"),
        (f"forebay::{URL}", f"forebay:/{TARGET}"),
        (f"forebay:/{TARGET}", f"forebay:/{TARGET}"),
        (TARGET[1:], f"forebay:/{TARGET}"),
        ("s3://b/a b.tar", "forebay://s3/b/a%20b.tar"),
        ("hf://datasets/org/name@v1/a.tar", "forebay://hf/datasets/org/name@v1/a.tar"),
        ("forebay://", ""),
    ],
)
def test_a_file_has_one_name(written: str, name: str) -> None:
    """However it is written; the name is the sidecar's path, and stays itself."""
    found = ForebayFileSystem._strip_protocol(written)
    assert found == name
    assert ForebayFileSystem._strip_protocol(found) == found


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


def test_what_is_told_is_announced_and_opened_under_that_name(shard: FakeServer) -> None:
    """In order, to one reader's plan; it is withdrawn when all of it was read."""
    urls = [f"https://h/{number}.tar" for number in range(3)]
    for url in urls:
        shard.put(proxy_url("", ForebayFileSystem()._source(url)[1].url), DATA[:1000])
    fs = fsspec.filesystem("forebay")
    assert list(fs.cat(urls).values()) == [DATA[:1000]] * 3
    put, *rest = shard.plans
    assert put.method == "PUT"
    assert json.loads(put.body)["shards"] == urls
    reader = put.target.removeprefix("/v1/plans/").partition("?")[0]
    assert {request.headers["Forebay-Reader"] for request in shard.requests if request.method == "GET"} == {reader}
    assert [request.method for request in rest] == ["DELETE"]


def test_options_of_the_target_count() -> None:
    """Headers of http, a hub's token, an endpoint of s3; keys of s3 do not travel."""

    def source(url: str, **options: object) -> tuple[str, tuple[tuple[str, str], ...]]:
        found = ForebayFileSystem(target_protocol=url.partition(":")[0], target_options=options)._source(url)[1]
        return found.url.text(), found.headers

    assert source(URL, headers={"Authorization": "a"}) == (URL, (("Authorization", "a"),))
    assert source(URL, client_kwargs={"headers": {"X-Key": "k"}}) == (URL, (("X-Key", "k"),))
    assert source("hf://datasets/o/n/a.tar", token="t")[1] == (("Authorization", "Bearer t"),)
    url, headers = source("s3://b/k.tar", key="AKIA", secret="hush", anon=True, endpoint_url="http://gw:9000")
    assert (url, headers) == ("s3://b/k.tar?endpoint=http://gw:9000&unsigned=1", ())


def test_a_lost_sidecar_is_followed_by_the_store_for_the_same_version_only(
    shard: FakeServer, origin: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """In the middle of a file: the same ETag and length, or it ends with an error. Later openings go to the store, with one warning."""
    url = f"{origin.url}/a.tar"
    target = ForebayFileSystem._strip_protocol(url).removeprefix("forebay:/")
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
