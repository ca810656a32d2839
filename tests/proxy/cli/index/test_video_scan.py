"""The scan of clips as the command sees it: a process that is told shards, and tells events; and what happens when it ends."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.seams import swapped

from forebay_loader.videos.stage import SUFFIXES
from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.index import video_scan
from forebay_proxy.cli.index.video_scan import CLIP_SUFFIXES, ScanStopped, VideoScan, is_clip
from forebay_proxy.cli.progress import ProgressView
from forebay_proxy.core.errors import ConfigError

SIDECAR = SidecarClient("http://127.0.0.1:7070")
COUNTS = {"shards": 0, "scanned": 0, "known": 0, "failed": 0, "clip_bytes": 0}
ECHO = """
    for line in sys.stdin:
        tell(event="progress", line=json.loads(line), variables=[os.environ["FOREBAY_URL"], os.environ.get("FOREBAY_TOKEN")])
    tell(event="end", table=sys.argv[1], scanned=2)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in the place of the loader's."""

    def put(text: str) -> None:
        script = tmp_path / "scan.py"
        head = f"import json, os, sys, time\nCOUNTS = {COUNTS}\ndef tell(**event): print(json.dumps({{**COUNTS, **event}}), flush=True)\n"
        script.write_text(head + textwrap.dedent(text))
        swapped(monkeypatch, video_scan, PROGRAM=(sys.executable, str(script)), find_spec=lambda name: name)

    return put


class Told(ProgressView):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__(quiet=True, as_json=False)
        self.events: list[dict[str, Any]] = []

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))


def events(table: str = "t.clips") -> tuple[VideoScan, list[dict[str, Any]]]:
    view = Told()
    return VideoScan(table, SIDECAR, view), view.events


def test_shards_are_told_and_events_come_back(program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, with the sidecar's address; the last is the end."""
    program(ECHO)
    monkeypatch.setenv("FOREBAY_TOKEN", "secret")
    scan, told = events()
    with scan.begun():
        scan.add("s3://b/1.tar", ())
        scan.add("https://h/2.mp4?x=1", ())
        scan.end()
    assert scan.last["scanned"] == 2
    assert [event["line"] for event in told[:2]] == [
        {"shard": "s3://b/1.tar", "name": "s3://b/1.tar"},
        {"clip": "https://h/2.mp4?x=1", "name": "https://h/2.mp4"},
    ]
    assert told[0]["variables"] == ["http://127.0.0.1:7070", "secret"]
    assert told[2] == {**COUNTS, "event": "end", "table": "t.clips", "scanned": 2, "of": "clips"}


def test_headers_travel_as_a_command_that_nobody_runs(program: Callable[[str], None]) -> None:
    """The loader understands it as it would in a training script."""
    program(ECHO)
    scan, told = events()
    with scan.begun():
        scan.add("https://h/1.tar", (("Authorization", "Bearer it's"), ("X-A", "b")))
        scan.end()
    assert told[0]["line"]["shard"] == """pipe:curl -s -f -L -g -H 'Authorization: Bearer it'"'"'s' -H 'X-A: b' https://h/1.tar"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('tell(event="stopped", error="t.clips is no table of clips"); sys.exit(1)', "t.clips is no table of clips"),
        ("sys.exit(7)", "its process ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", "its process ended with exit code -9"),
        ("sys.stdin.read()", "its process ended with exit code 0"),
    ],
)
def test_a_scan_that_stops_is_an_error(program: Callable[[str], None], text: str, told: str) -> None:
    """Its own words, or its exit code; an end without its last word is none."""
    program(text)
    scan, _ = events()
    with pytest.raises(ScanStopped, match=f"the scan of clips stopped: {told}"), scan.begun():
        scan.end()


def _tell_for_ever(scan: VideoScan) -> None:
    while True:
        scan.add("s3://b/1.tar", ())


def test_telling_a_dead_scan_is_an_error_too(program: Callable[[str], None]) -> None:
    """At the latest when the pipe says so; the count does not go on for hours in vain."""
    program('tell(event="stopped", error="a full disk"); sys.exit(1)')
    scan, _ = events()
    with pytest.raises(ScanStopped, match="a full disk"), scan.begun():
        _tell_for_ever(scan)


def test_much_said_keeps_nobody_waiting(program: Callable[[str], None]) -> None:
    """More than a pipe holds, while nobody here reads."""
    program("""
        for number in range(20000):
            tell(event="failed", name=str(number), error="x" * 20)
        sys.stdin.read()
        tell(event="end")
    """)
    scan, told = events()
    with scan.begun():
        scan.end()
    assert len(told) == 20_001


def test_an_error_ends_the_process(program: Callable[[str], None]) -> None:
    """Nothing is left behind that waits for its stdin."""
    program('tell(event="progress")\ntime.sleep(600)')
    scan, _ = events()
    with pytest.raises(RuntimeError, match="the count failed"), scan.begun():
        raise RuntimeError("the count failed")
    assert scan._process.returncode == -15


@pytest.mark.parametrize("missing", ["av", "numpy", "forebay_loader"])
def test_what_cannot_decode_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Before anything is fetched."""
    monkeypatch.setattr(video_scan, "find_spec", lambda name: None if name == missing else name)
    with pytest.raises(ConfigError, match=f"no {missing}$") as caught:
        events()
    assert "pip install 'forebay[video]'" in caught.value.next_step


def test_suffixes_are_the_loaders() -> None:
    """One list, in two places that may not import each other."""
    assert CLIP_SUFFIXES == SUFFIXES


@pytest.mark.parametrize(("url", "found"), [("s3://b/a.MP4", True), ("https://h/a.mp4?v=1.tar", True), ("https://h/a.tar?v=1.mp4", False)])
def test_clips_are_told_by_their_names(url: str, found: bool) -> None:
    """Of the path, in capitals too."""
    assert is_clip(url) is found
