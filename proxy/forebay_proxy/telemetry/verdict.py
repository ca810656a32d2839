"""One sentence on how it goes: for the first line of ``forebay status``, of the page, and the end of ``forebay run``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay_proxy.core.quantities import format_size
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.waits import LONG_S, Waits

__all__ = ["verdict"]

MUCH = 0.05  # as the alert TrainingStalls: below it prefetch hides what there is
SILENT_S = 15.0
NORMAL = "normal"


def verdict(
    waits: Waits, board: OriginBoard, *, readers: int, disk_state: str, disk_reason: str, in_flight: Mapping[str, int],
    refused: tuple[str, float] | None = None, meters: Sequence[Mapping[str, Any]] = (), shared_trouble: str = "",
) -> str:  # fmt: skip
    """What a person should know first: a rank that waits for one without batches, why training waits, who waits for what, the cache disk;
    else that all is well.

    ``refused``: the last error that a client was given, and how many seconds ago, if that was lately. ``meters``: the rows of
    ``MeterBoard``. Readers' waits that training does not feel are hidden by prefetch, and it is said that they are. ``shared_trouble``:
    why the shared tier is left alone now; it may be why readers wait.
    """
    if unequal := next((row["unequal"] for row in meters if row.get("unequal")), ""):
        return f"training stands: {unequal}"
    readers_wait = _readers(waits, board, readers, disk_state, disk_reason, in_flight, refused, shared_trouble)
    share, said = max(map(_stall, _present(meters)), default=(0.0, ""), key=lambda each: each[0])
    if not said:
        return readers_wait
    if share >= MUCH:
        return f"{said}; {readers_wait}"
    return f"{readers_wait}; training waited {_percent(share)}"


def _present(meters: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that train now: a process that waits for a batch tells of it every 10 s; another may be in a long step, or was killed. Where
    none does, those that have ended."""
    running = [row for row in meters if not row.get("ended")]
    return [row for row in running if row.get("silent_s", 0.0) <= SILENT_S] or running or [*meters]


def _stall(row: Mapping[str, Any]) -> tuple[float, str]:
    """(what share of the last minute a training process waited for batches, in words); ("" where it was not metered)."""
    sums = row["lately"]
    stall_s: float = sum(sums["stall_s"].values())
    if not sums["wall_s"]:
        return 0.0, ""
    cause, seconds = max(sums["stall_s"].items(), key=lambda each: float(each[1]))
    worker = "" if row["slowest_worker"] is None else f", worker {row['slowest_worker']}"
    shard = "" if row["slowest_shard"] is None else f", {row['slowest_shard']}"
    why = f", {_percent(seconds / stall_s)} of that for {cause} ({row['job']} rank {row['rank']}{worker}{shard})" if stall_s else ""
    who = "training has ended; it" if row.get("ended") else "training"
    return stall_s / sums["wall_s"], f"{who} waited {_percent(stall_s / sums['wall_s'])} of the last minute{why}"


def _readers(
    waits: Waits, board: OriginBoard, readers: int, disk_state: str, disk_reason: str, in_flight: Mapping[str, int],
    refused: tuple[str, float] | None, shared_trouble: str,
) -> str:  # fmt: skip
    """Of the readers, as far as the sidecar sees them."""
    told = _waiting(waits, board) or _waited(waits, board, in_flight)
    if told and shared_trouble:
        told += f"; the shared tier is not used for a while: {shared_trouble}"
    if disk_state != NORMAL:
        told = f"the cache disk is {disk_state} ({disk_reason}): bytes pass through memory" + (f"; {told}" if told else "")
    if told:
        return told
    share = waits.share()
    if not readers and share is None:
        last = f"; who asked last, {refused[1]:.0f} s ago, was told: {refused[0]}" if refused else ""
        return f"nobody has read in the last minute{last}"
    return f"data arrives as fast as it is read: readers waited {_percent(share or 0.0)} of the last minute"


def _waiting(waits: Waits, board: OriginBoard) -> str:
    """Who waits right now, and has for long; with what the origin says, and how often it refused in the last minute."""
    long = [wait for wait in waits if waits.seconds(wait) >= LONG_S]
    if not long:
        return ""
    first = min(long, key=lambda wait: wait.since)
    same = sum(wait.origin == first.origin for wait in long)
    who = f"{same} readers wait" if same > 1 else "a reader waits"
    trouble = board.error_since(first.origin, first.since) or "no answer yet"
    bad = ", ".join(f"{count} x {code or 'no answer'}" for code, count in board.refusals(first.origin).items())
    often = f" ({bad} in the last minute)" if bad else ""
    return f"{who} for {first.origin}, {waits.seconds(first):.0f} s by now: {trouble}{often}"


def _waited(waits: Waits, board: OriginBoard, in_flight: Mapping[str, int]) -> str:
    """The last minute's waits, where they are more than prefetch hides."""
    share = waits.share()
    if share is None or share < MUCH:
        return ""
    origin, rate_bytes_s = board.busiest() or ("", 0.0)
    flying = in_flight.get(origin, 0)
    told = f"; {origin} brings {format_size(int(rate_bytes_s))}/s now, {flying} requests in the air"
    is_idle = rate_bytes_s < 1 and not flying  # it says nothing of the minute before
    return f"readers waited {_percent(share)} of the last minute{'' if is_idle else told}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"
