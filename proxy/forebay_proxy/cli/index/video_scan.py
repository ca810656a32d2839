"""The scan of clips behind ``forebay index --video``: the loader's, a process of its own, which is told each shard as it is here.

It decodes, and the sidecar's side knows no decoder: what a broken clip does to one ends that process, and not the command. What it has
found is in ``TABLE.partial``; the same command goes on from there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import IO, Any

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.core.errors import ConfigError, ForebayError

__all__ = ["CLIP_SUFFIXES", "ScanStopped", "VideoScan", "is_clip"]

# What is a clip by itself where a shard is expected; members of shards are chosen by the loader, from the same list.
CLIP_SUFFIXES = ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ogv", "wmv", "ts")
_NEEDS = ("av", "numpy")
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
    """The scan into ``table``, through ``sidecar``. ``told`` gets its events, in the thread of the caller. Use ``with``.

    Raises ``ConfigError`` where this environment cannot decode.
    """

    def __init__(self, table: str, sidecar: SidecarClient, token: str, told: Callable[[Event], None]) -> None:
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
        self.last: Event = {"event": "progress", **dict.fromkeys(_COUNTS, 0)}

    def add(self, url: str, headers: tuple[tuple[str, str], ...], name: str) -> None:
        """A shard, or a clip, is to be scanned; ``name`` is what is said of it. Raises ``ScanStopped``."""
        kind = "clip" if is_clip(url) else "shard"
        if headers:  # as it would stand in a training script; nobody runs it, and stdin is nobody else's
            said = [part for name_value in headers for part in ("-H", ": ".join(name_value))]
            url = f"pipe:{shlex.join(['curl', '-s', '-f', '-L', '-g', *said, url])}"
        line = json.dumps({kind: url, "name": name})
        try:
            self._input.write(line.encode() + b"\n")
            self._input.flush()
        except OSError:
            self.end()
        self._take(block=False)

    def end(self) -> Event:
        """Nothing more is added: its last event, when it has ended. Raises ``ScanStopped``."""
        with suppress(OSError):  # it ended by itself, and says why
            self._input.close()
        self._take(block=True)
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

    def _take(self, *, block: bool) -> None:
        while not self._ended and (block or not self._events.empty()):
            event = self._events.get()
            if event is None:
                self._ended = True
                return
            if isinstance(event, ScanStopped):
                raise event
            if event["event"] != "failed":
                self.last = {**self.last, **event}
            self._told(event)


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
