"""kill -9 of a real sidecar, again and again, while everything is asked of it; and what it leaves behind, looked at each time.

    report = await Kills(directory, seed=7).run(20)

A life: the sidecar starts on the same port over the same cache directory; what is stored then is noted, and files, claims and books are
compared. Clients read whole shards and ranges, announce plans, warm and evict, more than fits at once, from an origin that takes its time.
At a random moment, of the start too, SIGKILL. Then the directory is looked at as the kill left it: every claimed segment must have its
bytes, and all of it must lie inside the bound. Beside it a training loop reads epoch after epoch through the same address.

Every byte that arrives is compared with the file the origin serves. A connection cut by the kill is no fault; a wrong byte always is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash
from support.disk_sampler import used_bytes
from support.readers import read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, environment, spawn, start, wait_until
from support.tars import expected, tar_shard

from forebay_proxy.core.segments import DEFAULT_LAYOUT

__all__ = ["Kills", "Report", "claims"]

SHARDS, SAMPLES, SAMPLE_BYTES = 10, 12, 1_600_000  # 19 MB a shard: three segments, so that parts of it come and go
RATE_BYTES_S = 40e6  # of each connection to the origin: a kill finds something in the air
CAPACITY_MB = 100  # about half of the data, so that segments leave all the time
CLIENTS = 4
WORTH = 4  # segments that must be claimed before a kill: on a busy machine a second is not enough for one
SWEPT_S = 60.0  # of a shared machine
OVERHEAD_AHEAD = 5 * 2**20  # overhead is counted in steps of 1 MiB, and one ahead; the clients of a start have begun to fetch


@dataclass
class Report:
    """What came of it. All but ``kills``, ``kept``, ``start_s``, ``epochs``, ``bytes_compared`` and ``done`` should be zero."""

    kills: int = 0
    kills_at_start: int = 0
    kept: list[int] = field(default_factory=list)  # segments found at each start
    start_s: list[float] = field(default_factory=list)  # from the start of the process to its line
    epochs: int = 0
    bytes_compared: int = 0
    done: dict[str, int] = field(default_factory=dict)  # what clients did to its end
    wrong_bytes: int = 0  # answers with a wrong byte
    false_claims: int = 0
    leaked_files: int = 0
    over_bound: int = 0
    books_wrong: int = 0  # starts whose ledger did not hold what the disk holds
    samples_lost: int = 0
    samples_twice: int = 0
    samples_wrong: int = 0
    starts_failed: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, int]:
        names = (
            "wrong_bytes",
            "false_claims",
            "leaked_files",
            "over_bound",
            "books_wrong",
            "samples_lost",
            "samples_twice",
            "samples_wrong",
        )
        return {name: getattr(self, name) for name in (*names, "starts_failed")}


class Kills:
    """The origin's files, a sidecar that dies, its clients, and a training loop that survives it."""

    def __init__(self, directory: Path, seed: int, *, progress: Callable[[str], None] = lambda line: None) -> None:
        self.report = Report()
        self._directory = directory
        self._chance = random.Random(seed)
        self._progress = progress
        self._capacity = CAPACITY_MB * 10**6
        self._sidecar: Sidecar | None = None
        self._port = 0
        self._urls: dict[str, Path] = {}
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()

    async def run(self, kills: int) -> Report:
        """That many lives and deaths, and a last life in which every byte is read."""
        files = self._make_files()
        async with ScriptedOrigin() as origin:
            for path in files:
                data = path.read_bytes()
                origin.put(f"/{path.name}", data, etag=f'"{path.name}"', bytes_per_s=RATE_BYTES_S)
                self._urls[origin.url(f"/{path.name}")] = path
            await asyncio.get_running_loop().run_in_executor(None, self._lives, kills, origin.base)
        self.report.done = dict(self._counted)
        return self.report

    def _make_files(self) -> list[Path]:
        folder = self._directory / "files"
        folder.mkdir()
        paths = [folder / f"train-{shard:03d}.tar" for shard in range(SHARDS)]
        for shard, path in enumerate(paths):
            path.write_bytes(tar_shard(shard, SAMPLES, SAMPLE_BYTES))
        return paths

    # Lives

    def _lives(self, kills: int, origin: str) -> None:
        with ExitStack() as stack:
            self._begin(origin)
            training = stack.enter_context(_Running(self._directory, f"http://127.0.0.1:{self._port}", list(self._urls)))
            while self.report.kills < kills:
                if self._sidecar is None and not self._begin(origin):
                    break
                self._live()
                self._kill()
                if self._chance.random() < 0.25:
                    self._die_young(origin)
                self._look_at_what_is_left()
                self._progress(f"{self.report.kills} kills, {self.report.kept[-1]} segments kept at the last start; {self._faults()}")
            self._begin(origin)
            self._read_everything()
            self._judge(training.ended())
            self._end()

    def _faults(self) -> str:
        found = {name: count for name, count in self.report.faults.items() if count}
        return f"faults: {found}" if found else "no fault"

    def _flags(self) -> tuple[str, ...]:
        return ("--cache-size", f"{CAPACITY_MB}MB", *(("--port", str(self._port)) if self._port else ("--port", "0")))

    def _begin(self, origin: str) -> bool:
        began = time.monotonic()
        try:
            self._sidecar = start(self._directory, *self._flags(), allow=[origin], default_port=True)
        except AssertionError as error:
            self.report.starts_failed += 1
            self.report.notes.append(str(error))
            return False
        self.report.start_s.append(time.monotonic() - began)
        self._port = self._sidecar.port
        self.report.kept.append(sum(shard["segments"] for shard in self._sidecar.shards().values()))
        self._check_books(self._sidecar)
        return True

    def _check_books(self, sidecar: Sidecar) -> None:
        """What the ledger of a fresh start says is what the disk holds, and soon no file is there that nothing names.

        The training loop fetches meanwhile, and the start's leftovers leave: so each is asked until it agrees.
        """

        def books_agree() -> bool:
            before = _held(sidecar)
            books = sidecar.status()["cache"]
            sure = books["stored_bytes"] + books["overhead_bytes"]
            moving = books["reserved_bytes"] + books["doomed_bytes"]
            return before <= sure + moving and sure <= _held(sidecar) + OVERHEAD_AHEAD

        def files_agree() -> bool:
            return {path.name for path in (sidecar.cache_dir / "shards").iterdir()} == {shard["key"] for shard in sidecar.shards().values()}

        for agree, name in ((books_agree, "books_wrong"), (files_agree, "leaked_files")):
            try:
                wait_until(agree, SWEPT_S)
            except AssertionError:
                setattr(self.report, name, getattr(self.report, name) + 1)
                self.report.notes.append(f"{name}: {sidecar.status()['cache']}, the disk holds {_held(sidecar)} bytes")

    def _live(self) -> None:
        """Clients do what they do until the moment of the kill."""
        stop = threading.Event()
        seeds = [self._chance.random() for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            busy = [pool.submit(self._client, random.Random(seed), stop) for seed in seeds]
            busy.append(pool.submit(self._watch, stop))
            try:
                wait_until(lambda: self._claimed() >= WORTH, SWEPT_S, every_s=0.1)
                time.sleep(self._chance.uniform(0.3, 2.0))
                self._kill()
            finally:
                stop.set()
        for each in busy:
            each.result()

    def _claimed(self) -> int:
        """Segments the index claims now."""
        rows = claims(self._directory / "cache", self._directory / "index-copy")
        return sum(len(checksums(row)) for _, row in rows)

    def _kill(self) -> None:
        if self._sidecar is not None:
            self._sidecar.kill()
            self._sidecar = None
            self.report.kills += 1

    def _die_young(self, origin: str) -> None:
        """One that is killed while it starts: it has the lock, reads the index, tidies, opens its port, or has just said so."""
        with spawn(self._directory, *self._flags(), allow=[origin], default_port=True) as process:
            usual = statistics.median(self.report.start_s)
            time.sleep(self._chance.uniform(0.3, 1.1) * usual)
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.report.kills += 1
        self.report.kills_at_start += 1

    def _end(self) -> None:
        if self._sidecar is not None:
            assert self._sidecar.terminate() == 0
            self._sidecar = None

    # Clients

    def _client(self, chance: random.Random, stop: threading.Event) -> None:
        sidecar = self._sidecar
        assert sidecar is not None
        work = [self._whole] * 5 + [self._span] * 4 + [self._plan, self._warm, self._evict]
        while not stop.is_set():
            job = chance.choice(work)
            try:
                whole = job(sidecar, chance)
            except AssertionError as error:
                with self._lock:
                    self.report.wrong_bytes += 1
                    self.report.notes.append(str(error)[:300])
                return
            except (OSError, http.client.HTTPException, urllib.error.URLError, json.JSONDecodeError):
                return  # it was killed
            with self._lock:
                self._counted[job.__name__.strip("_")] += whole

    def _whole(self, sidecar: Sidecar, chance: random.Random) -> bool:
        url, path = chance.choice(list(self._urls.items()))
        got = read(sidecar.proxied(url), path, headers=_reader(chance), stop_after=chance.choice([None, None, None, 2_000_000]))
        return self._compared(got.count, whole=got.whole)

    def _span(self, sidecar: Sidecar, chance: random.Random) -> bool:
        url, path = chance.choice(list(self._urls.items()))
        size = path.stat().st_size
        first = chance.randrange(size)
        last = min(size - 1, first + chance.choice([0, 5000, 3 << 20, 12 << 20]))
        got = read(sidecar.proxied(url), path, span=(first, last), headers=_reader(chance))
        return self._compared(got.count, whole=got.whole)

    def _compared(self, count: int, *, whole: bool) -> bool:
        with self._lock:
            self.report.bytes_compared += count
        return whole

    def _plan(self, sidecar: Sidecar, chance: random.Random) -> bool:
        sidecar.plan(f"job/0/{chance.randrange(3)}/1.0", chance.sample(list(self._urls), 4))
        return True

    def _warm(self, sidecar: Sidecar, chance: random.Random) -> bool:
        body = json.dumps({"shards": chance.sample(list(self._urls), 2)}).encode()
        return b'"end"' in sidecar.ask("/v1/warm", body, "POST")

    def _evict(self, sidecar: Sidecar, chance: random.Random) -> bool:
        sidecar.ask("/v1/evict", json.dumps({"shards": [chance.choice(list(self._urls))]}).encode())
        return True

    def _watch(self, stop: threading.Event) -> None:
        """How much the directory takes, unlinked but open files included."""
        sidecar = self._sidecar
        assert sidecar is not None
        while not stop.wait(0.05):
            self._bounded(_held(sidecar))

    def _bounded(self, held: int) -> None:
        if held > self._capacity:
            with self._lock:
                self.report.over_bound += 1
                self.report.notes.append(f"{held} bytes are held")

    # What a kill leaves behind

    def _look_at_what_is_left(self) -> None:
        cache = self._directory / "cache"
        self._bounded(used_bytes(str(cache), 0)[0])
        for key, row in claims(cache, self._directory / "index-copy"):
            if not _is_true(cache / "shards" / key, row):
                self.report.false_claims += 1
                self.report.notes.append(f"the index claims what is not there: {row['url']}")

    def _read_everything(self) -> None:
        sidecar = self._sidecar
        assert sidecar is not None
        for round_ in range(2):  # what is stored, then what is fetched in its place
            for url, path in self._urls.items():
                try:
                    got = read(sidecar.proxied(url), path)
                    assert got.whole, f"{url}: {got.count} bytes, and no end"
                    self._compared(got.count, whole=True)
                except (AssertionError, OSError) as error:
                    self.report.wrong_bytes += 1
                    self.report.notes.append(f"round {round_}: {error}")

    def _judge(self, epochs: list[list[tuple[str, str]]]) -> None:
        """Every epoch has each sample once, with its own bytes."""
        wanted = {key: hashlib.md5(data).hexdigest() for key, data in expected(SHARDS, SAMPLES, SAMPLE_BYTES).items()}
        for epoch in epochs:
            seen = Counter(key for key, _ in epoch)
            self.report.samples_lost += len(wanted.keys() - seen.keys())
            self.report.samples_twice += sum(count - 1 for count in seen.values())
            self.report.samples_wrong += sum(wanted.get(key) != md5 for key, md5 in epoch)
        self.report.epochs = len(epochs)


def _held(sidecar: Sidecar) -> int:
    return min(used_bytes(str(sidecar.cache_dir), sidecar.process.pid)[0] for _ in range(3))  # a walk is not atomic


def _reader(chance: random.Random) -> dict[str, str]:
    """Some readers have a plan, most do not."""
    return {"Forebay-Reader": f"job/0/{chance.randrange(3)}/1.0"} if chance.random() < 0.4 else {}


def claims(cache: Path, copy: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of the index as a kill left it; read from a copy, because looking changes SQLite's files."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(cache / "index", copy)
    except shutil.Error:  # a living sidecar's commit ended meanwhile, and took its journal away
        yield from claims(cache, copy)
        return
    with closing(sqlite3.connect(copy / "cache.db")) as index, suppress(sqlite3.OperationalError):  # killed before the first commit
        for key, value in index.execute("SELECT key, value FROM Cache").fetchall():
            yield key, json.loads(value)


def checksums(row: dict[str, Any]) -> dict[int, int]:
    """segment -> checksum, of what a row claims; read by hand, and not by the sidecar's own code."""
    return {first + at: value for first, text in row["sums"]["runs"] for at, value in enumerate(array("Q", base64.b64decode(text)))}


def _is_true(path: Path, row: dict[str, Any]) -> bool:
    if not path.exists() or path.stat().st_size != row["length"]:
        return False
    with path.open("rb") as file:
        for index, value in checksums(row).items():
            first, size = DEFAULT_LAYOUT.span(index, row["length"])
            if (xxhash.xxh3_64_intdigest(os.pread(file.fileno(), size, first)) or 1) != value:
                return False
    return True


_SCRIPT = """
import hashlib, json, sys, threading
import forebay_loader as fb

stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
urls = json.loads(sys.argv[1])
while not stop.is_set():
    for sample in fb.WebDataset(urls, shardshuffle=False):
        print(json.dumps([sample["__key__"], hashlib.md5(sample["bin"]).hexdigest()]))
    print("[]", flush=True)
print(json.dumps(fb.counters()), file=sys.stderr)
"""


class _Training:
    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self._process = process
        self._output = output

    def ended(self) -> list[list[tuple[str, str]]]:
        """The (key, md5) of each sample, epoch by epoch; the one under way is read to its end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(240) == 0, self._output.with_suffix(".err").read_text()[-2000:]
        epochs: list[list[tuple[str, str]]] = [[]]
        for line in self._output.read_text().splitlines():
            sample = json.loads(line)
            if sample:
                epochs[-1].append((sample[0], sample[1]))
            else:
                epochs.append([])
        assert not epochs.pop(), "the script ends with an epoch"
        return epochs


class _Running:
    """A training loop in a process of its own, reading through ``forebay_url`` for the length of the ``with``."""

    def __init__(self, directory: Path, forebay_url: str, urls: list[str]) -> None:
        self._output = directory / "samples"
        self._stack = ExitStack()
        self._command = [sys.executable, "-c", _SCRIPT, json.dumps(urls)]
        self._environ = environment(directory, FOREBAY_URL=forebay_url)

    def __enter__(self) -> _Training:
        out = self._stack.enter_context(self._output.open("w"))
        err = self._stack.enter_context(self._output.with_suffix(".err").open("w"))
        self._process = subprocess.Popen(
            self._command, env=self._environ, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True
        )  # fmt: skip
        return _Training(self._process, self._output)

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._stack.close()
