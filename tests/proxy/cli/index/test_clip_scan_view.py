"""What is shown of the scan of clips, beside the count of samples and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.index import video_scan
from forebay_proxy.cli.index.video_scan import ClipScanView
from forebay_proxy.cli.progress import ProgressView

ONE = {"event": "progress", "shards": 1, "scanned": 3, "known": 0, "failed": 0, "clip_bytes": 700}
ALL = {**ONE, "event": "end", "shards": 2, "clip_bytes": 900}


class ScanOfTwo:
    """Tells of the first shard as the second is added, and again while it ends."""

    def __init__(self, table: str, sidecar: SidecarClient, token: str, told: Callable[[dict[str, Any]], None]) -> None:
        self.told = told
        self.last = ONE

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def add(self, url: str, headers: tuple[tuple[str, str], ...], name: str) -> None:
        self.told(ONE)

    def end(self) -> None:
        for self.last in (ONE, ALL):
            self.told(self.last)


class NotedView(ProgressView):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True, as_json=False)
        self.shown: list[tuple[int, int, int]] = []
        self.events: list[Mapping[str, Any]] = []

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def shards(self, done: int, shards: int, done_bytes: int) -> None:
        self.shown.append((done, shards, done_bytes))


def test_the_bar_is_the_scans_once_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it is the count's; programs are told all of it."""
    monkeypatch.setattr(video_scan, "VideoScan", ScanOfTwo)
    view = NotedView()
    with ClipScanView("t.clips", SidecarClient("http://127.0.0.1:7070"), view).begun() as scan:
        for name in ("a", "b"):
            scan.add(f"s3://b/{name}.tar", ())
        assert not view.shown
        scan.end()
    assert view.shown == [(1, 2, 700), (2, 2, 900)]
    assert [(event["of"], event["shards"]) for event in view.events] == [("clips", 1)] * 3 + [("clips", 2)]
