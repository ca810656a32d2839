"""The scan of clips behind ``forebay index --video``: the loader's, a process of its own, which is told each shard as it is here.

It decodes, and the sidecar's side knows no decoder: what a broken clip does to one ends that process, and not the command. What it has
found is in the table, written once a second; the same command goes on from there.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from threading import Thread
from typing import IO, Any

from forebay_proxy.cli.client import SidecarClient, token_of
from forebay_proxy.cli.output import many, say, say_json
from forebay_proxy.cli.progress import Failures, ProgressView
from forebay_proxy.core.errors import ConfigError, ForebayError

__all__ = ["CLIP_SUFFIXES", "ScanStopped", "VideoScan", "is_clip", "list_clips", "local_clip"]

# What is a clip by itself where a shard is expected; members of shards are chosen by the loader, from the same list.
CLIP_SUFFIXES = ("mp4", "webm", "mkv", "mov", "m4v", "avi", "mpg", "mpeg", "ogv", "wmv", "ts")
_NEEDS = ("forebay_loader", "av", "numpy")
PROGRAM = (sys.executable, "-P", "-m", "forebay_loader.videos.metadata")

Event = dict[str, Any]
_COUNTS = ("shards", "scanned", "known", "failed", "clip_bytes")
_EVENTS = ("progress", "end", "failed", "stopped")


class ScanStopped(ForebayError):
    """The scan ended before its end; the message is its own, or its exit code."""

    title = "Scan stopped"


def is_clip(url: str) -> bool:
    """Whether a URL names one clip, and no shard of them."""
    return url.partition("?")[0].rpartition(".")[2].lower() in CLIP_SUFFIXES


def list_clips(table: str, *, as_json: bool) -> int:
    """Have the loader print what ``table`` knows. Returns its exit code. Raises ``ConfigError`` where this environment has no loader."""
    _check_needs()
    return subprocess.run([*PROGRAM, table, "--list", *(["--json"] if as_json else [])], check=False).returncode  # noqa: S603  # our own


def local_clip(text: str) -> str:
    """The ``file://`` URL of an argument that is a path of a clip; anything else as it is."""
    return f"file://{os.path.abspath(text)}" if is_clip(text) and "://" not in text and not text.startswith("pipe:") else text


def _check_needs() -> None:
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise ConfigError(
            f"--video decodes clips, and the environment of this command has no {' and no '.join(missing)}",
            next_step=f"install them there: {sys.executable} -m pip install 'forebay[video]'",
        )


class VideoScan:
    """A scan into ``table``, through ``sidecar``, shown in ``view``; with "" for a table nothing is scanned.

    ``failures`` are clips that cannot be read. ``last`` is the last event with its counts. A scan that is busy keeps ``add`` waiting.
    """

    def __init__(self, table: str, sidecar: SidecarClient, view: ProgressView) -> None:
        """Raises ``ConfigError`` where this environment cannot decode."""
        if table:
            _check_needs()
        self.failures = Failures()
        self.last: Event = {"event": "progress", **dict.fromkeys(_COUNTS, 0)}
        self._table, self._sidecar, self._view = table, sidecar, view
        self._given = 0
        self._ending = False
        self._error: Exception | None = None  # of the thread that reads what the scan tells

    @contextmanager
    def begun(self) -> Iterator[VideoScan]:
        """While shards are added. The process ends with it."""
        if not self._table:
            yield self
            return
        command, token = [*PROGRAM, self._table], token_of(os.environ)
        environ = {**os.environ, "FOREBAY_URL": self._sidecar.address, **({"FOREBAY_TOKEN": token} if token else {})}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as self._process:  # noqa: S603  # our own
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._input = self._process.stdin
            self._reader = Thread(target=self._read, args=(self._process.stdout,), name="video-scan", daemon=True)
            self._reader.start()
            try:
                yield self
            finally:
                if self._process.poll() is None:
                    self._process.terminate()
                self._reader.join()
                with suppress(OSError):  # what was not written yet: nobody reads it any more
                    self._input.close()

    def add(self, url: str, headers: tuple[tuple[str, str], ...]) -> None:
        """Scan a shard, or a clip. Raises ``ScanStopped``."""
        if not self._table:
            return
        self._given += 1
        kind, name = "clip" if is_clip(url) else "shard", url.partition("?")[0]
        if headers:  # as it would stand in a training script; nobody runs it, and stdin is nobody else's
            said = [part for name_value in headers for part in ("-H", ": ".join(name_value))]
            url = f"pipe:{shlex.join(['curl', '-s', '-f', '-L', '-g', *said, url])}"
        try:
            self._input.write(json.dumps({kind: url, "name": name}).encode() + b"\n")
            self._input.flush()
        except OSError:  # it has ended, and says why
            self.end()

    def end(self) -> None:
        """Nothing more is added: wait for the rest. Raises ``ScanStopped``."""
        if not self._table:
            return
        self._ending = True
        with suppress(OSError):
            self._input.close()
        code = self._process.wait()
        self._reader.join()
        if self._error is not None:
            raise self._error
        if code or self.last["event"] != "end":
            why = self.last.get("error") or f"its process ended with exit code {code}"
            raise ScanStopped(f"the scan of clips stopped: {why}", next_step="the same command goes on from what it has found")

    def say(self, *, as_json: bool) -> None:
        """The last line."""
        if not self._table:
            return
        if as_json:
            say_json({**self.last, "event": "clips", "table": self._table})
            return
        known = f", {self.last['known']:,} known before" if self.last["known"] else ""
        failed = f", {self.last['failed']:,} cannot be read" if self.last["failed"] else ""
        say(f"{many(self.last['scanned'], 'clip')} scanned{known}{failed}; {self._table} written")

    def _read(self, lines: IO[bytes]) -> None:
        """In a thread of its own: a pipe that nobody reads would keep the scan waiting."""
        try:
            for line in lines:
                if (event := _event(line)) is not None:
                    self._take(event)
        except Exception as error:  # told by ``end``
            self._error = error
            self._process.terminate()

    def _take(self, event: Event) -> None:
        if event["event"] == "failed":
            self.failures.add({"shard": event["name"], "error": event["error"]})
        else:
            self.last = {**self.last, **event}
            if self._ending:  # before, the view is the count's
                self._view.shards(self.last["shards"], self._given, self.last["clip_bytes"])
        self._view.event({**event, "of": "clips"})


def _event(line: bytes) -> Event | None:
    """The event that a line tells; None: a library talks."""
    try:
        told: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and told.get("event") in _EVENTS else None
