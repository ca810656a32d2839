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
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
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

__all__ = ["Kills", "Report", "claimed"]

SHARDS, SAMPLES, SAMPLE_BYTES = 10, 12, 1_600_000  # 19 MB a shard: three segments, so that parts of it come and go
RATE_BYTES_S = 40e6  # of each connection to the origin: a kill finds something in the air
CAPACITY_MB = 100  # about half of the data, so that segments leave all the time
CLIENTS = 4
WORTH = 4  # segments that must be claimed before a kill: on a busy machine a second is not enough for one
SWEPT_S = 60.0  # of a shared machine
OVERHEAD_AHEAD = 5 * 2**20  # overhead is counted in steps of 1 MiB, and one ahead; the clients of a start have begun to fetch


FAULTS = (
    "wrong_bytes", "false_claims", "leaked_files", "over_bound", "books_wrong", "samples_lost", "samples_twice", "samples_wrong",
    "starts_failed",
)  # fmt: skip


@dataclass
class Report:
    """What came of it. ``faults``: an answer with a wrong byte, a start whose ledger did not hold what the disk holds, …; all zero."""

    kills: int = 0
    kills_at_start: int = 0
    kept: list[int] = field(default_factory=list)  # segments found at each start
    start_s: list[float] = field(default_factory=list)  # from the start of the process to its line
    epochs: int = 0
    bytes_compared: int = 0
    done: Counter[str] = field(default_factory=Counter)  # what clients did to its end
    faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    notes: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, name: str, note: object) -> None:
        with self.lock:
            self.faults[name] += 1
            self.notes.append(f"{name}: {note}"[:2500])

    def compared(self, count: int) -> None:
        with self.lock:
            self.bytes_compared += count


class Kills:
    """The origin's files, a sidecar that dies, its clients, and a training loop that survives it."""

    def __init__(self, directory: Path, seed: int, *, progress: Callable[[str], None] = lambda line: None) -> None:
        self.report = Report()
        self._directory = directory
        self._chance = random.Random(seed)
        self._progress = progress
        self._sidecar: Sidecar | None = None
        self._port = 0
        self._urls: dict[str, Path] = {}

    async def run(self, kills: int) -> Report:
        """That many lives and deaths, and a last life in which every byte is read."""
        folder = self._directory / "files"
        folder.mkdir()
        async with ScriptedOrigin() as origin:
            for shard in range(SHARDS):
                path = folder / f"train-{shard:03d}.tar"
                path.write_bytes(data := tar_shard(shard, SAMPLES, SAMPLE_BYTES))
                origin.put(f"/{path.name}", data, etag=f'"{path.name}"', bytes_per_s=RATE_BYTES_S)
                self._urls[origin.url(f"/{path.name}")] = path
            await asyncio.to_thread(self._lives, kills, origin.base)
        return self.report

    # Lives

    def _lives(self, kills: int, origin: str) -> None:
        self._begin(origin)
        with _training(self._directory, f"http://127.0.0.1:{self._port}", list(self._urls)) as training:
            while self.report.kills < kills:
                if self._sidecar is None and not self._begin(origin):
                    break
                self._live()
                self._kill()
                if self._chance.random() < 0.25:
                    self._die_young(origin)
                self._look_at_what_is_left()
                found = {name: count for name, count in self.report.faults.items() if count} or "none"
                self._progress(f"{self.report.kills} kills, {self.report.kept[-1]} segments kept at the last start; faults: {found}")
            self._begin(origin)
            self._read_everything()
            self._judge(_epochs_of(training, self._directory / "samples"))
            if self._sidecar is not None:
                assert self._sidecar.terminate() == 0

    def _flags(self) -> tuple[str, ...]:
        return ("--cache-size", f"{CAPACITY_MB}MB", "--port", str(self._port))

    def _begin(self, origin: str) -> bool:
        began = time.monotonic()
        try:
            self._sidecar = sidecar = start(self._directory, *self._flags(), allow=[origin], default_port=True)
        except AssertionError as error:
            self.report.fault("starts_failed", error)
            return False
        self.report.start_s.append(time.monotonic() - began)
        self._port = sidecar.port
        self.report.kept.append(sum(shard["segments"] for shard in sidecar.shards().values()))
        self._check_books(sidecar)
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
                self.report.fault(name, f"{sidecar.status()['cache']}, the disk holds {_held(sidecar)} bytes")

    def _live(self) -> None:
        """Clients do what they do until the moment of the kill."""
        stop, sidecar = threading.Event(), self._sidecar
        assert sidecar is not None
        seeds = [self._chance.random() for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            busy = [pool.submit(self._client, sidecar, random.Random(seed), stop) for seed in seeds]
            busy.append(pool.submit(self._watch, sidecar, stop))
            try:
                wait_until(lambda: claimed(self._directory) >= WORTH, SWEPT_S, every_s=0.1)
                time.sleep(self._chance.uniform(0.3, 2.0))
                self._kill()
            finally:
                stop.set()
        for each in busy:
            each.result()

    def _kill(self) -> None:
        if self._sidecar is not None:
            self._sidecar.kill()
            self._sidecar = None
            self.report.kills += 1

    def _die_young(self, origin: str) -> None:
        """One that is killed while it starts: it has the lock, reads the index, tidies, opens its port, or has just said so."""
        with spawn(self._directory, *self._flags(), allow=[origin], default_port=True) as process:
            time.sleep(self._chance.uniform(0.3, 1.1) * statistics.median(self.report.start_s))
            process.kill()
        self.report.kills += 1
        self.report.kills_at_start += 1

    # Clients

    def _client(self, sidecar: Sidecar, chance: random.Random, stop: threading.Event) -> None:
        work = [self._whole] * 5 + [self._span] * 4 + [self._plan, self._warm, self._evict]
        while not stop.is_set():
            job = chance.choice(work)
            try:
                whole = job(sidecar, chance)
            except AssertionError as error:
                return self.report.fault("wrong_bytes", error)
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                return None  # it was killed
            with self.report.lock:
                self.report.done[job.__name__.strip("_")] += whole
        return None

    def _whole(self, sidecar: Sidecar, chance: random.Random) -> bool:
        url, path = chance.choice(list(self._urls.items()))
        return self._read(sidecar, url, path, headers=_reader(chance), stop_after=chance.choice([None, None, None, 2_000_000]))

    def _span(self, sidecar: Sidecar, chance: random.Random) -> bool:
        url, path = chance.choice(list(self._urls.items()))
        size = path.stat().st_size
        first = chance.randrange(size)
        last = min(size - 1, first + chance.choice([0, 5000, 3 << 20, 12 << 20]))
        return self._read(sidecar, url, path, span=(first, last), headers=_reader(chance))

    def _read(self, sidecar: Sidecar, url: str, path: Path, **how: Any) -> bool:
        got = read(sidecar.proxied(url), path, **how)
        self.report.compared(got.count)
        return got.whole

    def _plan(self, sidecar: Sidecar, chance: random.Random) -> bool:
        sidecar.plan(f"job/0/{chance.randrange(3)}/1.0", chance.sample(list(self._urls), 4))
        return True

    def _warm(self, sidecar: Sidecar, chance: random.Random) -> bool:
        body = json.dumps({"shards": chance.sample(list(self._urls), 2)}).encode()
        return b'"end"' in sidecar.ask("/v1/warm", body, "POST")

    def _evict(self, sidecar: Sidecar, chance: random.Random) -> bool:
        sidecar.ask("/v1/evict", json.dumps({"shards": [chance.choice(list(self._urls))]}).encode())
        return True

    def _watch(self, sidecar: Sidecar, stop: threading.Event) -> None:
        """How much the directory takes, unlinked but open files included."""
        while not stop.wait(0.05):
            self._bounded(_held(sidecar))

    def _bounded(self, held: int) -> None:
        if held > CAPACITY_MB * 10**6:
            self.report.fault("over_bound", f"{held} bytes are held")

    # What a kill leaves behind

    def _look_at_what_is_left(self) -> None:
        cache = self._directory / "cache"
        self._bounded(used_bytes(str(cache), 0)[0])
        for key, row in claims(cache, self._directory / "index-copy"):
            if not _is_true(cache / "shards" / key, row):
                self.report.fault("false_claims", f"the index claims what is not there: {row['url']}")

    def _read_everything(self) -> None:
        assert self._sidecar is not None
        for round_ in range(2):  # what is stored, then what is fetched in its place
            for url, path in self._urls.items():
                try:
                    assert self._read(self._sidecar, url, path), f"{url}: no end"
                except (AssertionError, OSError) as error:
                    self.report.fault("wrong_bytes", f"round {round_}: {error}")

    def _judge(self, epochs: list[list[tuple[str, str]]]) -> None:
        """Every epoch has each sample once, with its own bytes."""
        wanted = {key: hashlib.md5(data).hexdigest() for key, data in expected(SHARDS, SAMPLES, SAMPLE_BYTES).items()}
        for epoch in epochs:
            seen = Counter(key for key, _ in epoch)
            self.report.faults["samples_lost"] += len(wanted.keys() - seen.keys())
            self.report.faults["samples_twice"] += sum(count - 1 for count in seen.values())
            self.report.faults["samples_wrong"] += sum(wanted.get(key) != md5 for key, md5 in epoch)
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


def claimed(directory: Path) -> int:
    """Segments that the index of the cache below ``directory`` claims now."""
    return sum(len(checksums(row)) for _, row in claims(directory / "cache", directory / "index-copy"))


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


@contextmanager
def _training(directory: Path, forebay_url: str, urls: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A training loop in a process of its own, reading through ``forebay_url`` for the length of the ``with``."""
    command, environ = [sys.executable, "-c", _SCRIPT, json.dumps(urls)], environment(directory, FOREBAY_URL=forebay_url)
    with (
        (directory / "samples").open("w") as out,
        (directory / "samples.err").open("w") as err,
        subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _epochs_of(training: subprocess.Popen[str], output: Path) -> list[list[tuple[str, str]]]:
    """The (key, md5) of each sample, epoch by epoch; the one under way is read to its end."""
    assert training.stdin is not None
    training.stdin.close()
    assert training.wait(240) == 0, output.with_suffix(".err").read_text()[-2000:]
    epochs: list[list[tuple[str, str]]] = [[]]
    for line in output.read_text().splitlines():
        if sample := json.loads(line):
            epochs[-1].append((sample[0], sample[1]))
        else:
            epochs.append([])
    assert not epochs.pop(), "the script ends with an epoch"
    return epochs
