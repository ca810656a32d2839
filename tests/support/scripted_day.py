"""A day of two training jobs on one node in 170 minutes, as Prometheus would have scraped it: the sidecar's metrics, told of made events.

``series()`` is for ``promtool test rules``: each name with labels, and its values ``STEP_S`` apart.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from forebay_proxy.core.facts.cache import (
    CacheRecovered,
    DigestChecked,
    DiskOperationFailed,
    Evicted,
    IntegrityFailed,
    ReservationRefused,
    SegmentVerified,
)
from forebay_proxy.core.facts.origins import FetchRetried, OriginAnswered, OriginBytes, OriginFailed, SharedAnswered, SharedBytes
from forebay_proxy.core.facts.requests import (
    Aborted,
    ClientRefused,
    LoopLagged,
    MeterTold,
    ReaderWaited,
    RequestDone,
    RequestOutcome,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["END_MIN", "STEP_S", "promtool_values", "series"]

STEP_S = 60
END_MIN = 170
MB = 1_000_000
ORIGIN = "s3://train"
LABELS = {"job": "forebay", "instance": "node1:7070"}


@dataclass(frozen=True)
class Phase:
    """What each step of it is like: ``stall`` is the share of its time that each rank waits, the others are counts a step."""

    until_min: int
    stall: float = 0.01
    origin_mb: int = 300
    answers: int = 40
    refused: tuple[int, int] = (0, 0)  # (status, how many)
    waiting: int = 0
    lead_s: float = 40.0
    disk: str = "normal"
    second_job: bool = False
    up: bool = True


PHASES = {
    "warm-up": Phase(10, stall=0.1, origin_mb=2400, lead_s=2.0),
    "steady": Phase(30),
    "throttled": Phase(50, stall=0.12, refused=(503, 10), waiting=1, lead_s=1.0),
    "served again": Phase(60),
    "outage": Phase(66, stall=0.95, origin_mb=0, answers=0, refused=(0, 4), waiting=4, lead_s=0.0),
    "after the outage": Phase(90),
    "bad disk": Phase(100, stall=0.03, origin_mb=900, disk="down"),
    "new disk": Phase(110),
    "restart": Phase(113, up=False),
    "alone": Phase(120),
    "second job": Phase(150, origin_mb=900, second_job=True, lead_s=3.0),
    "alone again": Phase(END_MIN),
}  # fmt: skip


def series(wanted: Set[str]) -> dict[str, list[float | None]]:
    """Of the metrics whose samples are ``wanted``; None where the sidecar did not answer."""
    steps = END_MIN * 60 // STEP_S
    found: dict[str, list[float | None]] = {}
    sidecar = _Sidecar(0.0)
    for step, phase in enumerate(_phases(steps)):
        now_s = float(step * STEP_S)
        if not phase.up:
            sidecar = _Sidecar(now_s + STEP_S)
        else:
            sidecar.live(phase)
            for name, value in sidecar.samples(wanted):
                found.setdefault(name, [None] * steps)[step] = value
        found.setdefault(_named("up", ()), [None] * steps)[step] = float(phase.up)
    return found


def _phases(steps: int) -> Iterator[Phase]:
    for step in range(steps):
        yield next(phase for phase in PHASES.values() if step * STEP_S < phase.until_min * 60)


class _Sidecar:
    """One life of it."""

    def __init__(self, born_s: float) -> None:
        self._born_s = born_s
        self._metrics = Metrics(version="1.0", clock=lambda: 0.0)
        self._phase = PHASES["steady"]
        self._metrics.watch(self._usage)
        self._metrics.listen(CacheRecovered(100, 0, 0.5))

    def samples(self, wanted: Set[str]) -> Iterator[tuple[str, float]]:
        for family in self._metrics._registry.collect():
            for sample in family.samples:
                if sample.name in wanted:
                    born = sample.name == "process_start_time_seconds"  # or it would be that of the tests
                    yield _named(sample.name, tuple(sample.labels.items())), self._born_s if born else sample.value

    def live(self, phase: Phase) -> None:
        """One step: what the sidecar is told in it."""
        self._phase = phase
        jobs = {"train": (0, 1), **({"other": (0, 1)} if phase.second_job else {})}
        for job, ranks in jobs.items():
            for rank in ranks:
                self._trained(job, rank, phase, slow=job == "other" and rank == 1)
        self._asked(phase)
        tell = self._metrics.listen
        outcome = RequestOutcome.HIT if phase.stall < 0.05 else RequestOutcome.PARTIAL
        tell(RequestDone("GET", 206, outcome, 900 * MB, 0.01 + phase.stall, 2.0, hit_bytes=int(900 * MB * (1 - phase.stall)), job="train"))
        tell(ReaderWaited("train", 60 * phase.stall))
        tell(DigestChecked("md5", "agrees"))
        tell(SharedAnswered("fetched"))
        tell(SharedBytes(300 * MB, "written"))
        tell(SegmentVerified("sample", phase.disk == "normal"))
        for _ in range(10):
            tell(LoopLagged(0.002))
        tell(Evicted(200 * MB, "plan", 100.0, used=True))
        if phase.waiting > 1:
            tell(Aborted("origin_failed"))
        if phase.disk == "down":
            tell(DiskOperationFailed("write", "EIO"))
            tell(ReservationRefused("disk"))
            tell(IntegrityFailed("read"))
        if phase.second_job:
            tell(Evicted(200 * MB, "guess", 5.0, used=False))
            tell(ClientRefused("uid"))
            tell(ClientRefused("origin"))

    def _trained(self, job: str, rank: int, phase: Phase, *, slow: bool) -> None:
        reader = ReaderName(job, str(rank), "0", "7.1")
        stalled_s = STEP_S * phase.stall
        stall_s = {**dict.fromkeys(CAUSES, 0.0), "origin": 0.9 * stalled_s, "decode": 0.1 * stalled_s}
        steps = int((50 if slow else 100) * (1 - phase.stall))
        told = MeterBody(float(STEP_S), stall_s, steps, samples=64 * steps, skipped=1 if slow else 0)
        self._metrics.listen(MeterTold(reader, told))
        for number in range(5):
            self._metrics.listen(ShardOpened(reader, "skipped" if job == "other" and number < 2 else "planned"))

    def _asked(self, phase: Phase) -> None:
        """Of the origin."""
        tell = self._metrics.listen
        for _ in range(phase.answers):
            tell(OriginAnswered(ORIGIN, "GET", 206, 0.08))
        for _ in range(phase.refused[1]):
            tell(OriginAnswered(ORIGIN, "GET", phase.refused[0], 0.05))
            tell(OriginFailed(ORIGIN, "throttled" if phase.refused[0] == 503 else "connect"))
            tell(FetchRetried(ORIGIN, "connect", True))
        tell(OriginBytes(ORIGIN, phase.origin_mb * MB, "prefetch"))

    def _usage(self) -> Usage:
        phase = self._phase
        leads = {"train": phase.lead_s, **({"other": phase.lead_s} if phase.second_job else {})}
        return Usage(
            configured_bytes=1000 * MB, effective_bytes=(400 if phase.second_job else 1000) * MB, stored_bytes=300 * MB,
            peak_bytes=350 * MB, readers=4, plans=4, waiters=phase.waiting, disk_state=phase.disk, origins={ORIGIN: 8},
            avail_bytes=5000 * MB, lead_bytes={job: int(s * MB) for job, s in leads.items()}, lead_s=leads,
        )  # fmt: skip


@functools.cache
def _named(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """As Prometheus stores it: our ``job`` becomes ``exported_job``."""
    renamed = {"exported_job" if label == "job" else label: value for label, value in labels if value} | LABELS
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in renamed.items())}}}"


def promtool_values(values: Sequence[float | None]) -> str:
    """In promtool's notation: ``_x3`` is three times nothing, ``5x3`` four times 5."""
    words = []
    for value, same in itertools.groupby(values):
        times = len(list(same))
        number = "" if value is None else f"{int(value)}" if value == int(value) else repr(value)
        words.append(f"_x{times}" if value is None else f"{number}x{times - 1}" if times > 1 else number)
    return " ".join(words)
