"""What ``forebay index`` shows of the scan of clips; without ``--video`` nothing is scanned, and nothing said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from forebay_proxy.cli.client import SidecarClient
from forebay_proxy.cli.failures import Failures
from forebay_proxy.cli.index.video_scan import VideoScan
from forebay_proxy.cli.locate import token_of
from forebay_proxy.cli.output import many, say, say_json
from forebay_proxy.cli.shards.warm_progress import WarmView

__all__ = ["ClipScanView"]


class ClipScanView:
    """A scan into ``table`` (""; none) and its end, shown in ``view``. ``failures`` are clips that cannot be read."""

    def __init__(self, table: str, sidecar: SidecarClient, view: WarmView) -> None:
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
            self._view.progress(last["shards"], self._given, last["clip_bytes"])
        self._view.event({**event, "of": "clips"})
