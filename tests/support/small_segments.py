"""``forebay`` whose sidecars cut shards otherwise than the product does, and try a failed disk sooner: for programs that tests start."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from forebay_proxy.app.service import run_service
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.cli import main as command
from forebay_proxy.cli.options import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.shared import shared_tier
from forebay_proxy.store import health

__all__ = ["main", "seams_with"]

DISK_PAUSE_S = 15.0  # longer than a case lasts; the product's is a minute, which each test would wait for


def seams_with(program: Sequence[str] = (), segment_bytes: int | None = None) -> Seams:
    """``program`` is started as a sidecar, and ``serve`` cuts shards into ``segment_bytes``; what is not given is as installed."""
    seams = Seams(program=tuple(program)) if program else Seams()
    if segment_bytes is None:
        return seams
    layout = SegmentLayout(segment_bytes)
    health.PAUSE_S = DISK_PAUSE_S
    if patience_s := float(
        os.environ.get("TESTS_PATIENCE_S", "0")
    ):  # with a shared tier: what is asserted must not hang on this machine's load
        for name in ("ANSWER_S", "FIRST_S", "SEGMENT_S", "HEAD_S", "LEASE_S", "DEMAND_WAIT_S", "WAIT_S"):
            setattr(shared_tier, name, patience_s)

    def serve(settings: Settings, announce: Callable[[ServiceInfo], None]) -> int:
        return run_service(settings, announce=announce, layout=layout)

    return replace(seams, serve=serve)


def main(segment_bytes: int) -> NoReturn:
    """The command with segments of so many bytes."""
    command.main(seams_with(segment_bytes=segment_bytes))
