"""``forebay plan --replay`` over what a real run did: the simulator runs the cache's own code, so it must come to the same bytes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from far_set import FarSet
from figures import Figure, at_most
from plan_bytes import WINDOW, Case, recorded_case
from plan_record import Record
from support.sidecar import forebay

__all__ = ["figures", "openings"]

MOST_OFF = 5.0  # percent
NEED_MB, ORIGIN_MB, LATENCY_MS = 120.0, 100.0, "20"


def figures(shards: FarSet, seed: int, epochs: int) -> list[Figure]:
    """Windows of 16 and whole epochs, each with the origin somewhat slower than the readers: both are measured, then both replayed."""
    found = []
    for window in (WINDOW, None):
        case = Case(50, 8, staggered=False, window=window, epochs=epochs, origin_mb=ORIGIN_MB, need_mb=NEED_MB, latency_ms=LATENCY_MS)
        record = recorded_case(case, shards, seed)
        said = _replayed(record, window)
        read = sum(size for _, size in record.accesses())
        origin = sum(fetch.bytes for fetch in record.fetches)
        for what, measured, replayed in (("hit", read - origin, said["hit_bytes"]), ("origin", origin, said["origin_bytes"])):
            name = f"replay of C = 50 %, 8 readers, {'whole epochs' if window is None else f'windows of {window}'}: {what} bytes off"
            found.append(at_most(name, round(100 * abs(replayed / measured - 1), 2), MOST_OFF, "%"))
    return found


def openings(record: Record) -> list[str]:
    """The run as JSON lines, one an opening, as ``--replay`` takes them."""
    lines = []
    for read in sorted(record.reads, key=lambda read: read.began):
        if read.index == 0:
            opening = {
                "t": round(read.began - record.began, 4), "reader": read.reader,
                "shard": f"https://origin.test/set/{record.shards.names[read.number]}", "length": record.shards.lengths[read.number],
            }  # fmt: skip
            lines.append(json.dumps(opening))
    return lines


def _replayed(record: Record, window: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="forebay-plans-") as directory:
        path = Path(directory) / "openings.jsonl"
        path.write_text("\n".join(openings(record)) + "\n", encoding="utf-8")
        done = forebay(
            Path(directory), "plan", "--replay", str(path), "--cache-size", str(record.capacity_bytes), "--ahead", str(window or "all"),
            "--origin-bandwidth", f"{ORIGIN_MB:g}MB/s", "--latency", f"{LATENCY_MS}ms", "--policy", "ours", "--json",
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"forebay plan --replay ended with {done.returncode}: {done.stderr[-500:]}")
    said: dict[str, Any] = json.loads(done.stdout)["policies"][0]
    return said
