"""``forebay serve --access-log``: what was read is written down, and ``forebay plan --replay`` reads the same again."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from support.disks import needs_mounts
from support.readers import make_shard, put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, forebay, running, small_segments, wait_until

from forebay_proxy.simulate.workload import read_recording

SEGMENT = 1 << 16
COUNT, SIZE = 8, 3 * SEGMENT + 1024
ORDERS = {"train/0/0/1.1": [3, 0, 7, 1, 3], "train/0/1/1.1": [2, 6, 4, 5, 0]}


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SIZE)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def logged(sidecar: Sidecar, count: int) -> None:
    """Wait until ``count`` lines are in files."""
    await asyncio.to_thread(wait_until, lambda: sidecar.metric("forebay_access_log_lines_total", result="written") >= count)


async def test_a_run_is_written_down_and_replayed(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Two readers of a real sidecar with plans: the same shards in the same orders come out of the log, and the replay takes it."""
    log = tmp_path / "access.log"

    def follow(sidecar: Sidecar, reader: str) -> None:
        urls = [origin.url(f"/{number:02d}.tar") for number in ORDERS[reader]]
        sidecar.ask(f"/v1/plans/{reader}", json.dumps({"epoch": 4, "shards": urls}).encode(), "PUT")
        for number, url in zip(ORDERS[reader], urls, strict=True):
            assert read(sidecar.proxied(url), files[number], headers={"Forebay-Reader": reader}).whole

    flags = ("--cache-size", "64MB", "--access-log", str(log))
    with running(tmp_path, *flags, allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        await asyncio.gather(*(asyncio.to_thread(follow, sidecar, reader) for reader in ORDERS))
        fetched = await asyncio.to_thread(sidecar.metric, "forebay_origin_bytes_total")
    lines, found = lines_of(log), read_recording(log.read_text())
    orders = {str(reader): [shard.name for shard in epochs[0].shards] for reader, epochs in found.orders.items()}
    assert orders == {reader: [origin.url(f"/{number:02d}.tar") for number in order] for reader, order in ORDERS.items()}
    assert set(found.lengths.values()) == {SIZE}
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    facts = {(line["status"], line["bytes"], line["length"], line["range"], line["cut"], line["epoch"]) for line in lines}
    assert facts == {(200, SIZE, SIZE, None, None, 4)}
    again = [line for line in lines if line["shard"].endswith("/03.tar")][1]
    assert (again["result"], again["hit_bytes"]) == ("hit", SIZE)
    assert all(line["seconds"] >= line["first_byte_s"] and line["seconds"] >= line["waited_s"] >= 0 for line in lines)
    told = forebay(tmp_path, "plan", "--replay", str(log), "--cache-size", "64MB", "--json")
    assert told.returncode == 0, told.stderr
    value = json.loads(told.stdout)
    assert (value["kind"], value["lengths"]) == ("access log", "as recorded")
    assert {policy["read_bytes"] for policy in value["policies"]} == {10 * SIZE}
    assert next(policy["origin_bytes"] for policy in value["policies"] if policy["policy"] == "ours") == fetched == COUNT * SIZE


async def test_parts_errors_and_leavers(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """A range, a shard that is missing, a client that leaves; and the file may be moved away at any time."""
    log = tmp_path / "access.log"
    big = make_shard(tmp_path / "08.tar", 40 << 20, 8)  # more than sockets hold
    origin.put("/08.tar", big.read_bytes())
    with running(tmp_path, "--cache-size", "64MB", "--access-log", str(log), allow=[origin.base]) as sidecar:
        part = await asyncio.to_thread(read, sidecar.proxied(origin.url("/00.tar")), files[0], span=(10, 99))
        assert part.status == 206
        await logged(sidecar, 1)
        log.rename(tmp_path / "access.log.1")
        assert (await asyncio.to_thread(read, sidecar.proxied(origin.url("/none.tar")))).status == 404
        left = await asyncio.to_thread(read, sidecar.proxied(origin.url("/08.tar")), big, stop_after=1)
        assert not left.whole
        await logged(sidecar, 3)
    (first,), (second, third) = lines_of(tmp_path / "access.log.1"), lines_of(log)
    assert (first["range"], first["bytes"], first["length"], first["reader"]) == ([10, 99], 90, SIZE, None)
    assert (second["status"], second["result"], second["bytes"]) == (404, "none", 0)
    assert (third["cut"], third["status"], third["bytes"] < 40 << 20) == ("client_gone", 200, True)


@needs_mounts
async def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """The log's own file system has one page: readers get every byte, missing lines are counted and said once."""
    small = tmp_path / "small"
    small.mkdir()
    wrapper = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=4k none "$0" && exec "$@"', str(small))
    flags = ("--cache-size", "64MB", "--access-log", str(small / "access.log"))
    with running(tmp_path, *flags, allow=[origin.base], wrapper=wrapper) as sidecar:
        for _ in range(5):
            for file in files:
                assert (await asyncio.to_thread(read, sidecar.proxied(origin.url(f"/{file.name}")), file)).whole
        await asyncio.to_thread(wait_until, lambda: sidecar.metric("forebay_access_log_lines_total") >= 5 * COUNT)
        dropped = sidecar.metric("forebay_access_log_lines_total", result="dropped")
        text = Path(f"/proc/{sidecar.process.pid}/root{small}/access.log").read_text()
        kept = text.splitlines()  # the last one may be half a line
        assert len(kept) == 5 * COUNT - dropped
        assert 0 < len(kept) < 5 * COUNT
    assert sidecar.log_text().count("lines are missing from now on: No space left on device") == 1


@pytest.mark.parametrize("where", ["cache/access.log", "missing/access.log"])
def test_a_place_that_will_not_do_ends_the_start(tmp_path: Path, where: str) -> None:
    """Inside the cache directory it would break the bound. Exit code 2, the flag and the next step."""
    flags = ("--cache-dir", str(tmp_path / "cache"), "--cache-size", "64MB", "--port", "0")
    told = forebay(tmp_path, "serve", *flags, "--access-log", str(tmp_path / where))
    assert told.returncode == 2
    assert "--access-log" in told.stderr
    assert "Traceback" not in told.stderr
