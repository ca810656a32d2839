"""``forebay plan --replay`` of the access log of a real run: it runs the cache's own policy, so it must come to the same bytes.

Measured is what the sidecar's own counters say at the end: in ``/v1/status`` ``bytes.origin``, and ``bytes.saved`` (what its readers got
less that), which is what a replay calls hit bytes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from far_set import FarSet
from figures import Figure, at_most
from plan_bytes import WINDOW, Case, recorded_case
from support.sidecar import forebay

__all__ = ["figures"]

MOST_OFF = 8.0  # percent: a replay fetches at once what a real line brings later
NEED_MB, ORIGIN_MB, LATENCY_MS = 120.0, 100.0, "20"
PERCENT, READERS = 50, 8


def figures(shards: FarSet, seed: int, epochs: int) -> list[Figure]:
    """Windows of 16 and whole epochs, each with the origin somewhat slower than the readers: both are measured, then both replayed."""
    found = []
    for window in (WINDOW, None):
        case = Case(
            PERCENT, READERS, staggered=False, window=window, epochs=epochs, origin_mb=ORIGIN_MB, need_mb=NEED_MB, latency_ms=LATENCY_MS
        )
        with tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory:
            log = Path(directory) / "access.log"
            record = recorded_case(case, shards, seed, log=log)
            said = _replayed(log, record.capacity_bytes, window)
        counted: Any = record.status["bytes"]
        for what, measured, replayed in (("hit", counted["saved"], said["hit_bytes"]), ("origin", counted["origin"], said["origin_bytes"])):
            name = f"replay of C = {PERCENT} %, {READERS} readers, {'whole epochs' if window is None else f'windows of {window}'}"
            found.append(at_most(f"{name}: {what} bytes off", round(100 * abs(replayed / measured - 1), 2), MOST_OFF, "%"))
    return found


def _replayed(log: Path, capacity_bytes: int, window: int | None) -> dict[str, Any]:
    done = forebay(
        log.parent, "plan", "--replay", str(log), "--cache-size", str(capacity_bytes), "--ahead", str(window or "all"),
        "--json",
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"forebay plan --replay ended with {done.returncode}: {done.stderr[-500:]}")
    said: dict[str, Any] = json.loads(done.stdout)["policies"][0]
    return said
