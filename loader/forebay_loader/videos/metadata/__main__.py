"""``python -m forebay_loader.videos.metadata TABLE``: scans what its stdin names; ``forebay index --video`` starts it.

A process of its own, because the sidecar's side knows no decoder; it decodes in others still, because what a broken clip does to a
decoder must not end the scan. It reads JSON lines, ``{"shard": URL}`` or ``{"clip": URL}``, until they end, and writes JSON lines:
``progress`` as it goes, ``failed`` for what cannot be read, and ``end`` or ``stopped``. Its exit code is 0 after ``end``. With ``--list``
it writes what the table knows, and reads no stdin.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Callable, Iterable, Iterator, Optional, TextIO

from forebay_loader.base.errors import LoaderError
from forebay_loader.videos.clip_info import ClipAddress, ClipInfo
from forebay_loader.videos.metadata.clip_lines import listed
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.decoder_processes import DecoderProcesses
from forebay_loader.videos.metadata.scan import ClipToScan, ScanProgress, clips_of_shard, lone_clip, scan_clips
from forebay_loader.videos.stage import SUFFIXES

__all__ = ["main"]

_EVERY_S = 0.2

Look = Callable[[ClipAddress, bool], ClipInfo]


class _Report:
    """What is written to ``out``: progress now and then, each failure once."""

    def __init__(self, out: TextIO) -> None:
        self.shards = 0
        self._out = out
        self._next = 0.0
        self._told = 0

    def progress(self, done: ScanProgress) -> None:
        for name, why in list(done.failed.items())[self._told :]:
            self.failed(name.replace("\n", "/"), why)
        self._told = len(done.failed)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            self.event("progress", done)

    def failed(self, name: str, why: str) -> None:
        self._line({"event": "failed", "name": name, "error": why})

    def event(self, event: str, done: ScanProgress) -> None:
        counts = {"scanned": done.scanned, "known": done.known, "failed": len(done.failed), "clip_bytes": done.clip_bytes}
        self._line({"event": event, "shards": self.shards, **counts})

    def stopped(self, why: str) -> None:
        self._line({"event": "stopped", "error": why})

    def _line(self, value: "dict[str, Any]") -> None:
        self._out.write(json.dumps(value) + "\n")
        self._out.flush()


def main(arguments: Optional[list[str]] = None, lines: Iterable[str] = sys.stdin, out: TextIO = sys.stdout) -> int:
    """The program. Returns its exit code."""
    with DecoderProcesses() as decoders:
        return run(arguments, lines, out, decoders.look)


def run(arguments: Optional[list[str]], lines: Iterable[str], out: TextIO, look: Look) -> int:
    """The same with another ``look``."""
    parser = argparse.ArgumentParser(prog="python -m forebay_loader.videos.metadata")
    parser.add_argument("table")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--no-audio", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    if asked.list:
        return _list(asked.table, out, as_json=asked.json)
    report = _Report(out)
    try:
        clips = _clips(lines, report)
        done = scan_clips(clips, asked.table, look, workers=asked.workers, audio=not asked.no_audio, progress=report.progress)
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # the table cannot be written, or is none
        report.stopped(str(error))
        return 1
    report.event("end", done)
    return 0


def _list(table: str, out: TextIO, *, as_json: bool) -> int:
    try:
        for line in listed(ClipTable(table), as_json=as_json):
            out.write(f"{line}\n")
    except BrokenPipeError:  # whoever read the first lines has enough
        return 0
    except OSError as error:
        sys.stderr.write(f"forebay: {error}\n")
        return 1
    return 0


def _clips(lines: Iterable[str], report: _Report) -> Iterator[ClipToScan]:
    """What ``lines`` name. A shard that cannot be read is told, and passed over."""
    for line in lines:
        named = json.loads(line)
        try:
            if "clip" in named:
                yield lone_clip(named["clip"])
            else:
                yield from clips_of_shard(named["shard"], SUFFIXES)
        except LoaderError as error:
            report.failed(str(named.get("name", "a shard")), str(error))
        report.shards += 1


if __name__ == "__main__":
    sys.exit(main())
