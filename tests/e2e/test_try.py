"""``forebay try``: the same bytes three ways, a table, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import FOREBAY, environment, forebay, wait_until
from support.tars import tar_shard


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """Where temporary directories are made."""
    made = tmp_path / "rooms"
    made.mkdir()
    return made


async def attempt(tmp_path: Path, *arguments: str) -> CompletedProcess[str]:
    return await asyncio.to_thread(forebay, tmp_path, "try", *arguments, TMPDIR=str(tmp_path / "rooms"))


def processes_below(directory: Path) -> list[str]:
    """Command lines that name it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if str(directory) in line]


def fetched(origin: ScriptedOrigin, path: str) -> int:
    return len([one for one in origin.seen(path) if one.method == "GET"])


async def test_three_readings_side_by_side(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """The first shards of the pattern, fetched once by each of the first two readings, by the third not at all."""
    data = [tar_shard(number, samples=40) for number in range(3)]
    for number, body in enumerate(data):
        origin.put(f"/a-{number}.tar", body, etag=f'"e{number}"')
    done = await attempt(tmp_path, origin.url("/a-{0..9}.tar"), "--shards", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["direct", "through Forebay, cold", "through Forebay, warm"]
    assert lines[3].endswith(" 0 B")
    assert lines[4].startswith("3 shards, ")
    assert lines[4].endswith("the same bytes each time")
    assert [fetched(origin, f"/a-{number}.tar") for number in range(4)] == [2, 2, 2, 0]
    assert list(rooms.iterdir()) == []
    assert processes_below(rooms) == []


async def test_the_limit_cuts_a_shard(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """At most so many bytes each time; --json says how many, in numbers, and nothing but JSON."""
    body = tar_shard(0, samples=100)
    origin.put("/a.tar", body)
    done = await attempt(tmp_path, origin.url("/a.tar"), origin.url("/never.tar"), "--limit", "100001", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert (found["shards"], found["shard_bytes"], found["same_bytes"]) == (1, 100_001, True)
    assert [one["name"] for one in found["passes"]] == ["direct", "through Forebay, cold", "through Forebay, warm"]
    assert all(one["seconds"] > 0 and one["bytes_s"] > 0 for one in found["passes"])
    assert origin.seen("/never.tar") == []


async def test_a_credential_travels(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """A command's header goes along each way, and is not shown."""
    origin.put("/a.tar", tar_shard(0))
    done = await attempt(tmp_path, f"pipe:curl -s -H 'Authorization: Bearer S3CRET' {origin.url('/a.tar')}")
    assert done.returncode == 0, done.stderr
    assert {one.headers.get("authorization") for one in origin.seen("/a.tar")} == {"Bearer S3CRET"}
    assert "S3CRET" not in done.stdout + done.stderr


async def test_other_bytes_are_told(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """A shard that changed between the readings is no success."""
    origin.put("/a.tar", tar_shard(1), etag='"new"')
    origin.next("/a.tar", body=tar_shard(2), etag='"old"')
    done = await attempt(tmp_path, origin.url("/a.tar"))
    assert done.returncode == 1
    assert "NOT the same bytes each time" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{base}/no.tar"], "the origin answered 404; check the URL against the origin"),
        (["ftp://host/a.tar"], "unknown scheme 'ftp'"),
        (["{base}/a.tar", "--limit", "2XB"], "'2XB' is not a size"),
        (["{base}/a.tar", "--limit", "0"], "'0' is no byte at all; write 200MB"),
        (["{base}/a.tar", "--limit", "9000TB"], "give a smaller --limit, or set TMPDIR"),
        (["{base}/a.tar", "--shards", "0"], "0 is not in the range x>=1"),
        ([], "Missing argument 'URLS...'"),
    ],
)
async def test_mistakes_are_one_line(tmp_path: Path, rooms: Path, origin: ScriptedOrigin, arguments: list[str], words: str) -> None:
    """Exit code 2, the cause and the next step; and nothing stays."""
    done = await attempt(tmp_path, *(text.format(base=origin.base) for text in arguments))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("forebay: ")
    assert words in last
    assert list(rooms.iterdir()) == []


async def test_a_running_sidecar_is_not_joined(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """Nor named ones, nor a set that it would fetch: this sidecar is of its own, and nobody finds it."""
    origin.put("/a.tar", tar_shard(0))
    arguments = ["try", origin.url("/a.tar")]
    variables = {"FOREBAY_URL": "http://127.0.0.1:9", "FOREBAY_SET": origin.url("/set-{0..9}.tar"), "TMPDIR": str(rooms)}
    done = await asyncio.to_thread(lambda: forebay(tmp_path, *arguments, **variables))
    assert done.returncode == 0, done.stderr
    assert {one.path for one in origin.requests} == {"/a.tar"}


async def test_ended_it_leaves_nothing(tmp_path: Path, rooms: Path, origin: ScriptedOrigin) -> None:
    """SIGTERM while the sidecar reads: it ends, and its directory goes."""
    body = tar_shard(0, samples=100)
    origin.put("/a.tar", body, gate=asyncio.Event())  # the second reading never comes to an end
    origin.next("/a.tar", gate=None)
    command = [*FOREBAY, "try", origin.url("/a.tar")]
    environ = environment(tmp_path, TMPDIR=str(rooms))
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        await asyncio.wait_for(origin.until(lambda: len(origin.requests) == 2), 60)
        assert processes_below(rooms)
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
        assert process.returncode == 128 + signal.SIGTERM
    assert list(rooms.iterdir()) == []
    await asyncio.to_thread(wait_until, lambda: not processes_below(rooms))
