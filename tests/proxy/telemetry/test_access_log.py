"""A line for each answer about a shard, at nobody's expense."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.seams import held_in_thread, swapped

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.requests import AccessLogged, RequestDone, RequestOutcome, Served
from forebay_proxy.telemetry import access_log as module
from forebay_proxy.telemetry.access_log import AccessLog, line_of
from forebay_proxy.wire.protocol.plan import ReaderName

READER = ReaderName("job", "0", "1", "7.1")
KEY = bytes(32)


def done(
    shard: str = "s3://b/0.tar", *, reader: ReaderName | None = READER, cut: str = "", code: int = 206, began_at: float = 0.0
) -> RequestDone:
    served = Served(shard, reader, 3, 1000, (0, 99), 0.25, cut, began_at)
    return RequestDone("GET", code, RequestOutcome.HIT, 100, 0.01, 2.5, 100, "job", served)


def told(fact: RequestDone, began_at: float = 1_000_000_000.0, key: bytes = KEY) -> dict[str, object]:
    assert fact.served is not None
    line = line_of(began_at, fact, fact.served, key)
    assert len(line.splitlines()) == 1
    found: dict[str, object] = json.loads(line)
    return found


class Board(Events):
    """Counts what the log reports."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"written": 0, "dropped": 0}
        self.listen(self._count)

    def _count(self, event: Event) -> None:
        if isinstance(event, AccessLogged):
            self.counts[event.result] += event.count

    async def until(self, **counts: int) -> None:
        async with asyncio.timeout(60):
            while any(self.counts[name] < count for name, count in counts.items()):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def logging_to(path: Path, now: list[float] | None = None) -> AsyncIterator[tuple[AccessLog, Board]]:
    board = Board()
    made = AccessLog(path, KEY, board, clock=lambda: now[0] if now else 0.0)
    await made.start()
    yield made, board
    await made.aclose()


def test_a_line() -> None:
    """Every key; the time is that of the beginning."""
    assert told(done()) == {
        "time": "2001-09-09T01:46:40.000000Z", "reader": "job/0/1/7.1", "epoch": 3, "method": "GET", "shard": "s3://b/0.tar",
        "length": 1000, "range": [0, 99], "status": 206, "result": "hit", "bytes": 100, "hit_bytes": 100, "waited_s": 0.25,
        "first_byte_s": 0.01, "seconds": 2.5, "cut": None,
    }  # fmt: skip
    assert [told(done(reader=None))["reader"], told(done(cut="client_gone"))["cut"]] == [None, "client_gone"]


def test_a_query_is_a_digest() -> None:
    """Two shards are two, the same one is the same at the next start, and who guesses a secret cannot check it without the key."""
    first, second = told(done("https://h/get?id=1")), told(done("https://h/get?id=2"))
    assert first["shard"] == second["shard"] == "https://h/get"
    assert first["query"] != second["query"]
    assert told(done("https://h/get?id=1")) == first
    assert told(done("https://h/get?id=1"), key=b"k" * 32)["query"] != first["query"]
    assert "query" not in told(done())


def test_nothing_breaks_a_line() -> None:
    """Names come from outside."""
    assert told(done("s3://b/a\n\u2028\udcff\x00.tar"))["shard"] == "s3://b/a\n\u2028\udcff\x00.tar"


async def test_what_is_no_shard_is_left_out(tmp_path: Path) -> None:
    """Status pages, probes and refusals are none."""
    path = tmp_path / "a.log"
    async with logging_to(path) as (_, board):
        board.emit(RequestDone("GET", 200, None, 0, 0.1, 0.1))
        board.emit(done())
    assert len(path.read_bytes().splitlines()) == 1


async def test_the_times_tell_the_order_of_openings(tmp_path: Path) -> None:
    """Whenever an answer ended, however late it is written down, and though two came within a millisecond; also where the clock is set."""
    path, wall, clock = tmp_path / "a.log", [1_000_000_000.0], [50.0]
    board = Board()
    made = AccessLog(path, KEY, board, clock=lambda: clock[0], now=lambda: wall[0])
    await made.start()
    begun = [(50.0002, 0.0), (50.0001, 0.004), (50.0, -0.02), (50.0004, 0.3), (50.0003, 0.0)]  # and how far one look is from the other
    for moment, apart in begun:
        clock[0] += 1.0
        wall[0] = 1_000_000_000.0 + clock[0] - 50.0 + apart
        board.emit(done(f"s3://b/{moment}.tar", began_at=moment))
    wall[0] += 3600
    board.emit(done("s3://b/later.tar", began_at=51.0))
    await made.aclose()
    lines = sorted(map(json.loads, path.read_text().splitlines()), key=lambda line: str(line["time"]))
    assert [line["shard"] for line in lines] == [f"s3://b/{moment}.tar" for moment in sorted(moment for moment, _ in begun)] + [
        "s3://b/later.tar"
    ]
    assert lines[0]["time"] == "2001-09-09T01:46:40.000000Z"
    assert str(lines[-1]["time"]).startswith("2001-09-09T02:46:41")


async def test_the_last_lines_are_written_at_the_end(tmp_path: Path) -> None:
    """In order, and counted."""
    path = tmp_path / "a.log"
    async with logging_to(path) as (_, board):
        for number in range(1000):
            board.emit(done(f"s3://b/{number}.tar"))
    await board.until(written=1000)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["shard"] for line in lines] == [f"s3://b/{number}.tar" for number in range(1000)]
    assert board.counts == {"written": 1000, "dropped": 0}


async def test_a_slow_disk_costs_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, what does not fit is counted, and it is said once; also when it is well again."""
    gate = held_in_thread(monkeypatch, module, "line_of")
    swapped(monkeypatch, module, MOST_WAITING=50)
    now, path = [100.0], tmp_path / "a.log"
    with caplog.at_level(logging.WARNING, "forebay"):
        async with logging_to(path, now) as (_, board):
            board.emit(done())
            while not gate.reached.is_set():
                await asyncio.sleep(0.001)
            for _ in range(200):
                board.emit(done())
            assert board.counts["dropped"] == 150
            gate.open()
            await board.until(written=51)
            assert caplog.text.count("lines are missing") == 1
            assert "its disk does not keep up" in caplog.text
            now[0] += 3600
            board.emit(done())
            await board.until(written=52)
    assert caplog.text.count("it is written again; 150 lines are missing") == 1
    assert len(path.read_bytes().splitlines()) == 52


async def test_a_failing_disk_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines that cannot be written are dropped; when it can be written again, it is."""
    directory = tmp_path / "logs"
    directory.mkdir()
    path = directory / "a.log"
    with caplog.at_level(logging.WARNING, "forebay"):
        async with logging_to(path) as (_, board):
            board.emit(done())
            await board.until(written=1)
            path.unlink()
            directory.rename(tmp_path / "gone")
            for count in (1, 2, 3):
                board.emit(done())
                await board.until(dropped=count)
            directory.mkdir()
            board.emit(done())
            await board.until(written=2)
    assert len(path.read_bytes().splitlines()) == 1
    assert caplog.text.count("No such file or directory") == 1


async def test_a_hanging_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The end comes all the same, and what was lost is said."""
    go = threading.Event()
    swapped(monkeypatch, module, line_of=lambda *_: go.wait(240) and "", CLOSE_S=0.05)
    with caplog.at_level(logging.WARNING, "forebay"):
        async with asyncio.timeout(60), logging_to(tmp_path / "a.log") as (_, board):
            board.emit(done())
        logging.shutdown()  # as the end of the interpreter does
    go.set()
    assert "its disk does not answer" in caplog.text


def _stranger(path: Path) -> None:
    path.write_bytes(b"")
    os.chown(path, 12345, 12345)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can give a file away")


@pytest.mark.parametrize(("make", "cause"), [
    (lambda path: path.parent.rmdir(), "No such file"), (lambda path: path.symlink_to("elsewhere"), "symbolic links"),
    (Path.mkdir, "Is a directory"), (os.mkfifo, r"No such device|no regular file"),
    pytest.param(_stranger, "no regular file of yours", marks=needs_root),
])  # fmt: skip
async def test_what_cannot_be_written_ends_the_start(tmp_path: Path, make: Callable[[Path], object], cause: str) -> None:
    """The flag, the path, the cause, and what to do; a pipe without waiting for its reader."""
    path = tmp_path / "inner" / "a.log"
    path.parent.mkdir()
    make(path)
    made = AccessLog(path, KEY, Events(), clock=lambda: 0.0)
    with pytest.raises(ConfigError, match=rf"--access-log .*a\.log cannot be written: .*({cause})") as refused:
        await made.start()
    assert "leave --access-log out" in refused.value.next_step


async def test_it_is_its_owners_alone_and_what_was_there_stays(tmp_path: Path) -> None:
    """Made with 0600: it says who read what. Lines of an earlier run stay, and the mode that somebody gave it."""
    path = tmp_path / "a.log"
    async with logging_to(path) as (_, board):
        board.emit(done())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    async with logging_to(path) as (_, board):
        board.emit(done())
    assert (len(path.read_bytes().splitlines()), stat.S_IMODE(path.stat().st_mode)) == (2, 0o640)


async def test_logrotate_may_move_it_or_cut_it(tmp_path: Path) -> None:
    """Moved, removed, truncated: the next line begins the file again, without a signal and without a hole."""
    path, old = tmp_path / "a.log", tmp_path / "a.log.1"
    changes: list[Callable[[], object]] = [lambda: path.rename(old), path.unlink, lambda: os.truncate(path, 0), lambda: None]
    async with logging_to(path) as (_, board):
        for count, change in enumerate(changes, 1):
            board.emit(done(f"s3://b/{count}.tar"))
            await board.until(written=count)
            assert [json.loads(line)["shard"] for line in path.read_text().splitlines()] == [f"s3://b/{count}.tar"]
            change()
    assert json.loads(old.read_text())["shard"] == "s3://b/1.tar"
