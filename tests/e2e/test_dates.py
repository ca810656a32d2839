"""Dates of shards, as the programs use them that keep copies by date: real nginx, real wget and curl."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support import nginx as servers
from support.readers import make_shard
from support.sidecar import Sidecar, running

pytestmark = [pytest.mark.needs("nginx", "wget", "curl")]

SIZE = 300_001
WRITTEN = 1_700_000_000
DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Old shards."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("a", "copied"):
        os.utime(make_shard(folder / f"{name}.tar", SIZE, 1), (WRITTEN, WRITTEN))
    return folder


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[servers.Nginx]:
    """An nginx that serves them with a strong ETag and a date; ``dated`` gives no tag at all."""
    with servers.nginx(tmp_path_factory.mktemp("nginx") / "work", files, plain="", dated="etag off;") as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, origin: servers.Nginx) -> Iterator[Sidecar]:
    allow = [origin.base(name) for name in ("plain", "dated")]
    with running(tmp_path_factory.mktemp("lasting"), "--cache-size", "100MB", allow=allow) as sidecar:
        yield sidecar


def asked(sidecar: Sidecar, url: str, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and header of a GET."""
    with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=120)) as connection:
        connection.request("GET", sidecar.proxied(url).removeprefix(sidecar.url), headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}


@pytest.mark.parametrize("name", ["plain", "dated"])
def test_a_copy_by_date_is_not_fetched_again(tmp_path: Path, files: Path, origin: servers.Nginx, lasting: Sidecar, name: str) -> None:
    """wget -N: the file has the origin's time, and the second time nothing is sent; curl -z: the same."""
    url = lasting.proxied(origin.url("copied.tar", name))

    def wget() -> str:
        done = subprocess.run(["wget", "-N", "--no-proxy", url], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stderr

    assert "200 OK" in wget()
    copy = tmp_path / "copied.tar"
    assert (copy.read_bytes(), copy.stat().st_mtime) == ((files / "copied.tar").read_bytes(), WRITTEN)
    sent = lasting.status()["bytes"]["sent"]
    assert "304 Not Modified" in wget()
    said = ["curl", "-s", "--noproxy", "*", "-o", str(tmp_path / "again"), "-w", "%{http_code} %{size_download}", "-z", str(copy), url]
    assert subprocess.run(said, capture_output=True, text=True, check=True).stdout == "304 0"
    assert lasting.status()["bytes"]["sent"] == sent


def test_a_date_outlives_a_restart_and_is_learnt_by_an_old_row(place: Path, origin: servers.Nginx) -> None:
    """The row keeps it; a row of an earlier sidecar has none, and is good all the same: the next comparison brings it."""
    with running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar:
        assert asked(sidecar, origin.url("a.tar"))[1]["last-modified"] == DATE
        sidecar.wait_complete(1)
    (index,) = [path for path in place.joinpath("cache").rglob("*.db") if b"SQLite" in path.read_bytes()[:16]]
    with sqlite3.connect(index) as database:
        rows = [(rowid, json.loads(text)) for rowid, text in database.execute("SELECT rowid, value FROM Cache")]
        assert [row["modified"] for _, row in rows] == [[DATE, True]]
        for rowid, row in rows:
            del row["modified"]
            database.execute("UPDATE Cache SET value = ? WHERE rowid = ?", (json.dumps(row), rowid))
    database.close()
    for name, modified in (("never", None), ("job", DATE)):
        with running(place, "--cache-size", "100MB", "--revalidate", name, allow=[origin.base()]) as sidecar:
            headers = asked(sidecar, origin.url("a.tar"))[1]
            assert (headers["cache-status"], headers.get("last-modified")) == ("forebay; hit", modified)
    with running(place, "--cache-size", "100MB", "--revalidate", "never", allow=[origin.base()]) as sidecar:
        assert asked(sidecar, origin.url("a.tar"), **{"If-Modified-Since": DATE})[0] == 304
    assert sum(served.sent for served in origin.log() if (served.method, served.path) == ("GET", "/a.tar")) == SIZE
