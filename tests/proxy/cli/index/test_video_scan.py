"""The scan of clips as the command sees it: a process that is told shards, and tells events; and what happens when it ends."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay_loader.videos.stage import SUFFIXES
from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.index import video_scan
from forebay_proxy.cli.index.video_scan import CLIP_SUFFIXES, ScanStopped, VideoScan, is_clip
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
        monkeypatch.setattr(video_scan, "PROGRAM", (sys.executable, str(script)))
        monkeypatch.setattr(video_scan, "find_spec", lambda name: name)

    return put


def events(table: str = "t.clips", token: str = "", silent_s: float = 60.0) -> tuple[VideoScan, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    return VideoScan(table, SIDECAR, token, told.append, silent_s), told


def test_shards_are_told_and_events_come_back(program: Callable[[str], None]) -> None:
    """In their order, with the sidecar's address; the last is the end."""
    program(ECHO)
    scan, told = events(token="secret")
    with scan:
        scan.add("s3://b/1.tar", (), "s3://b/1.tar")
        scan.add("https://h/2.mp4?x=1", (), "https://h/2.mp4")
        assert scan.end()["scanned"] == 2
    assert [event["line"] for event in told[:2]] == [
        {"shard": "s3://b/1.tar", "name": "s3://b/1.tar"},
        {"clip": "https://h/2.mp4?x=1", "name": "https://h/2.mp4"},
    ]
    assert told[0]["variables"] == ["http://127.0.0.1:7070", "secret"]
    assert told[2] == {**COUNTS, "event": "end", "table": "t.clips", "scanned": 2}


def test_headers_travel_as_a_command_that_nobody_runs(program: Callable[[str], None]) -> None:
    """The loader understands it as it would in a training script."""
    program(ECHO)
    scan, told = events()
    with scan:
        scan.add("https://h/1.tar", (("Authorization", "Bearer it's"), ("X-A", "b")), "https://h/1.tar")
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
    with pytest.raises(ScanStopped, match=f"the scan of clips stopped: {told}"), scan:
        scan.end()


def _tell_for_ever(scan: VideoScan) -> None:
    while True:
        scan.add("s3://b/1.tar", (), "x")


def test_telling_a_dead_scan_is_an_error_too(program: Callable[[str], None]) -> None:
    """At the latest when the pipe says so; the count does not go on for hours in vain."""
    program('tell(event="stopped", error="a full disk"); sys.exit(1)')
    scan, _ = events()
    with pytest.raises(ScanStopped, match="a full disk"), scan:
        _tell_for_ever(scan)


@pytest.mark.parametrize(
    "line", ["[h264 @ 0x55] deprecated", "7", "null", '["end"]', '{"level": "info"}', '{"event": 7}', '{"event": "seen"}']
)
def test_what_a_library_prints_is_passed_over(program: Callable[[str], None], line: str) -> None:
    """A line that is no JSON, or is no event of the scan, says nothing."""
    program(f"print({line!r}); tell(event='end')")
    scan, told = events()
    with scan:
        scan.end()
    assert [event["event"] for event in told] == ["end"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"event": "end", "shards": 1}', "told 'end' with a 'scanned' that is no int"),
        ('{"event": "progress", "shards": "1"}', "told 'progress' with a 'shards' that is no int"),
        ('{"event": "failed", "name": 1, "error": "x"}', "told 'failed' with a 'name' that is no str"),
        ('{"event": "stopped"}', "told 'stopped' with a 'error' that is no str"),
    ],
)
def test_an_event_without_its_fields_stops_the_count(program: Callable[[str], None], line: str, told: str) -> None:
    """It is the loader of another version; what it says more is not waited for."""
    program(f"print({line!r}, flush=True)\nfor line in sys.stdin: pass\ntime.sleep(600)")
    scan, _ = events()
    with pytest.raises(ScanStopped, match=told) as caught, scan:
        _tell_for_ever(scan)
    assert "two versions" in caught.value.next_step


def test_much_said_keeps_nobody_waiting(program: Callable[[str], None]) -> None:
    """More than a pipe holds, while nobody here reads."""
    program("""
        for number in range(20000):
            tell(event="failed", name=str(number), error="x" * 20)
        sys.stdin.read()
        tell(event="end")
    """)
    scan, told = events()
    with scan:
        scan.end()
    assert len(told) == 20_001


def test_one_that_stops_reading_is_given_up(program: Callable[[str], None]) -> None:
    """When its pipe is full, and it says nothing either: the count is not held up for ever."""
    program("time.sleep(600)")
    scan, _ = events(silent_s=0.5)
    with pytest.raises(ScanStopped, match=r"read nothing and told nothing for 0\.5 s"), scan:
        _tell_for_ever(scan)
    assert scan._process.returncode == -15


def test_one_that_says_nothing_at_its_end_is_given_up(program: Callable[[str], None]) -> None:
    """Its stdin is closed, and no last word comes."""
    program("sys.stdin.read(); time.sleep(600)")
    scan, _ = events(silent_s=0.5)
    with pytest.raises(ScanStopped, match="told nothing for"), scan:
        scan.end()


def test_one_that_is_slow_and_says_so_is_waited_for(program: Callable[[str], None]) -> None:
    """Longer than it may be silent, while its pipe is full; nothing that it is told gets lost."""
    program("""
        for number in range(60):
            tell(event="progress")
            time.sleep(0.05)
        tell(event="end", scanned=len(sys.stdin.readlines()))
    """)
    scan, _ = events(silent_s=1.5)
    with scan:
        for _ in range(1000):
            scan.add("s3://b/1.tar", (), "x" * 200)
        assert scan.end()["scanned"] == 1000


def test_an_error_ends_the_process(program: Callable[[str], None]) -> None:
    """Nothing is left behind that waits for its stdin."""
    program('tell(event="progress")\ntime.sleep(600)')
    scan, _ = events()
    with pytest.raises(RuntimeError, match="the count failed"), scan:
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
