"""Readers that do not do what they announced: every read is right, their windows are given back, and nobody else is slowed."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.lengths import ordinarily
from support.readers import put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, environment, running, small_segments, wait_until

SEGMENT = 1 << 16
COUNT, SIZE = 24, 12 * SEGMENT + 77  # 19 MB: more than the cache holds
SILENCE_S = 10.0  # the contract's minute, made short: the program under test is told so
ENTRIES = ordinarily(200_000, of=1_000_000, what="entries of an enormous plan")


def soon_silent() -> tuple[str, ...]:
    """A program whose silence a test can wait for."""
    *python, code = small_segments(SEGMENT)
    return (*python, f"import forebay_proxy.policy.plans.registry as p; p.SILENCE_S = {SILENCE_S}; {code}")


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SIZE)


@contextmanager
def house(directory: Path, origin: ScriptedOrigin, *flags: str, program: tuple[str, ...] | None = None) -> Iterator[Sidecar]:
    program = program or small_segments(SEGMENT)
    with running(directory, "--cache-size", "12MB", *flags, allow=[origin.base], program=program) as sidecar:
        yield sidecar


def get(sidecar: Sidecar, origin: ScriptedOrigin, file: Path, reader: str) -> float:
    """Read a whole shard, every byte compared; how long it took."""
    got = read(sidecar.proxied(origin.url(f"/{file.name}")), file, headers={"Forebay-Reader": reader})
    assert (got.status, got.whole, got.count) == (200, True, SIZE)
    return got.last_byte_s


def put(sidecar: Sidecar, reader: str, body: bytes, content_type: str = "application/json", method: str = "PUT") -> int:
    """Announce; the status."""
    headers = {"Content-Type": content_type}
    request = urllib.request.Request(f"{sidecar.url}/v1/plans/{reader}", data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def rss_bytes(sidecar: Sidecar) -> int:
    return int(Path(f"/proc/{sidecar.process.pid}/statm").read_text().split()[1]) * 4096


def plans(sidecar: Sidecar) -> dict[str, dict[str, object]]:
    return {plan["reader"]: plan for plan in sidecar.status()["plans"]}


async def test_skipping_repeating_and_straying(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Readers that open what they like, in what order they like, twice or not at all, beside an honest one: every byte is right."""
    urls = [origin.url(f"/{file.name}") for file in files]
    chance = random.Random(3)

    def honest(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/0/1.1", urls)
        for file in files:
            get(sidecar, origin, file, "job/0/0/1.1")

    def skipping(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/1/2.1", urls)
        for file in files[::5]:
            get(sidecar, origin, file, "job/0/1/2.1")

    def repeating(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/2/3.1", urls)
        for file in [file for file in files[:6] for _ in range(3)]:
            get(sidecar, origin, file, "job/0/2/3.1")

    def straying(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/3/4.1", [url.replace(".tar", ".other.tar") for url in urls])  # a data set that is not there
        for file in chance.sample(files, COUNT):
            get(sidecar, origin, file, "job/0/3/4.1")

    with house(tmp_path, origin) as sidecar:
        await asyncio.gather(*(asyncio.to_thread(lie, sidecar) for lie in (honest, skipping, repeating, straying)))
        found = await asyncio.to_thread(plans, sidecar)
        assert found["job/0/0/1.1"]["position"] == COUNT
        assert found["job/0/3/4.1"]["position"] == 0


async def test_two_readers_of_one_name(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Each replaces the other's plan and moves it: what both read is right all the same."""
    urls = [origin.url(f"/{file.name}") for file in files]

    def one_of_two(sidecar: Sidecar, order: list[int]) -> None:
        for number in order:
            if number % 4 == 0:
                sidecar.plan("job/0/0/7.1", [urls[other] for other in order])
            get(sidecar, origin, files[number], "job/0/0/7.1")

    with house(tmp_path, origin) as sidecar:
        orders = (list(range(COUNT)), list(reversed(range(COUNT))))
        await asyncio.gather(*(asyncio.to_thread(one_of_two, sidecar, order) for order in orders))


async def test_a_killed_reader_gives_its_window_back(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """kill -9 in the middle of a shard: its plan is gone after the silence, and its place is another's."""
    urls = [origin.url(f"/{file.name}") for file in files]
    code = (
        "import http.client, sys, time\n"
        "c = http.client.HTTPConnection(sys.argv[1]); c.request('GET', sys.argv[2], headers={'Forebay-Reader': 'gone/0/0/9.1'})\n"
        "r = c.getresponse(); r.read(1000); print('reading', flush=True); time.sleep(60)"
    )
    with house(tmp_path, origin, program=soon_silent()) as sidecar:
        await asyncio.to_thread(sidecar.plan, "gone/0/0/9.1", urls)
        target = sidecar.proxied(urls[0]).removeprefix(sidecar.url)
        command = [sys.executable, "-c", code, sidecar.url.removeprefix("http://"), target]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(tmp_path))
        try:
            assert reader.stdout is not None
            assert await asyncio.to_thread(reader.stdout.readline) == b"reading\n"
            reader.send_signal(signal.SIGKILL)
            await asyncio.to_thread(reader.wait)
        finally:
            reader.kill()
            reader.wait()
            reader.stdout.close()
        await asyncio.to_thread(wait_until, lambda: "gone/0/0/9.1" not in plans(sidecar), SILENCE_S + 60)
        assert (await asyncio.to_thread(sidecar.status))["cache"]["leased_bytes"] == 0
        await asyncio.to_thread(sidecar.plan, "here/0/0/1.1", urls)
        for file in files:
            await asyncio.to_thread(get, sidecar, origin, file, "here/0/0/1.1")


async def test_empty_and_enormous_plans(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """An empty plan is one; very many entries are taken as far as memory is bounded, and a reader beside them is not slowed."""
    lines = b"".join(b'"s3://nowhere/%07d.tar"\n' % number for number in range(ENTRIES // 20))
    pattern = json.dumps({"set": f"s3://nowhere/{{0..{ENTRIES - 1}}}.tar", "indices": list(range(ENTRIES))}).encode()
    with house(tmp_path, origin, "--no-prefetch") as sidecar:
        assert await asyncio.to_thread(put, sidecar, "liar/0/0/1.1", b'{"shards": []}') == 204
        before = await asyncio.to_thread(rss_bytes, sidecar)
        alone = [await asyncio.to_thread(get, sidecar, origin, file, "job/0/0/1.1") for file in files[:6] * 3][6:]
        large = asyncio.gather(
            asyncio.to_thread(put, sidecar, "liar/0/0/2.1", lines, "application/x-ndjson"),
            asyncio.to_thread(put, sidecar, "liar/0/0/3.1", pattern),
            asyncio.to_thread(put, sidecar, "liar/0/0/4.1", b'["' + b"x" * (2 << 20) + b'"]'),
        )
        beside = []
        while not large.done():
            beside.append(await asyncio.to_thread(get, sidecar, origin, files[len(beside) % 6], "job/0/0/1.1"))
        statuses = await large
        used = await asyncio.to_thread(rss_bytes, sidecar) - before
        assert set(statuses) <= {204, 413, 429}, statuses
        assert statuses[2] == 413
        assert used < 1.5e9, used
        assert max(beside) < 5.0, "the loop stood still"  # a machine with other work, too
        print(f"{statuses}: {used / 1e6:.0f} MB more; reads alone {max(alone) * 1e3:.0f} ms, beside {max(beside) * 1e3:.0f} ms at most")
        for number in (1, 2, 3):
            await asyncio.to_thread(sidecar.ask, f"/v1/plans/liar/0/0/{number}.1", None, "DELETE")
        assert "job/0/0/1.1" not in await asyncio.to_thread(plans, sidecar)


async def test_messages_that_come_twice_or_not_at_all(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """A message sent twice doubles nothing; one behind a lost one is refused, and the whole plan mends it."""
    urls = [origin.url(f"/{file.name}") for file in files]

    def said(first: int, last: int, at: int | None = None) -> bytes:
        return json.dumps({"shards": urls[first:last], "at": first if at is None else at}).encode()

    def talk(sidecar: Sidecar) -> None:
        name = "job/0/0/1.1"
        assert put(sidecar, name, said(0, 4), method="POST") == 204
        for _ in range(3):
            assert put(sidecar, name, said(4, 8), method="POST") == 204
        assert put(sidecar, name, said(6, 10), method="POST") == 204
        assert plans(sidecar)[name]["length"] == 10
        assert put(sidecar, name, said(12, 16), method="POST") == 409
        assert plans(sidecar)[name]["length"] == 10
        assert put(sidecar, name, said(3, 16)) == 204
        assert put(sidecar, name, said(16, COUNT), method="POST") == 204
        assert plans(sidecar)[name]["length"] == COUNT - 3
        assert put(sidecar, "job/0/0/2.1", said(5, 6), method="POST") == 409
        for file in files[3:]:
            get(sidecar, origin, file, name)
        assert plans(sidecar)[name]["position"] == COUNT - 3

    with house(tmp_path, origin) as sidecar:
        await asyncio.to_thread(talk, sidecar)
