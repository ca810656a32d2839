"""The scan of clips behind ``forebay index --video``: the loader's, a process of its own, which is told each shard as it is here.

It decodes, and the sidecar's side knows no decoder: what a broken clip does to one ends that process, and not the command. What it has
found is in the table, written once a second; the same command goes on from there.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from queue import Empty, Queue
from threading import Thread
from types import TracebackType
from typing import IO, Any

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.locate import token_of
from forebay_proxy.cli.output import many, say, say_json
from forebay_proxy.cli.progress import Failures, ProgressView
from forebay_proxy.core.errors import ConfigError, ForebayError

__all__ = ["CLIP_SUFFIXES", "ClipScanView", "ScanStopped", "VideoScan", "is_clip"]

# What is a clip by itself where a shard is expected; members of shards are chosen by the loader, from the same list.
CLIP_SUFFIXES = ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ogv", "wmv", "ts")
_NEEDS = ("av", "numpy")
SILENT_S = 1800.0  # a film takes minutes, and a shard of them on a slow line; each clip is told, and has limits of its own
PROGRAM = (sys.executable, "-P", "-m", "forebay_loader.videos.metadata")

Event = dict[str, Any]
_COUNTS: dict[str, type] = dict.fromkeys(("shards", "scanned", "known", "failed", "clip_bytes"), int)
_FIELDS: dict[str, dict[str, type]] = {
    "progress": _COUNTS,
    "end": _COUNTS,
    "failed": {"name": str, "error": str},
    "stopped": {"error": str},
}


class ScanStopped(ForebayError):
    """The scan ended before its end; the message is its own, or its exit code."""

    title = "Scan stopped"


def is_clip(url: str) -> bool:
    """Whether a URL names one clip, and no shard of them."""
    return url.partition("?")[0].rpartition(".")[2].lower() in CLIP_SUFFIXES


class VideoScan:
    """The scan into ``table``, through ``sidecar``. ``told`` gets its events, in the thread of the caller. One that neither reads nor tells
    anything for ``silent_s`` seconds has stopped. Use ``with``.

    Raises ``ConfigError`` where this environment cannot decode.
    """

    def __init__(self, table: str, sidecar: SidecarClient, token: str, told: Callable[[Event], None], silent_s: float = SILENT_S) -> None:
        missing = [name for name in ("forebay_loader", *_NEEDS) if find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"--video decodes clips, and the environment of this command has no {' and no '.join(missing)}",
                next_step=f"install them there: {sys.executable} -m pip install 'forebay[video]'",
            )
        self._command = [*PROGRAM, table]
        self._environ = {**os.environ, "FOREBAY_URL": sidecar.address, **({"FOREBAY_TOKEN": token} if token else {})}
        self._told = told
        self._events: Queue[Event | ScanStopped | None] = Queue()
        self._ended = False
        self._silent_s = silent_s
        self.last: Event = {"event": "progress", **dict.fromkeys(_COUNTS, 0)}

    def add(self, url: str, headers: tuple[tuple[str, str], ...], name: str) -> None:
        """A shard, or a clip, is to be scanned; ``name`` is what is said of it. Raises ``ScanStopped``."""
        kind = "clip" if is_clip(url) else "shard"
        if headers:  # as it would stand in a training script; nobody runs it, and stdin is nobody else's
            said = [part for name_value in headers for part in ("-H", ": ".join(name_value))]
            url = f"pipe:{shlex.join(['curl', '-s', '-f', '-L', '-g', *said, url])}"
        line = json.dumps({kind: url, "name": name})
        try:
            self._write(line.encode() + b"\n")
        except OSError:
            self.end()
        self._take()

    def end(self) -> Event:
        """Nothing more is added: its last event, when it has ended. Raises ``ScanStopped``."""
        with suppress(OSError):  # it ended by itself, and says why
            self._input.close()
        while not self._ended:
            self._take(self._silent_s)
        code = self._process.wait()
        if code or self.last["event"] != "end":
            why = self.last.get("error") or f"its process ended with exit code {code}"
            raise ScanStopped(f"the scan of clips stopped: {why}", next_step="the same command goes on from what it has found")
        return self.last

    def __enter__(self) -> VideoScan:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environ)  # noqa: S603  # our own
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        os.set_blocking(self._input.fileno(), False)
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="video-scan", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._reader.join()
        self._process.__exit__(kind, error, trace)

    def _read(self, lines: IO[bytes]) -> None:
        """In a thread: a pipe that nobody reads would keep the scan waiting."""
        for line in lines:
            try:
                event = _event(line)
            except ScanStopped as error:
                self._events.put(error)
            else:
                if event is not None:
                    self._events.put(event)
        self._events.put(None)

    def _write(self, line: bytes) -> None:
        """Wait while the scan is busy with what it was told before, and tells how far it is."""
        room = select.poll()
        room.register(self._input, select.POLLOUT)
        left, last_s = memoryview(line), time.monotonic()
        while left:
            try:
                left = left[os.write(self._input.fileno(), left) :]
            except BlockingIOError:
                if self._take():
                    last_s = time.monotonic()
                waits_s = last_s + self._silent_s - time.monotonic()
                if waits_s <= 0:
                    raise self._silent() from None
                room.poll(1000 * min(waits_s, 1.0))

    def _take(self, waits_s: float = 0.0) -> bool:
        """Hand on what was told; whether anything was. Raises ``ScanStopped`` where nothing comes in ``waits_s``, if that is not 0."""
        taken = False
        while not self._ended and (waits_s or not self._events.empty()):
            try:
                event = self._events.get(timeout=waits_s or None)
            except Empty:
                raise self._silent() from None
            taken = True
            if event is None:
                self._ended = True
            elif isinstance(event, ScanStopped):
                raise event
            else:
                if event["event"] != "failed":
                    self.last = {**self.last, **event}
                self._told(event)
        return taken

    def _silent(self) -> ScanStopped:
        return ScanStopped(
            f"the scan of clips stopped: its process read nothing and told nothing for {self._silent_s:g} s",
            next_step="the same command goes on from what it has found; a clip that holds it up is one of the shards told last",
        )


def _event(line: bytes) -> Event | None:
    """The event that a line tells; None: a library talks. Raises ``ScanStopped`` for an event without its fields."""
    try:
        told: Event | Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kind = told.get("event") if isinstance(told, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        return None
    for name, wanted in _FIELDS[kind].items():
        if type(told.get(name)) is not wanted:
            raise ScanStopped(
                f"the scan of clips told {kind!r} with a {name!r} that is no {wanted.__name__}",
                next_step="forebay_proxy and forebay_loader in this environment are of two versions: install forebay[video] anew",
            )
    event: Event = told
    return event


class ClipScanView:
    """A scan into ``table`` (""; none) and its end, shown in ``view``. ``failures`` are clips that cannot be read."""

    def __init__(self, table: str, sidecar: SidecarClient, view: ProgressView) -> None:
        """Raises ``ConfigError`` where this environment cannot decode."""
        self.failures = Failures()
        self._table, self._view = table, view
        self._scan = VideoScan(table, sidecar, token_of(os.environ), self._told) if table else None
        self._given = 0
        self._ending = False

    @contextmanager
    def begun(self) -> Iterator[ClipScanView]:
        """While shards are added."""
        if self._scan is None:
            yield self
            return
        with self._scan:
            yield self

    def add(self, url: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Scan a shard, or a clip. Raises ``ScanStopped``."""
        if self._scan is not None:
            self._given += 1
            self._scan.add(url, headers, url.partition("?")[0])

    def end(self) -> None:
        """Wait for the rest. Raises ``ScanStopped``."""
        self._ending = True
        if self._scan is not None:
            self._scan.end()

    def say(self, *, as_json: bool) -> None:
        """The last line."""
        if self._scan is None:
            return
        last = self._scan.last
        if as_json:
            say_json({**last, "event": "clips", "table": self._table})
            return
        known = f", {last['known']:,} known before" if last["known"] else ""
        failed = f", {last['failed']:,} cannot be read" if last["failed"] else ""
        say(f"{many(last['scanned'], 'clip')} scanned{known}{failed}; {self._table} written")

    def _told(self, event: dict[str, Any]) -> None:
        if event["event"] == "failed":
            self.failures.add({"shard": event["name"], "error": event["error"]})
        elif self._ending and self._scan is not None:  # before, the view is the count's
            last = self._scan.last
            self._view.shards(last["shards"], self._given, last["clip_bytes"])
        self._view.event({**event, "of": "clips"})
