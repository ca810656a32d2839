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
from typing import NamedTuple

import pytest
from support import nginx as servers
from support.readers import make_shard
from support.sidecar import Sidecar, running

pytestmark = [pytest.mark.needs("nginx", "wget", "curl")]

SIZE = 300_001
WRITTEN = 1_700_000_000
DATE, BEFORE, AFTER = "Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:19 GMT", "Wed, 15 Nov 2023 00:00:00 GMT"


CONDITIONS: list[tuple[dict[str, str], int]] = [
    ({"If_Modified_Since": DATE}, 304),
    ({"If_Modified_Since": AFTER}, 304),
    ({"If_Modified_Since": "Tuesday, 14-Nov-23 22:13:20 GMT"}, 304),
    ({"If_Modified_Since": "Tue Nov 14 22:13:20 2023"}, 304),
    ({"If_Modified_Since": BEFORE}, 200),
    ({"If_Modified_Since": "soon"}, 200),
    ({"If_Modified_Since": DATE, "If_None_Match": '"another"'}, 200),
    ({"If_Unmodified_Since": BEFORE}, 412),
    ({"If_Unmodified_Since": DATE}, 200),
    ({"If_Range": DATE, "Range": "bytes=5-9"}, 206),
    ({"If_Range": BEFORE, "Range": "bytes=5-9"}, 200),
    ({"If_Range": AFTER, "Range": "bytes=5-9"}, 200),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Old shards: a.tar, copied.tar, and one for each condition, so that each is asked of a shard that nobody has asked for."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("a", "copied", *map(str, range(len(CONDITIONS)))):
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


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def conditional(sidecar: Sidecar, url: str, **headers: str) -> Reply:
    with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=120)) as connection:
        path = sidecar.proxied(url).removeprefix(sidecar.url)
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


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


@pytest.mark.parametrize("name", ["plain", "dated"])
@pytest.mark.parametrize("number", range(len(CONDITIONS)), ids=[str(headers) for headers, _ in CONDITIONS])
def test_conditions_by_date(files: Path, origin: servers.Nginx, lasting: Sidecar, name: str, number: int) -> None:
    """RFC 9110, 13.1.3 to 13.1.5 and 13.2.2, for an origin with a strong ETag as for one that gives nothing but a date."""
    headers, status = CONDITIONS[number]
    data = (files / f"{number}.tar").read_bytes()
    reply = conditional(lasting, origin.url(f"{number}.tar", name), **headers)
    assert reply.status == status
    if status != 412:
        assert reply.headers["last-modified"] == DATE
        assert reply.body == {200: data, 206: data[5:10], 304: b""}[status]


def test_a_date_outlives_a_restart_and_is_learnt_by_an_old_row(place: Path, origin: servers.Nginx) -> None:
    """The row keeps it; a row of an earlier sidecar has none, and is good all the same: the next comparison brings it."""
    with running(place, "--cache-size", "100MB", allow=[origin.base()]) as sidecar:
        assert conditional(sidecar, origin.url("a.tar")).headers["last-modified"] == DATE
        sidecar.wait_complete(1)
    (index,) = [path for path in place.joinpath("cache").rglob("*.db") if b"SQLite" in path.read_bytes()[:16]]
    with sqlite3.connect(index) as database:
        rows = [(rowid, json.loads(text)) for rowid, text in database.execute("SELECT rowid, value FROM Cache")]
        assert [row["modified"] for _, row in rows] == [[DATE, True]]
        for rowid, row in rows:
            del row["modified"]
            database.execute("UPDATE Cache SET value = ? WHERE rowid = ?", (json.dumps(row), rowid))
    database.close()
    for name, asked in (("never", None), ("job", DATE)):
        with running(place, "--cache-size", "100MB", "--revalidate", name, allow=[origin.base()]) as sidecar:
            reply = conditional(sidecar, origin.url("a.tar"))
            assert (reply.headers["cache-status"], reply.headers.get("last-modified")) == ("forebay; hit", asked)
    with running(place, "--cache-size", "100MB", "--revalidate", "never", allow=[origin.base()]) as sidecar:
        assert conditional(sidecar, origin.url("a.tar"), If_Modified_Since=DATE).status == 304
    assert sum(served.sent for served in origin.log() if (served.method, served.path) == ("GET", "/a.tar")) == SIZE
