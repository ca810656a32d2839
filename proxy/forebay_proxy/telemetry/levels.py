"""What the sidecar knows of the last minute, for the verdict (``wire.protocol.verdict``). Pure; ``Lately`` is a listener of events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.cache import Evicted
from forebay_proxy.core.facts.origins import OriginAnswered, OriginBytes, SegmentFetched
from forebay_proxy.core.shard import shown
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.waits import LONG_S, Waits
from forebay_proxy.wire.protocol.verdict import MUCH, Levels, OriginLevels

__all__ = ["SILENT_S", "Lately", "levels_of", "worst_share"]

SILENT_S = 15.0
MINUTE_S = 60
_FOR_ROOM = frozenset({"plan", "guess"})  # why a segment leaves that a larger cache would have kept


@dataclass(slots=True)
class _Second:
    """What one second brought."""

    second: int
    answers: int = 0
    first_byte_s: float = 0.0
    segments: int = 0
    segment_s: float = 0.0
    came_bytes: int = 0
    left_bytes: int = 0


class Lately:
    """Sums of the last minute that no other part keeps. Not thread-safe: the event loop's only."""

    kinds = (Evicted, OriginAnswered, OriginBytes, SegmentFetched)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: deque[_Second] = deque(maxlen=MINUTE_S)

    def __repr__(self) -> str:
        return f"<Lately {len(self._seconds)} seconds>"

    def listen(self, event: Event) -> None:
        second = self._now()
        if type(event) is OriginAnswered:
            if 0 < event.code < 400:
                second.answers += 1
                second.first_byte_s += event.first_byte_s
        elif type(event) is OriginBytes:
            second.came_bytes += event.count
        elif type(event) is SegmentFetched:
            second.segments += 1
            second.segment_s += event.seconds
        elif type(event) is Evicted and event.reason in _FOR_ROOM:
            second.left_bytes += event.bytes

    def latency_share(self) -> float:
        """What part of a segment's time passes before its first byte; 0 where nothing came."""
        answers, segments = self._sum("answers"), self._sum("segments")
        if not answers or not segments:
            return 0.0
        return min(1.0, (self._sum("first_byte_s") / answers) / max(1e-6, self._sum("segment_s") / segments))

    def turnover(self) -> float:
        """Bytes that left for want of room, as a part of those that came."""
        came = self._sum("came_bytes")
        return min(1.0, self._sum("left_bytes") / came) if came else 0.0

    def _sum(self, name: str) -> float:
        since = self._clock() - MINUTE_S
        return float(sum(getattr(each, name) for each in self._seconds if each.second >= since))

    def _now(self) -> _Second:
        now = int(self._clock())
        if not self._seconds or self._seconds[-1].second != now:
            self._seconds.append(_Second(now))
        return self._seconds[-1]


def levels_of(
    waits: Waits, board: OriginBoard, lately: Lately, *, readers: int, disk: str, in_flight: Mapping[str, int], plans: int, passes: bool,
    refused: tuple[str, float] | None = None, meters: Sequence[Mapping[str, Any]] = (), shared: str = "", needed_bytes: int | None = None,
    pattern: str = "",
) -> Levels:  # fmt: skip
    """``meters``: the rows of ``MeterBoard``, also of silent processes. ``disk``: why it is down, "" where it is not. ``passes``: whether a
    job has come to its second."""
    long = [wait for wait in waits if waits.seconds(wait) >= LONG_S]
    first = min(long, key=lambda wait: wait.since, default=None)
    waiting = None
    if first is not None:
        same = sum(wait.origin == first.origin for wait in long)
        waiting = (same, waits.seconds(first), shown(first.shard))
    name = first.origin if first is not None else (board.busiest() or ("", 0.0))[0]
    silent, meters = _silent(meters), [row for row in meters if row.get("silent_s", 0.0) <= MINUTE_S]
    row = _worst(meters)
    return Levels(
        silent=silent,
        **({} if row is None else _trainer(row, meters)),
        readers=readers,
        waited_share=waits.share(),
        waiting=waiting,
        origin=_origin(board, lately, name, in_flight, None if first is None else first.since) if name else None,
        disk=disk,
        turnover=lately.turnover(),
        passes=passes,
        needed_bytes=needed_bytes,
        announced=plans > 0 or not readers,
        pattern=pattern,
        unequal=next((str(each["unequal"]) for each in meters if each.get("unequal")), ""),
        refused=refused,
        shared=shared,
    )


def _origin(board: OriginBoard, lately: Lately, name: str, in_flight: Mapping[str, int], since: float | None) -> OriginLevels:
    state, now = board.get(name), board.clock()
    if state is None:
        return OriginLevels(name, in_flight=in_flight.get(name, 0))
    return OriginLevels(
        name,
        error="" if since is None else board.error_since(name, since),
        failing_s=None if state.failing_since is None else now - state.failing_since,
        refusals=board.refusals(name),
        rate_bytes_s=state.rate_bytes_s(now),
        in_flight=in_flight.get(name, 0),
        latency_share=lately.latency_share(),
    )


def _silent(meters: Sequence[Mapping[str, Any]]) -> str:
    """Of a job that nobody started again."""
    alive = {row["job"] for row in meters if not row.get("silent") and not row.get("ended")}
    gone = [row for row in meters if row.get("silent")]
    ranks = {row["rank"] for row in meters if not row.get("silent")}
    found = next((row for row in gone if row["job"] not in alive or row["rank"] not in ranks), None)
    return "" if found is None else f"{found['job']} rank {found['rank']} is {found['silent']}"


def _worst(meters: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The process that waited most, of those that train now: one that waits for a batch tells of it every 10 s; another may be in a long
    step, or was killed. Where none does, of those that have ended."""
    running = [row for row in meters if not row.get("ended")]
    present = [row for row in running if row.get("silent_s", 0.0) <= SILENT_S] or running or [*meters]
    told = [row for row in present if row["lately"]["wall_s"]]
    return max(told, key=_share, default=None)


def _share(row: Mapping[str, Any]) -> float:
    return min(1.0, float(sum(row["lately"]["stall_s"].values())) / float(row["lately"]["wall_s"]))


def worst_share(meters: Sequence[Mapping[str, Any]]) -> float | None:
    """What part of its last minute the training process waited that waited most; None where nobody trains now."""
    row = _worst(meters)
    if row is None or row.get("ended"):
        return None
    return _share(row)


def _trainer(row: Mapping[str, Any], meters: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A training that has just begun had to start its workers: nothing could spare it that stall."""
    worker = "" if row.get("slowest_worker") is None else f", worker {row['slowest_worker']}"
    shard = "" if row.get("slowest_shard") is None else f", {row['slowest_shard']}"
    idle = row.get("idle_cores")
    told = [each for each in meters if not each.get("ended") and each["lately"]["wall_s"] > 0]
    alike = sum(_share(each) >= _share(row) / 2 for each in told)
    stall_s, wall_s = dict(row["lately"]["stall_s"]), row["lately"]["wall_s"]
    if row.get("wall_s") == wall_s:
        wall_s = max(0.0, wall_s - stall_s.pop("start", 0.0))
    others = {each["job"]: _share(each) for each in sorted(told, key=_share) if each["job"] != row["job"] and _share(each) >= MUCH}
    return {
        "stall_s": stall_s,
        "wall_s": wall_s,
        "steps": row["lately"].get("steps"),
        "others": ", ".join(f"job {job} waits {100 * share:.0f} %, too" for job, share in others.items()),
        "span": "of the last minute" if wall_s >= MINUTE_S - 10 else f"of the last {wall_s:.0f} s",
        "who": f"{row['job']} rank {row['rank']}{worker}{shard}",
        "shard": row.get("slowest_shard") or "",
        "function": row.get("slowest_function") or "",
        "ended": bool(row.get("ended")),
        "workers": row.get("workers"),
        "idle_cores": None if idle is None else idle / max(1, alike),
    }
