"""What a person may say about the log line and the watchdog: ``FOREBAY_METER_LINE_S``, ``FOREBAY_WATCHDOG_S``."""

from __future__ import annotations

import os
from typing import Mapping, Optional

from forebay_loader.base.notices import notice_once

__all__ = ["LINE_S", "WATCHDOG_S", "line_s", "watchdog_s"]

LINE_S = 30.0  # a screen holds the last twenty minutes
WATCHDOG_S = 60.0  # longer than a cold shard takes, and long before a NCCL watchdog ends the job


def line_s(environ: Optional[Mapping[str, str]] = None) -> float:
    """How many seconds lie between two log lines; 0: there is none."""
    return _seconds("FOREBAY_METER_LINE_S", LINE_S, environ)


def watchdog_s(environ: Optional[Mapping[str, str]] = None) -> float:
    """After how many seconds without a batch the watchdog speaks; 0: never."""
    return _seconds("FOREBAY_WATCHDOG_S", WATCHDOG_S, environ)


def _seconds(name: str, usual: float, environ: Optional[Mapping[str, str]]) -> float:
    text = (os.environ if environ is None else environ).get(name, "")
    if not text:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    notice_once(name, f"{name}={text!r} is not a number of seconds; using {usual:g}")
    return usual
