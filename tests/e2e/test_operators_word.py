"""What changes the sidecar's own rules while it runs: ``POST /v1/sets/remove``, ``POST /v1/allow``; whole or not at all."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import urllib.error
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from support.raw import line
from support.readers import put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, forebay, running, small_segments, wait_until

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.index.row import decode

SEGMENT = 1 << 16
COUNT = 8


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SEGMENT)


def patterns(origin: ScriptedOrigin) -> list[str]:
    """Four sets of two shards."""
    return [origin.url(f"/{{{first:02d}..{first + 1:02d}}}.tar") for first in range(0, COUNT, 2)]


def declared(sidecar: Sidecar) -> dict[str, Any]:
    return {each["set"]: each for each in sidecar.status()["sets"]}


async def filled(sidecar: Sidecar, sets: list[str]) -> None:
    """Until these are declared, no other, and both shards of each are here."""

    def are_here() -> bool:
        return {name: (each["shards"], each["complete"]) for name, each in declared(sidecar).items()} == dict.fromkeys(sets, (2, 2))

    await asyncio.to_thread(wait_until, are_here)


def claimed(sidecar: Sidecar) -> int:
    """How many shards have all their segments in the index."""
    layout = SegmentLayout(SEGMENT)
    with closing(sqlite3.connect(f"file:{sidecar.cache_dir / 'index' / 'cache.db'}?mode=ro", uri=True)) as index:
        try:
            rows = [decode(key, text, layout) for key, text in index.execute("SELECT key, value FROM Cache")]
        except sqlite3.OperationalError:  # it has no table yet
            return 0
    return sum(row.sums.count_within(0, count) == count for row in rows if (count := layout.count(row.version.length or 0)))


def post(sidecar: Sidecar, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """The status, and the problem."""
    try:
        return (204, {}) if sidecar.ask(path, body, "POST") == b"" else (200, {})
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def raw(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


async def left_inside(sidecar: Sidecar, request: bytes) -> None:
    """A client that leaves at each of several bytes of its request, the last one of them missing at the latest."""
    body = len(request.partition(b"\r\n\r\n")[2])
    for sent in (1, len(request) - body, len(request) - body + 1, len(request) - 1):
        async with line(sidecar.port) as client:
            await client.send(request[:sent])


async def test_a_set_is_removed_whole_or_not_at_all(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """204 and it is kept filled no longer; 404 and 400 change nothing, nor does who leaves before the whole request has come."""
    sets = patterns(origin)
    flags = [text for name in sets for text in ("--set", name)]
    with running(tmp_path, "--cache-size", "64MB", *flags, allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        await filled(sidecar, sets)

        code, problem = await asyncio.to_thread(post, sidecar, "/v1/sets/remove", json.dumps({"set": "s3://other/{0..1}.tar"}).encode())
        assert (code, problem["next_step"]) == (404, "'forebay status' lists them")
        for bad in (b"", b"{", b"[]", b'{"set": ""}', b'{"set": 7}', json.dumps({"set": sets[0], "all": True}).encode()):
            code, _ = await asyncio.to_thread(post, sidecar, "/v1/sets/remove", bad)
            assert code == 400, bad
        request = raw("/v1/sets/remove", json.dumps({"set": sets[0]}).encode())
        await left_inside(sidecar, request)
        assert set(declared(sidecar)) == set(sets)

        async with line(sidecar.port) as client:  # all of it was said, and nobody listens to the answer: heard, or not
            await client.send(request)
        assert set(declared(sidecar)) in (set(sets), set(sets[1:]))
        code, _ = await asyncio.to_thread(post, sidecar, "/v1/sets/remove", json.dumps({"set": sets[0]}).encode())
        assert (code in (204, 404), set(declared(sidecar))) == (True, set(sets[1:]))
        ended = await asyncio.to_thread(forebay, tmp_path, "evict", sets[1], "--url", sidecar.url)
        assert (ended.returncode, f"the set {sets[1]} is kept filled no longer" in ended.stdout) == (0, True)
        assert await asyncio.to_thread(post, sidecar, "/v1/sets/remove", json.dumps({"set": sets[2]}).encode()) == (204, {})
        assert (await asyncio.to_thread(post, sidecar, "/v1/sets/remove", json.dumps({"set": sets[2]}).encode()))[0] == 404
        await filled(sidecar, sets[3:])

        await asyncio.to_thread(sidecar.ask, "/v1/evict", b'{"all": true}', "POST")
        for file in files:  # who has a reader comes again where it is declared, and nowhere else
            if file.name in ("06.tar", "00.tar"):
                assert (await asyncio.to_thread(read, sidecar.proxied(origin.url(f"/{file.name}")), file)).whole
        await filled(sidecar, sets[3:])
        assert set(await asyncio.to_thread(sidecar.shards)) == {origin.url(f"/{name}.tar") for name in ("00", "06", "07")}


@pytest.mark.parametrize("removed", [0, 2])
async def test_a_sidecar_killed_while_sets_are_removed(tmp_path: Path, origin: ScriptedOrigin, files: list[Path], removed: int) -> None:
    """After so many of four: started again, each set is there with all its shards, or gone; what is here of it is served as it was."""
    sets = patterns(origin)
    flags = [text for name in sets[:2] for text in ("--set", name)]
    with running(tmp_path, "--cache-size", "64MB", *flags, allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        for name in sets[2:]:  # declared by a person, for as long as the sidecar runs
            assert (await asyncio.to_thread(forebay, tmp_path, "warm", name, "--url", sidecar.url, "--quiet")).returncode == 0
        await filled(sidecar, sets)
        await asyncio.to_thread(wait_until, lambda: claimed(sidecar) == COUNT)  # what is not yet, the kill takes along
        codes: list[int] = []

        def remove() -> None:
            with suppress(OSError, HTTPException):  # it is killed
                for name in sets:
                    codes.append(post(sidecar, "/v1/sets/remove", json.dumps({"set": name}).encode())[0])

        removing = threading.Thread(target=remove)
        removing.start()
        try:
            await asyncio.to_thread(wait_until, lambda: len(codes) >= removed)
        finally:
            sidecar.kill()  # which ends its requests
            removing.join()
        assert set(codes) <= {204}
    with running(tmp_path, "--cache-size", "64MB", *flags, allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        await filled(sidecar, sets[:2])  # --set names these at every start; the others were a person's word to the one that was killed
        for file in files:
            assert (await asyncio.to_thread(read, sidecar.proxied(origin.url(f"/{file.name}")), file)).whole
        assert sidecar.metric("forebay_origin_bytes_total") == 0


async def test_a_declared_set_opens_no_origin(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """By FOREBAY_SET: one that may not be reached is not, whoever declares its shards; the sidecar serves on."""
    environ = {"FOREBAY_SET": f"{patterns(origin)[0]} http://169.254.169.254/{{0..9}}.tar"}
    with running(tmp_path, "--cache-size", "64MB", "--strict-origins", environ=environ) as sidecar:
        await asyncio.to_thread(wait_until, lambda: "declared set" in sidecar.log_text() and "could not be fetched" in sidecar.log_text())
        assert sidecar.status()["cache"]["stored_bytes"] == 0
        assert origin.requests == []


async def test_origins_are_allowed_all_or_none(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Who leaves inside the request has allowed nothing; one wrong entry among right ones takes none; then all of them count."""
    with running(tmp_path, "--cache-size", "64MB", program=small_segments(SEGMENT)) as sidecar:
        shard, other = sidecar.proxied(origin.url(f"/{files[0].name}")), "http://127.0.0.1:1"

        def refused() -> bool:
            with pytest.raises(urllib.error.HTTPError) as caught:
                sidecar.ask(shard.removeprefix(sidecar.url))
            caught.value.close()
            return caught.value.code == 403 and not sidecar.status()["settings"]["allow_origin"]["value"]

        assert await asyncio.to_thread(refused)
        request = raw("/v1/allow", json.dumps({"origins": [origin.base, other]}).encode())
        await left_inside(sidecar, request)
        for bad in ([origin.base, "ftp://x"], [origin.base, ""], [origin.base, 7], [origin.base, "http://h:99999"]):
            code, _ = await asyncio.to_thread(post, sidecar, "/v1/allow", json.dumps({"origins": bad}).encode())
            assert code == 400, bad
            assert await asyncio.to_thread(refused), bad
        assert origin.requests == []

        async with line(sidecar.port) as client:  # all of it was said, and nobody listens to the answer: heard, or not
            await client.send(request)
        assert sidecar.status()["settings"]["allow_origin"]["value"] in ([], [origin.base, other])
        assert (await asyncio.to_thread(post, sidecar, "/v1/allow", json.dumps({"origins": [origin.base, other]}).encode())) == (204, {})
        assert sidecar.status()["settings"]["allow_origin"]["value"] == [origin.base, other]
        assert (await asyncio.to_thread(read, shard, files[0])).whole
